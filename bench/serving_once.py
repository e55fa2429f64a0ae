"""Throughput of MLServer, Ray Serve and `mlflow models serve` beside ours, in turns.

All of it runs in a network namespace that has only the loopback device: Ray Serve with HAProxy listens on all
addresses, and no server can report its use.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import serving
from bench.environments import pinned, programs
from bench.measure import REPOSITORY, Result, row, save
from bench.serving import CONNECTIONS, OPTIONS, OURS, SCRIPT, SECONDS
from bench.serving_peers import PATHS, inputs_of
from gridmill.domain.serving import ServedVersion, ServiceOrder
from gridmill.jobs.training.run import run
from gridmill.serving.openapi import example_row
from gridmill.serving.served_model import ServedModel, load_version

AREA = "Real-time predictions: servers measured once"
ROUNDS = min(3, serving.ROUNDS)
MLSERVER, RAY, MLFLOW = "mlserver", "ray", "mlflow"
TITLES = {MLSERVER: "MLServer", RAY: "Ray Serve", MLFLOW: "`mlflow models serve`"}
SAME = 1e-6
"""The largest allowed difference between the predictions of two servers."""
PATIENCE_SECONDS = 180.0
QUIET = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_AUTH_MODE": "disabled",  # else Ray writes a token into the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",
    "UVICORN_ACCESS_LOG": "false",
    "UVICORN_LOG_LEVEL": "error",
}
HOW = f"""
One row in each request, as above: each server has one core, which all its processes share; the client (wrk,
{SECONDS:g} s a time, {ROUNDS} rounds in which all servers take turns) has another core. All predict with the
same loaded model, and each must give the prediction that ours gives. Ours answers `POST /predict` with named
fields. MLServer answers `POST /v2/models/m/infer`, and the scoring server of MLflow `POST /invocations`, both
with one tensor of numbers, which is less work than named columns; so the row has no missing value. Settings:
MLServer without debug mode, without worker processes, with batches of up to 64; Ray Serve with one replica,
batches of up to 64, HAProxy and its optimisations for throughput (`RAY_SERVE_ENABLE_HA_PROXY`,
`RAY_SERVE_THROUGHPUT_OPTIMIZED`); MLflow with one worker. Access logs are off, and uvicorn has uvloop and
httptools. Ray's own processes, which need processor time without requests, go on while another server is
measured: Ray Serve fails when they are stopped for long.
"""
_HAPROXY_FILES = {
    "CONFIG_FILE_LOC": "haproxy.cfg",
    "SOCKET_PATH": "admin.sock",
    "METRICS_SOCKET_PATH": "metrics.sock",
    "SERVER_STATE_BASE": "",
    "SERVER_STATE_FILE": "server-state",
}

_DATA = import_module("tests.kit.learning_data")  # the types of the tests are not checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model in a folder, with a row that it accepts and the numbers that the row becomes."""

    name: str
    version: ServedVersion
    root: Path
    example: Any
    inputs: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server with its own form of the same request; `prediction` finds the number in its answer."""

    address: serving.Server
    path: str
    body: str
    prediction: Callable[[Any], float]


def main() -> None:
    missing = [name for name in ("wrk", "unshare", "ip") if shutil.which(name) is None]
    if missing or len(os.sched_getaffinity(0)) < 2:
        print("not measured: needs two cores, wrk, unshare and ip (apt install wrk util-linux iproute2)")
        return
    refused = dict(chain.from_iterable(_not_installed(name) for name in TITLES))
    apart = ("unshare", "--net", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")))
    here = (sys.executable, "-m", "bench.serving_once", json.dumps(refused))
    subprocess.run((*apart, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *here), check=True)


def _not_installed(name: str) -> Iterator[tuple[str, str]]:
    try:
        programs(name)
    except subprocess.CalledProcessError as error:
        yield name, f"its installation failed: {error}"


def measure(refused: dict[str, str]) -> None:
    """Measure the servers that are installed; `refused` names the others, each with the reason."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, serving.CLIENT_CORE)
    results: list[Result] = []
    for model in OPTIONS:
        with TemporaryDirectory(prefix="gm-once-") as folder, ExitStack() as stack:
            case = _case(model, Path(folder))
            results += _compared(case, _started(stack, case, refused), refused)
    os.sched_setaffinity(0, cores)
    missing = "".join(f" {TITLES[name]} was not measured: {why}." for name, why in refused.items())
    versions = ", ".join(pinned(name) for name in TITLES if name not in refused)
    save("serving-once", results, how=f"{HOW} {versions}.{missing}")


def _case(model: str, root: Path) -> Case:
    dataset = _DATA.write_dataset(root, _DATA.series())
    run(_DATA.training_context(root, dataset, model, **OPTIONS[model]))
    version = ServedVersion(label=f"{model}@1", folder=str(root / "outputs" / "m"))
    served: ServedModel = load_version(version, "1", 1)
    example = without_missing(example_row(served))
    inputs = inputs_of(served.card, [example]).tolist()
    return Case(name=model, version=version, root=root, example=example, inputs=inputs)


def without_missing(example: Any) -> Any:
    """JSON has no NaN, which a tensor would need for a missing value."""
    if isinstance(example, list):
        return [without_missing(one) for one in example]
    return {name: 0.5 if value is None else value for name, value in example.items()}


def _started(stack: ExitStack, case: Case, refused: dict[str, str]) -> dict[str, Server]:
    """All servers that start and predict what ours predicts. Adds the others to `refused`."""
    servers = {OURS: stack.enter_context(_ours(case))}
    wanted = _prediction(servers[OURS])
    for name, start in STARTS.items():
        if name in refused:
            continue
        try:
            server = stack.enter_context(start(case))
            found = _prediction(server)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            refused[name] = f"{error} ({case.name})"
            continue
        if abs(found - wanted) > SAME * max(1.0, abs(wanted)):
            raise RuntimeError(f"{name} predicts {found}, not {wanted}")
        servers[name] = server
    return servers


def _prediction(server: Server) -> float:
    with serving.awake(server.address):
        return server.prediction(_answer(server))


def _answer(server: Server) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.address.port}{server.path}",
        server.body.encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def _answers(server: Server) -> bool:
    """A server may accept connections before it can predict."""
    try:
        server.prediction(_answer(server))
    except (OSError, KeyError, ValueError):
        return False
    return True


def _compared(case: Case, servers: dict[str, Server], refused: dict[str, str]) -> Iterator[Result]:
    for name, server in servers.items():
        (case.root / f"{name}.lua").write_text(SCRIPT % json.dumps(server.body))
    for connections in CONNECTIONS:
        rates: dict[str, list[float]] = {name: [] for name in servers}
        for number in range(ROUNDS + 1):
            for name, server in tuple(servers.items()):
                try:
                    rate = _rate(case, name, server, connections)
                except RuntimeError as error:
                    if name == OURS:
                        raise
                    refused[name] = f"{str(error).splitlines()[0]} ({case.name}, {connections} connections)"
                    del servers[name], rates[name]
                    continue
                what = f"{case.name} {connections} {name}"
                print(f"  {number}/{ROUNDS} {what}: {rate:.0f} requests/s", flush=True)
                if number:  # the first round warms up
                    rates[name].append(rate)
        yield from rows_of(f"{case.name}, {connections} connection{'s' * (connections > 1)}", rates)


def _rate(case: Case, name: str, server: Server, connections: int) -> float:
    with serving.awake(server.address):
        script = case.root / f"{name}.lua"
        return serving.requests_per_second(server.address.port, connections, script, server.path)


def rows_of(what: str, rates: Mapping[str, list[float]]) -> Iterator[Result]:
    middle = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        yield row(
            AREA, f"{what}: {name}", middle[name], "req/s", low=min(values), high=max(values), runs=ROUNDS
        )
    peers = [name for name in middle if name != OURS]
    if peers:
        best = max(peers, key=lambda name: middle[name])
        yield row(AREA, f"{what}: {OURS} / best of these ({best})", middle[OURS] / middle[best], "x")


@contextmanager
def _ours(case: Case) -> Iterator[Server]:
    port = serving.free_port()
    order = ServiceOrder(name="bench", port=port, versions=(case.version,))
    with serving.our_server(order, case.root / "service"):
        yield Server(
            address=serving.Server(port=port),
            path="/predict",
            body=json.dumps({"rows": [case.example]}),
            prediction=lambda answer: float(answer["predictions"][0]["prediction"]),
        )


@contextmanager
def _mlserver(case: Case) -> Iterator[Server]:
    port, folder = serving.free_port(), case.root / MLSERVER
    folder.mkdir()
    settings = {
        "debug": False,
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": serving.free_port(),
        "metrics_port": serving.free_port(),
        "parallel_workers": 0,
    }
    model = {
        "name": "m",
        "implementation": "bench.serving_mlserver.Runtime",
        "max_batch_size": 64,
        "max_batch_time": 0.001,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    tensor = {"name": "rows", "datatype": "FP64", "shape": _shape(case.inputs), "data": case.inputs}
    server = Server(
        address=serving.Server(port=port),
        path="/v2/models/m/infer",
        body=json.dumps({"inputs": [tensor]}),
        prediction=lambda answer: float(answer["outputs"][0]["data"][0]),
    )
    command = [str(programs(MLSERVER) / "mlserver"), "start", str(folder)]
    with serving.server_process(
        command, _environment(case), lambda: _answers(server), patience_seconds=PATIENCE_SECONDS
    ):
        yield server


def _shape(values: Any) -> list[int]:
    return [len(values), *_shape(values[0])] if isinstance(values, list) else []


@contextmanager
def _mlflow(case: Case) -> Iterator[Server]:
    port, folder, bin_folder = serving.free_port(), str(case.root / MLFLOW), programs(MLFLOW)
    environment = _environment(case)
    save_model = (str(bin_folder / "python"), "-m", "bench.serving_mlflow", case.version.folder, folder)
    subprocess.run(save_model, check=True, cwd=REPOSITORY, env=environment)
    server = Server(
        address=serving.Server(port=port),
        path="/invocations",
        body=json.dumps({"inputs": case.inputs}),
        prediction=lambda answer: float(answer["predictions"][0]),
    )
    place = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--env-manager", "local"]
    command = [str(bin_folder / "mlflow"), "models", "serve", "--model-uri", folder, *place]
    # It starts `uvicorn` by its name.
    environment["PATH"] = f"{bin_folder}{os.pathsep}{environment['PATH']}"
    with serving.server_process(
        command, environment, lambda: _answers(server), patience_seconds=PATIENCE_SECONDS
    ):
        yield server


@contextmanager
def _ray(case: Case) -> Iterator[Server]:
    port, folder = serving.free_port(), case.root / RAY
    folder.mkdir()
    files = {f"RAY_SERVE_HAPROXY_{name}": str(folder / file) for name, file in _HAPROXY_FILES.items()}
    optimised = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
    body = json.dumps({"rows": [case.example]})
    # Ray's processes end with the PID namespace.
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*apart, str(programs(RAY) / "python"), "-m", "bench.serving_ray"]
    command += [str(port), case.version.folder, str(folder)]
    server = Server(
        address=serving.Server(port=port),
        path="/predict",
        body=body,
        prediction=lambda answer: float(answer["predictions"][0]["prediction"]),
    )
    environment = _environment(case) | files | optimised
    # On one core a part of Ray may start too late for another part.
    cores = serving.SERVER_CORE | serving.CLIENT_CORE
    with serving.server_process(
        command, environment, lambda: _answers(server), patience_seconds=PATIENCE_SECONDS, cores=cores
    ) as process_id:
        serving.pin_tree(process_id)
        yield server


def _environment(case: Case) -> dict[str, str]:
    of_model = {"GRIDMILL_BENCH_MODEL": case.version.folder, "PYTHONPATH": str(REPOSITORY)}
    return dict(os.environ) | QUIET | of_model | {PATHS: os.pathsep.join(sys.path)}


STARTS: dict[str, Callable[[Case], AbstractContextManager[Server]]] = {
    MLSERVER: _mlserver,
    RAY: _ray,
    MLFLOW: _mlflow,
}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(json.loads(sys.argv[1]))
    else:
        main()
