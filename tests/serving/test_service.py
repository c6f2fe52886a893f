"""The service of examples/serving, over the loopback interface."""

import asyncio
import contextlib
import http.client
import importlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import keras_bandgnn as kb
from tests.absent import ABSENT, BACKENDS

for module in ("fastapi", "uvicorn", "prometheus_client", "rdkit", "onnxruntime"):
    pytest.importorskip(module)

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "serving"
MOLECULES = ["CCO", "c1ccccc1O", "C", "CC(C)Cc1ccc(cc1)C(C)C(=O)O", "C#N"]
SCRIPT = """
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print(sorted({"keras", "jax", "torch", "tensorflow"} & set(sys.modules)))
"""


@pytest.fixture
def example(monkeypatch):
    """Returns a function that imports a file of the example."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.fixture(scope="module")
def task():
    encoder = kb.preprocessing.SmilesEncoder()
    backbone = kb.models.GINEBackbone(
        encoder.inputs(), 8, num_layers=1, edge_inputs=encoder.edge_inputs()
    )
    preprocessor = kb.preprocessing.GraphPreprocessor([encoder])
    return kb.models.GraphRegressor(backbone, 2, preprocessor)


@pytest.fixture(scope="module")
def model(task, tmp_path_factory):
    """The folder of export.py."""
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("served")
    task.save_to_preset(folder / "preset")
    sys.path.insert(0, str(FOLDER))
    try:
        export = importlib.import_module("export")
    finally:
        sys.path.remove(str(FOLDER))
    sizes = ["--sizes", "2", "8", "--atoms", "40"]
    export.main([str(folder / "preset"), str(folder / "model"), *sizes])
    return folder / "model"


@pytest.fixture(scope="module")
def service(model):
    """The port of a service in a process without a backend."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = ABSENT.format(modules=set(BACKENDS)) + SCRIPT
    command = [sys.executable, "-c", script, str(FOLDER / "service.py"), str(model)]
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait(port, process)
        yield port
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert out == "[]\n", out + err
    finally:
        process.kill()
        process.wait()


def wait(port, process):
    while process.poll() is None:
        try:
            return get(port, "/health")
        except OSError:
            time.sleep(0.1)
    raise AssertionError(process.stderr.read())


def request(port, *parts):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(*parts)
        response = connection.getresponse()
        return response.status, response.read().decode()


def get(port, path):
    status, text = request(port, "GET", path)
    assert status == 200, text
    return text


def post(port, body):
    body = body if isinstance(body, str) else json.dumps(body)
    headers = {"Content-Type": "application/json"}
    status, text = request(port, "POST", "/predict", body, headers)
    return status, json.loads(text)


@pytest.mark.parametrize("count", [1, 5, 23])
def test_answers_are_the_predictions_of_the_task(service, task, count):
    smiles = (MOLECULES * 5)[:count]
    status, answer = post(service, {"smiles": smiles})
    assert status == 200
    expected = np.array(task.predict(smiles))
    np.testing.assert_allclose(answer["predictions"], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("body", "place", "reason"),
    [
        ({"smiles": ["CCO", "nope"]}, ["smiles", 1], "a molecule that RDKit can read"),
        ({"smiles": [""]}, ["smiles", 0], "Received"),
        ({"smiles": ["C", "C" * 300]}, ["smiles", 1], r"'300 \(at most 200\)'"),
        ({"smiles": ["C", 3]}, ["smiles", 1], "valid string"),
        ({"smiles": ["C" * 5000]}, ["smiles", 0], "at most 1000 characters"),
        ({"smiles": ["C"] * 257}, ["smiles"], "at most 256 items"),
        ({"smiles": []}, ["smiles"], "at least 1 item"),
        ({"molecules": ["C"]}, ["smiles"], "required"),
        ('{"smiles": ', None, "JSON"),
        ('{"smiles": ["\\ud800"]}', ["smiles", 0], "unicode|string"),
        ('{"smiles": [NaN]}', ["smiles", 0], "valid string"),
    ],
)
def test_a_malformed_request_is_refused_with_the_reason(service, body, place, reason):
    status, answer = post(service, body)
    assert status == 422
    (detail,) = answer["detail"]
    assert set(detail) == {"loc", "msg", "type"}
    assert re.search(reason, detail["msg"]), detail
    if place is not None:
        assert detail["loc"] == ["body", *place]


def test_health_and_metrics_report_what_is_served(service, example):
    metrics = example("load").metrics
    sizes = json.loads(get(service, "/health"))["batches"]
    assert [size["graph"] for size in sizes] == [3, 9]
    before = metrics(service)
    post(service, {"smiles": ["C", "CC"]})
    post(service, {"smiles": ["nope"]})
    after = metrics(service)
    changes = {name: after[name] - before.get(name, 0) for name in after}
    assert changes["molecules_total"] == 2
    assert changes['requests_total{status="200"}'] == 1
    assert changes['requests_total{status="422"}'] == 1
    assert changes["request_seconds_count"] == 2
    assert after["waiting_molecules"] == 0


def test_the_load_test_counts_every_request(service, example):
    load = example("load")
    before = load.metrics(service)["molecules_total"]
    result = load.load(service, clients=4, molecules=3, requests=20)
    assert len(result.latencies) == 20 and result.seconds > 0
    assert load.metrics(service)["molecules_total"] == before + 60
    assert 3 <= result.batch <= 12
    line = result.line("4 clients", 3)
    assert line.count("|") == load.HEADER.splitlines()[0].count("|")


def test_direct_calls_are_measured_in_this_process(model, example):
    result = example("load").direct(model, molecules=2, requests=3)
    assert len(result.latencies) == 3 and result.batch == 2.0


def test_a_molecule_that_does_not_fit_does_not_spoil_the_others(model, example, task):
    predict = example("service").Predictor(model)
    results = predict(["CCO", "C" * 300, "nope", "C#N"])
    expected = task.predict(["CCO", "C#N"])
    np.testing.assert_allclose(results[0], expected[0], atol=1e-4)
    np.testing.assert_allclose(results[3], expected[1], atol=1e-4)
    assert "at most 200" in results[1] and "RDKit can read" in results[2]


def test_requests_that_wait_share_a_batch(example):
    service = example("service")
    begun, free = threading.Event(), threading.Event()
    calls = []

    def predict(smiles):
        calls.append(smiles)
        begun.set()
        assert free.wait(30)
        if "bad" in smiles:
            raise RuntimeError("no prediction")
        return [text.lower() for text in smiles]

    async def run():
        batches = service.SharedBatches(predict, service.Metrics(), largest=4)
        runner = asyncio.create_task(batches.run())
        first = asyncio.create_task(batches.submit(["A"]))
        await asyncio.to_thread(begun.wait, 30)
        requests = (["B", "C"], ["D"], ["E"], ["F"], ["bad"])
        later = [asyncio.create_task(batches.submit(request)) for request in requests]
        await asyncio.sleep(0)
        assert batches.waiting == 6
        free.set()
        results = await asyncio.gather(first, *later, return_exceptions=True)
        runner.cancel()
        return results

    *results, broken, last = asyncio.run(run())
    assert calls == [["A"], ["B", "C", "D", "E"], ["F", "bad"]]
    assert results == [["a"], ["b", "c"], ["d"], ["e"]]
    assert isinstance(broken, RuntimeError) and isinstance(last, RuntimeError)


def test_too_many_waiting_molecules_are_refused(example, monkeypatch):
    service = example("service")
    monkeypatch.setattr(service, "MAX_WAITING", 1)

    class Predict:
        def sizes(self):
            return [{"graph": 3}]

    app = service.make_app(Predict())
    (endpoint,) = (
        route.endpoint
        for route in app.routes
        if getattr(route, "path", "") == "/predict"
    )
    response = asyncio.run(endpoint(service.Molecules(smiles=["C", "CC"])))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert "try again later" in json.loads(response.body)["detail"]


def test_triton_has_the_inputs_of_the_model(model, tmp_path, example):
    example("triton_repository").main([str(model), str(tmp_path)])
    texts = {path.parent.name: path.read_text() for path in tmp_path.glob("*/*.pbtxt")}
    assert sorted(texts) == ["model-2-molecules", "model-8-molecules"]
    packer = kb.serving.GraphPacker.load(tmp_path / "model-2-molecules")
    text = texts["model-2-molecules"]
    assert (tmp_path / "model-2-molecules" / "1" / "model.onnx").is_file()
    assert 'name: "model-2-molecules"' in text and "max_batch_size: 0" in text
    inputs = text[text.index("input [") : text.index("output [")]
    entries = re.findall(r'name: "(\w+)" data_type: (\w+) dims: \[(.*?)\]', inputs)
    arrays = next(iter(packer.pack(MOLECULES[:2])))
    types = {"TYPE_INT32": "int32", "TYPE_BOOL": "bool", "TYPE_FP32": "float32"}
    assert entries
    for name, kind, dims in entries:
        assert arrays[name].dtype == types[kind]
        assert arrays[name].shape == tuple(map(int, dims.split(",")))
