"""How long a user waits for the first answer of a service: after its start in a pod that is up, and after a
time without replicas."""

import http.client
import json
import socket
import subprocess
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from bench.contestants import GRIDMILL, environment, short_folder
from bench.grids import clear, up
from bench.measure import Result, Series, at_most, save
from gridmill.domain.service import ServiceState
from gridmill.domain.serving import Scaling
from gridmill.domain.serving import ServiceState as ProcessState
from gridmill.ports.grid import Grid

AREA = "Real-time predictions"
STARTS, LIMIT_SECONDS = 5, 120.0
WARM_SECONDS, ZERO_SECONDS = 2.0, 3.0
HOW = f"""
Warm pod: `start_service` with gradient-boosted trees and one replica, on a resource whose pod is up, until
`POST /predict` is answered at the port of the service; {STARTS} starts, each after the end of the service
before. From zero: a service without replicas gets a request, which waits until the first replica answers it.
"""
PIPELINE = """
pipeline: w
jobs:
  rows: {sink: {source: {path: rows.csv}}}
  features:
    dataset:
      basis: {table: rows, time: day}
      label: {column: y, steps: 1}
      split: {validation: 0.2, test: 0.2}
  m: {training: {dataset: features, model: gbdt, trees: 20}}
"""
_MODELS, _SERVICES = (import_module(f"tests.kit.{name}") for name in ("served_models", "services"))


def main() -> None:
    with short_folder() as folder:
        warm, zero = _warm(Path(folder)), _from_zero(Path(folder))
    results: list[Result] = [
        at_most(WARM_SECONDS, AREA, "start to first answer, warm pod", warm.median, "s", **warm.spread),
        at_most(ZERO_SECONDS, AREA, "first answer from zero replicas", zero.median, "s", **zero.spread),
    ]
    save("service-starts", results, how=HOW)


def _warm(folder: Path) -> Series:
    env = environment(folder, GRIDMILL_HOME=str(folder / "home"))
    with up(folder / "home", env) as node:
        _train(folder, env)
        port = _free_port()
        seconds = [_start(node.grid, port) for _ in range(1 + STARTS)]
        clear(node.grid)
    return Series(seconds[1:])  # the first start also starts the pod


def _train(folder: Path, env: dict[str, str]) -> None:
    rows = [f"2024-{1 + day // 28:02}-{1 + day % 28:02},{day % 7},{day % 7 * 2}" for day in range(112)]
    (folder / "rows.csv").write_text("\n".join(["day,x,y", *rows, ""]))
    (folder / "pipeline.yaml").write_text(PIPELINE)
    command = (str(GRIDMILL), "run", "pipeline.yaml")
    subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)


def _start(grid: Grid, port: int) -> float:
    begin = time.monotonic()
    grid.start_service("rain", model="w/m@1", replicas=1, port=port)
    while _answer(port, {"rows": [{"x": 1.5, "y": 3.0}]}) != 200:
        if time.monotonic() - begin > LIMIT_SECONDS:
            raise TimeoutError(f"the service does not answer: {grid.service('rain').message}")
        time.sleep(0.005)
    seconds = time.monotonic() - begin
    grid.stop_service("rain")
    while grid.service("rain").state is not ServiceState.STOPPED:
        time.sleep(0.05)
    return seconds


def _from_zero(folder: Path) -> Series:
    terms = Scaling(least=0, most=1, rate_per_replica=1e6, down_seconds=0.5, idle_seconds=0.5)
    order = _MODELS.order_of(_MODELS.linear_model(folder / "m"), scaling=terms)
    seconds: list[float] = []
    with _SERVICES.Service(folder / "s", order) as service:
        for _ in range(STARTS):
            _SERVICES.wait_for("no replica", lambda: _is_at_zero(service))
            begin = time.monotonic()
            status = _answer(service.report().port, {"rows": [_MODELS.row()]})
            seconds.append(time.monotonic() - begin)
            if status != 200:
                raise RuntimeError(f"the first request got status {status}")
    return Series(seconds)


def _is_at_zero(service: object) -> bool:
    report = service.report()  # type: ignore[attr-defined]
    return report.state == ProcessState.READY and report.wanted == 0 and not report.replicas


def _answer(port: int, body: object) -> int:
    """The status of a prediction, or 0 where nothing answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    with suppress(OSError, http.client.HTTPException):
        connection.request("POST", "/predict", json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().status
    connection.close()
    return 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
