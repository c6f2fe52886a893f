"""Measures service.py: requests per second and latencies, compared with direct calls.

    python load.py model                      # starts service.py and stops it again
    python load.py model --clients 1 --molecules 32

Each client sends its next request when it has the answer to the last one. The direct
calls are those of `ExportedModel.predict`, with the molecules of one request each, in
this process and one after the other.
"""

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

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
    """Return the answer to a request."""
    body = json.dumps({"smiles": smiles})
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/predict", body, headers)
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {text[:200].decode()}")
    return json.loads(text)


def wait_until_served(port: int, seconds: float = 60) -> None:
    """Wait for `/health`."""
    end = time.monotonic() + seconds
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            if time.monotonic() > end:
                raise
        finally:
            connection.close()
        time.sleep(0.1)


def load(port: int, clients: int, molecules: int, requests: int) -> tuple[float, list]:
    """Return the requests per second, and the seconds that each request took."""
    latencies: list[list[float]] = [[] for _ in range(clients)]

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for i in range(requests // clients):
            start = time.perf_counter()
            post(connection, request_of(number + i, molecules))
            latencies[number].append(time.perf_counter() - start)
        connection.close()

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    answered = [value for values in latencies for value in values]
    return len(answered) / seconds, answered


def direct(folder: Path, molecules: int, requests: int) -> tuple[float, list]:
    """Return the calls per second, and the seconds that each call took."""
    from service import Predictor

    predict = Predictor(folder)
    predict(request_of(0, molecules))
    taken = []
    for i in range(requests):
        start = time.perf_counter()
        predict(request_of(i, molecules))
        taken.append(time.perf_counter() - start)
    return len(taken) / sum(taken), taken


def row(name: str, rate: float, taken: list, molecules: int) -> str:
    """Return a line of the report."""
    p50, p99 = 1000 * np.percentile(taken, [50, 99])
    return (
        f"{name:>10}: {rate:7.1f} requests/s, {rate * molecules:8.1f} molecules/s, "
        f"p50 {p50:6.1f} ms, p99 {p99:6.1f} ms"
    )


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="a folder that export.py wrote")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--molecules", type=int, default=1, help="of a request")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--port", type=int, default=8765)
    options = parser.parse_args(arguments)
    size = options.molecules
    print(row("direct", *direct(options.model, size, options.requests), size))
    script = Path(__file__).with_name("service.py")
    command = [sys.executable, script, options.model, "--port", str(options.port)]
    service = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until_served(options.port)
        for clients in options.clients:
            rate, taken = load(options.port, clients, size, options.requests)
            print(row(f"{clients} clients", rate, taken, size), flush=True)
    finally:
        service.terminate()
        service.wait()


if __name__ == "__main__":
    main()
