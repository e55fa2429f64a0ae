"""Throughput and latency of a service beside a bare server and FastAPI, one process each, in turns."""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Result, at_least, row, save
from gridmill.domain.serving import ServedVersion, ServiceOrder
from gridmill.jobs.training.run import run
from gridmill.serving.openapi import example_row
from gridmill.serving.served_model import load_version
from gridmill.serving.service_files import write_order

AREA = "Real-time predictions"
ROUNDS = int(os.environ.get("GRIDMILL_BENCH_ROUNDS", "5"))
SECONDS = float(os.environ.get("GRIDMILL_BENCH_SECONDS", "2"))
CONNECTIONS = (1, 16, 64)
OPTIONS: dict[str, dict[str, object]] = {
    "mlp": {"hidden": 16, "epochs": 12},
    "lstm": {"sequence": 12, "hidden": 16, "epochs": 3},
    "gbdt": {"trees": 60},
}
OURS, BARE, FASTAPI = "gridmill", "bare", "fastapi"
HOW = f"""
`POST /predict` with one row in JSON, by a closed-loop client in a process of its own, {SECONDS:g} s a time,
{ROUNDS} rounds in which all servers take turns. Each server is one process with one model and one thread.
The bare server is an ASGI application on the same HTTP library (uvicorn with httptools) that decodes the same
payload and answers a constant. FastAPI has an `async` route, a pydantic model of the row, and the same loaded
model, one request at a time. Ours validates, computes batches, counts metrics, and returns request ids.
"""


_DATA = import_module("tests.kit.learning_data")  # the types of the tests are not checked


def main() -> None:
    results: list[Result] = []
    for model in OPTIONS:
        with TemporaryDirectory(prefix="gm-bench-") as folder:
            results += _measured(model, Path(folder))
    save("serving", results, how=HOW)


def _measured(model: str, root: Path) -> list[Result]:
    dataset = _DATA.write_dataset(root, _DATA.series())
    run(_DATA.training_context(root, dataset, model, **OPTIONS[model]))
    folder = root / "outputs" / "m"
    version = ServedVersion(label=f"{model}@1", folder=str(folder))
    body = json.dumps({"rows": [example_row(load_version(version, "1", 1))]})
    with ExitStack() as stack:
        ports = {name: stack.enter_context(_server(name, version, root)) for name in (OURS, BARE, FASTAPI)}
        return [one for number in CONNECTIONS for one in _compared(model, number, ports, body)]


def _compared(model: str, connections: int, ports: dict[str, int], body: str) -> Iterator[Result]:
    rates: dict[str, list[float]] = {name: [] for name in ports}
    late: dict[str, list[float]] = {name: [] for name in ports}
    for _ in range(ROUNDS):
        for name, port in ports.items():
            rate, _, p99 = _load(port, connections, body)
            rates[name].append(rate)
            late[name].append(p99)
    what = f"{model}, {connections} connections"
    middle = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        note = f"p99 {statistics.median(late[name]):.0f} µs"
        spread = {"low": min(values), "high": max(values), "runs": len(values)}
        yield row(AREA, f"{what}: {name}", middle[name], "req/s", note=note, **spread)
    limits = (0.5, 3.0) if connections > 1 else (0.0, 0.0)
    for name, limit in zip((BARE, FASTAPI), limits, strict=True):
        ratio = middle[OURS] / middle[name]
        if limit:
            yield at_least(limit, AREA, f"{what}: {OURS} / {name}", ratio, "x")
        else:
            yield row(AREA, f"{what}: {OURS} / {name}", ratio, "x")


def _load(port: int, connections: int, body: str) -> tuple[float, float, float]:
    arguments = (str(port), str(connections), str(SECONDS), "/predict", body)
    command = (sys.executable, "-m", "bench.serving_load", *arguments)
    rate, middle, late = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return rate, middle, late


@contextmanager
def _server(name: str, version: ServedVersion, root: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    if name == OURS:
        write_order(root, ServiceOrder(name="bench", port=port, versions=(version,)))
        command = [sys.executable, "-m", "gridmill.serving", str(root)]
    else:
        command = [sys.executable, "-m", "bench.serving_peers", name, str(port), version.folder]
    process = subprocess.Popen(command)
    try:
        _wait_for(port, process, root if name == OURS else None)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(port: int, process: "subprocess.Popen[bytes]", folder: Path | None) -> None:
    """Our parent process listens before a replica is ready, so its report is read."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        report = folder and folder / "report.json"
        if report and not (report.exists() and '"state":"ready"' in report.read_text().split("replicas")[0]):
            time.sleep(0.05)
            continue
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("a server did not start")


if __name__ == "__main__":
    main()
