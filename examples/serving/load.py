"""Measures service.py: requests per second and latencies, compared with direct calls.

    python load.py model                      # starts service.py and stops it again
    python load.py model --clients 1 --molecules 32

Each client sends its next request when it has the response to the previous one. A
direct call predicts the molecules of one request in this process; these calls run one
after the other. The processor time of the service excludes that of the clients.
"""

import argparse
import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

MOLECULES = [
    "CCO",
    "c1ccccc1O",
    "CC(=O)Oc1ccccc1C(=O)O",
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "CC(=O)Nc1ccc(O)cc1",
    "CN1CCC[C@H]1c1cccnc1",
    "O=C(O)c1ccccc1O",
]


def request_of(number: int, molecules: int) -> list[str]:
    """Return the molecules of a request."""
    return [MOLECULES[(number + i) % len(MOLECULES)] for i in range(molecules)]


def post(connection: http.client.HTTPConnection, smiles: list[str]) -> dict:
    """Return the response to a request."""
    body = json.dumps({"smiles": smiles})
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/predict", body, headers)
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {text[:200].decode()}")
    return json.loads(text)


def get(port: int, path: str) -> str:
    """Return the body of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def wait_until_served(port: int, seconds: float = 60) -> None:
    """Wait until `/health` responds."""
    end = time.monotonic() + seconds
    while True:
        try:
            get(port, "/health")
            return
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.1)


def metrics(port: int) -> dict[str, float]:
    """Return the numbers of `/metrics`."""
    lines = get(port, "/metrics").splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


class Result(NamedTuple):
    """Total time, latencies and processor time in seconds, and molecules per batch."""

    seconds: float
    latencies: list[float]
    processor: float
    batch: float

    def line(self, name: str, molecules: int) -> str:
        """Return a row of the report."""
        p50, p99 = 1000 * np.percentile(self.latencies, [50, 99])
        count = len(self.latencies)
        return (
            f"| {name} | {count / self.seconds:.0f} | "
            f"{molecules * count / self.seconds:.0f} | {p50:.1f} | {p99:.1f} | "
            f"{1000 * self.processor / count:.2f} | {self.batch:.1f} |"
        )


HEADER = (
    "| | requests/s | molecules/s | p50, ms | p99, ms | processor, ms per request "
    "| molecules per batch |\n| --- | --- | --- | --- | --- | --- | --- |"
)


def load(port: int, clients: int, molecules: int, requests: int) -> Result:
    """Return the measurements of concurrent clients."""
    latencies: list[list[float]] = [[] for _ in range(clients)]

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for i in range(requests // clients):
            start = time.perf_counter()
            post(connection, request_of(number + i, molecules))
            latencies[number].append(time.perf_counter() - start)
        connection.close()

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    before = metrics(port)
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    after = metrics(port)

    def change(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    return Result(
        seconds,
        [value for values in latencies for value in values],
        change("process_cpu_seconds_total"),
        change("molecules_total") / change("batches_total"),
    )


def direct(folder: Path, molecules: int, requests: int) -> Result:
    """Return the measurements of direct calls in this process."""
    from service import Predictor

    predict = Predictor(folder)
    predict(request_of(0, molecules))
    latencies = []
    processor = time.process_time()
    for i in range(requests):
        start = time.perf_counter()
        predict(request_of(i, molecules))
        latencies.append(time.perf_counter() - start)
    processor = time.process_time() - processor
    return Result(sum(latencies), latencies, processor, float(molecules))


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("model", type=Path, help="a folder that export.py wrote")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--molecules", type=int, default=1, help="of a request")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--port", type=int, default=8765)
    options = parser.parse_args(arguments)
    size = options.molecules
    print(HEADER)
    print(direct(options.model, size, options.requests).line("direct", size))
    script = Path(__file__).with_name("service.py")
    command = [sys.executable, script, options.model, "--port", str(options.port)]
    service = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until_served(options.port)
        for clients in options.clients:
            result = load(options.port, clients, size, options.requests)
            print(result.line(f"{clients} clients", size), flush=True)
    finally:
        service.terminate()
        service.wait()


if __name__ == "__main__":
    main()
