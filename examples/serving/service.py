"""Serves an exported model over HTTP: takes SMILES and returns predictions.

    pip install -r requirements.txt
    python service.py model --port 8000
    curl localhost:8000/predict -H "content-type: application/json" \
        -d '{"smiles": ["CCO", "c1ccccc1O"]}'

`model` is a folder written by export.py. The process needs no backend of Keras, and
imports none if none is installed. Requests that arrive while a batch is computed share
the next one. `/health` returns the sizes of batches, `/metrics` is for Prometheus.
"""

import argparse
import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, StringConstraints
from pydantic import Field as Limits

from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.serving import ExportedModel

# Molecules and characters per request, and waiting molecules; more are rejected.
MAX_MOLECULES, MAX_CHARACTERS, MAX_WAITING = 256, 1000, 4096
# Errors in a response.
MAX_ERRORS = 10
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Molecules(BaseModel):
    """The body of a request."""

    smiles: Annotated[
        list[Annotated[str, StringConstraints(max_length=MAX_CHARACTERS)]],
        Limits(min_length=1, max_length=MAX_MOLECULES),
    ]


class Predictions(BaseModel):
    """The body of a response: one row per molecule, in the order of the request."""

    predictions: list[list[float]]


class Predictor:
    """A model that was exported for batches of several sizes.

    Args:
        folder: The folder written by export.py, with a subfolder for each size.
    """

    def __init__(self, folder: Path):
        paths = sorted(file.parent for file in folder.glob("*/packing.json"))
        if not paths:
            raise SystemExit(f"{folder}: no folder of export.py, with */packing.json")
        models = [ExportedModel(path) for path in paths]
        self.models = sorted(models, key=lambda model: model.packer.budget["node"])
        encoder = self.models[0].packer.preprocessor.encoder
        config = {**encoder.get_config(), "on_error": "skip"}
        self.encoder = type(encoder).from_config(config)

    def sizes(self) -> list[dict[str, int]]:
        """Return the capacities of the batches."""
        return [model.packer.budget for model in self.models]

    def __call__(self, smiles: list[str]) -> list[np.ndarray | str]:
        """Return the prediction of each molecule, or an error message."""
        encoded = self.encoder.encode(smiles, progress=False)
        results: list = [encoded.errors.get(i) for i in range(len(smiles))]
        if encoded.graphs is not None:
            rows = self._rows(encoded.graphs)
            for position, row in zip(encoded.positions, rows, strict=True):
                results[position] = row
        return results

    def _rows(self, graphs: FlatGraphs) -> list[np.ndarray | str]:
        # Molecules that are too large run alone, so that the others do not fail.
        budget = self.models[-1].packer.budget
        nodes, edges = np.diff(graphs.node_ptr), np.diff(graphs.edge_ptr)
        fits = (nodes < budget["node"]) & (edges <= budget["edge"])
        rows: list = [None] * len(graphs)
        for i in np.flatnonzero(~fits):
            rows[i] = self._row(graphs.take([i]))
        together = np.flatnonzero(fits)
        if together.size:
            try:
                predictions = self._run(graphs.take(together))
            except ValueError:  # Another budget is exceeded.
                predictions = [self._row(graphs.take([i])) for i in together]
            for i, row in zip(together, predictions, strict=True):
                rows[i] = row
        return rows

    def _row(self, graph: FlatGraphs) -> np.ndarray | str:
        try:
            return self._run(graph)[0]
        except ValueError as error:
            return str(error)

    def _run(self, graphs: FlatGraphs) -> list[np.ndarray]:
        # The smallest size that fits all graphs, else several batches of the largest.
        nodes, edges = int(graphs.node_ptr[-1]), int(graphs.edge_ptr[-1])
        *smaller, model = self.models
        for candidate in smaller:
            budget = candidate.packer.budget
            # One node and one graph are padding.
            fits = nodes < budget["node"] and edges <= budget["edge"]
            if fits and len(graphs) < budget["graph"]:
                model = candidate
                break
        return model.predict(graphs)


class Metrics:
    """The metrics of `/metrics`."""

    def __init__(self):
        self.registry = CollectorRegistry()
        of: dict[str, Any] = {"registry": self.registry}
        ProcessCollector(**of)  # Processor time and memory, on Linux.
        self.requests = Counter("requests", "Requests by status", ["status"], **of)
        self.seconds = Histogram(
            "request_seconds", "Time to answer a request", buckets=SECONDS, **of
        )
        self.molecules = Counter("molecules", "Molecules predicted", **of)
        self.batches = Counter("batches", "Batches that requests shared", **of)
        self.waiting = Gauge("waiting_molecules", "Molecules that wait", **of)

    def text(self) -> bytes:
        """Return the metrics in the format of Prometheus."""
        return generate_latest(self.registry)


class SharedBatches:
    """Batches that concurrent requests share.

    One thread computes predictions. Requests that arrive in the meantime wait and share
    the next call: batches fill up under load, and a single request does not wait.

    Args:
        predict: Function from SMILES to predictions or error messages.
        metrics: The metrics.
        largest: Maximum number of molecules in a batch. A single request may have more.
    """

    def __init__(self, predict, metrics: Metrics, largest: int):
        self.predict, self.metrics, self.largest = predict, metrics, largest
        self.queue: asyncio.Queue = asyncio.Queue()
        self.waiting = 0

    async def submit(self, smiles: list[str]) -> list[np.ndarray | str]:
        """Return the results of a request."""
        future = asyncio.get_running_loop().create_future()
        self._count(len(smiles))
        self.queue.put_nowait((smiles, future))
        return await future

    def _count(self, molecules: int) -> None:
        self.waiting += molecules
        self.metrics.waiting.set(self.waiting)

    async def run(self) -> None:
        """Predict until cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            while True:
                requests = [await self.queue.get()]
                count = len(requests[0][0])
                while not self.queue.empty() and count < self.largest:
                    requests.append(self.queue.get_nowait())
                    count += len(requests[-1][0])
                self._count(-count)
                smiles = [text for request, _ in requests for text in request]
                try:
                    results = await loop.run_in_executor(thread, self.predict, smiles)
                except Exception as error:  # The requests fail, the service continues.
                    for _, future in requests:
                        if not future.done():
                            future.set_exception(error)
                    continue
                self.metrics.batches.inc()
                for request, future in requests:
                    answer, results = results[: len(request)], results[len(request) :]
                    if not future.done():  # The client may have disconnected.
                        future.set_result(answer)


def make_app(predict: Predictor) -> FastAPI:
    """Return the service of a model."""
    metrics = Metrics()
    largest = max(size["graph"] for size in predict.sizes()) - 1
    batches = SharedBatches(predict, metrics, largest)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI):
        predict(["C"])  # The first call is the slowest.
        task = asyncio.create_task(batches.run())
        yield
        task.cancel()

    app = FastAPI(title="Predictions of molecules", lifespan=lifespan)

    @app.middleware("http")
    async def measure(request: Request, call_next):
        start = time.perf_counter()
        status = 500
        try:
            response = await call_next(request)
            status = response.status_code
            return response
        finally:
            if request.url.path == "/predict":
                metrics.requests.labels(status).inc()
                metrics.seconds.observe(time.perf_counter() - start)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError):
        # Without what was sent, which may be long, and no JSON can hold all of it.
        details = [
            {name: entry[name] for name in ("loc", "msg", "type")}
            for entry in error.errors()[:MAX_ERRORS]
        ]
        return JSONResponse({"detail": details}, 422)

    @app.post("/predict", response_model=Predictions)
    async def answer(molecules: Molecules):
        if batches.waiting + len(molecules.smiles) > MAX_WAITING:
            reason = f"{batches.waiting} molecules are waiting; try again later"
            return JSONResponse({"detail": reason}, 503, {"Retry-After": "1"})
        results = await batches.submit(molecules.smiles)
        errors = [
            {"loc": ["body", "smiles", i], "msg": result, "type": "value_error"}
            for i, result in enumerate(results)
            if isinstance(result, str)
        ]
        if errors:
            return JSONResponse({"detail": errors}, 422)
        metrics.molecules.inc(len(results))
        rows = [np.atleast_1d(row).tolist() for row in results]
        return JSONResponse({"predictions": rows})

    @app.get("/health")
    async def health():
        return {"status": "ok", "batches": predict.sizes()}

    @app.get("/metrics")
    async def report():
        return PlainTextResponse(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("model", type=Path, help="a folder that export.py wrote")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    if not 0 < options.port < 65536:
        parser.error(f"expected a port in [1, 65535], is {options.port}")
    # Responses name the rejected molecules, so the log does not have to.
    logging.getLogger("keras_bandgnn").setLevel(logging.ERROR)
    app = make_app(Predictor(options.model))
    uvicorn.run(app, host=options.host, port=options.port, access_log=False)


if __name__ == "__main__":
    main()
