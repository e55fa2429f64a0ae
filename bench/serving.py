"""Throughput and latency of a service beside other servers of models, in turns, and beside a bare server."""

import json
import math
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench import serving_nginx
from bench.environments import pinned, programs
from bench.measure import REPOSITORY, Result, at_least, at_most, row, save
from bench.serving_peers import PATHS
from gridmill.domain.serving import ServedVersion, ServiceOrder, Upstream
from gridmill.jobs.model_files import load_model
from gridmill.jobs.training.run import run
from gridmill.serving.openapi import example_row
from gridmill.serving.served_model import load_version
from gridmill.serving.service_files import read_report, write_order

AREA = "Real-time predictions"
ROUNDS = int(os.environ.get("GRIDMILL_BENCH_ROUNDS", "5"))
SECONDS = float(os.environ.get("GRIDMILL_BENCH_SECONDS", "2"))
CONNECTIONS = (1, 16, 64)
OPTIONS: dict[str, dict[str, object]] = {
    "mlp": {"hidden": 16, "epochs": 12},
    "lstm": {"sequence": 12, "hidden": 16, "epochs": 3},
    "gbdt": {"trees": 60},
}
OURS, ROUTED, PROXIED, BARE, FASTAPI, LITSERVE, BENTOML = (
    "gridmill",
    "router",
    "nginx",
    "bare",
    "fastapi",
    "litserve",
    "bentoml",
)
RIVALS = (FASTAPI, LITSERVE, BENTOML)
INSTALLED = (LITSERVE, BENTOML)
"""The peers that run in an environment of their own."""
SHARE_OF_SLOWEST = 0.8
PACED_CONNECTIONS = 128
"""So many that a request which is due is sent although earlier answers are missing."""
LOW_RATE = 50.0
"""Requests per second, for the time that the server adds to a prediction."""
PACED_REQUESTS = 300
"""A measurement of latency takes longer than SECONDS, up to 10 s, until it has so many requests."""
SERVER_CORE, CLIENT_CORE = {0}, {1}
HOW = f"""
`POST /predict` with one row in JSON. Each server has one core, which all its processes share, and one model;
the client has another core. Throughput: wrk, {SECONDS:g} s a time, {ROUNDS} rounds in which all servers take
turns. Latency: a client that sends at a fixed rate, {SHARE_OF_SLOWEST:.0%} of the maximum of the slowest
peer, on {PACED_CONNECTIONS} connections, whether or not earlier requests were answered, and counts from the
time at which a request was due. The client's own lateness is a part of each latency. The bare server is an
ASGI application on the same HTTP library (uvicorn with httptools) that decodes the same payload and answers a
constant. FastAPI and BentoML have an `async` route with a pydantic model of the row; LitServe collects
requests in batches. All predict with the same loaded model. Ours validates, computes batches, counts metrics,
and returns request ids. `router` is ours behind the process that passes requests on to replicas on other
machines, and `nginx` is ours behind nginx with one worker; their replica has the same core. Their processor
time for one request is without that of the replica.
"""
SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = %s
function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('\\nRESULT {"requests": %%d, "microseconds": %%d, "failed": %%d}\\n',
    summary.requests, summary.duration, failed))
end
"""

_DATA = import_module("tests.kit.learning_data")  # the types of the tests are not checked
_PACED = import_module("tests.kit.paced_load")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that accepts connections at `port`. A server that needs processor time without requests
    (LitServe) names its first process, which is stopped with all its descendants while others are
    measured. A server in front of another one names its process, whose processor time is measured."""

    port: int
    paused: int | None = None
    proxy: int | None = None


def main() -> None:
    if shutil.which("wrk") is None or len(os.sched_getaffinity(0)) < 2:
        print("not measured: needs wrk (apt install wrk) and two cores")
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CLIENT_CORE)
    for name in INSTALLED:
        programs(name)
    results: list[Result] = []
    for model in OPTIONS:
        with TemporaryDirectory(prefix="gm-bench-") as folder:
            results += _measured(model, Path(folder))
    os.sched_setaffinity(0, cores)
    versions = ", ".join(pinned(name) for name in INSTALLED)
    save("serving", results, how=f"{HOW} {_fastapi_version()}, {versions}.")


def _fastapi_version() -> str:
    from importlib.metadata import version

    return f"fastapi=={version('fastapi')}"


def _measured(model: str, root: Path) -> Iterator[Result]:
    dataset = _DATA.write_dataset(root, _DATA.series())
    run(_DATA.training_context(root, dataset, model, **OPTIONS[model]))
    folder = root / "outputs" / "m"
    version = ServedVersion(label=f"{model}@1", folder=str(folder))
    served = load_version(version, "1", 1)
    body = json.dumps({"rows": [example_row(served)]})
    yield from _throughput(model, version, root, body)
    yield from _latency(model, version, root, body)


def _servers(
    stack: ExitStack, names: tuple[str, ...], version: ServedVersion, root: Path
) -> dict[str, Server]:
    return {name: stack.enter_context(_server(name, version, root)) for name in names}


def _throughput(model: str, version: ServedVersion, root: Path, body: str) -> Iterator[Result]:
    (root / "post.lua").write_text(SCRIPT % json.dumps(body))
    with ExitStack() as stack:
        servers = _servers(stack, (OURS, BARE, *RIVALS), version, root)
        servers[ROUTED] = stack.enter_context(_router(servers[OURS].port, root))
        nginx = serving_nginx.program()
        if nginx is not None:
            servers[PROXIED] = stack.enter_context(_nginx(nginx, servers[OURS].port, root))
        for connections in CONNECTIONS:
            yield from _compared(model, connections, servers, root)


def _compared(model: str, connections: int, servers: Mapping[str, Server], root: Path) -> Iterator[Result]:
    rates: dict[str, list[float]] = {name: [] for name in servers}
    proxy_micros: dict[str, list[float]] = {}
    for number in range(ROUNDS + 1):
        for name, server in servers.items():
            before = _proxy_seconds(server)
            with awake(server):
                rate = requests_per_second(server.port, connections, root / "post.lua")
            if number:  # the first round warms up
                rates[name].append(rate)
            if number and server.proxy is not None:
                used = (_proxy_seconds(server) - before) / (rate * _wrk_seconds())
                proxy_micros.setdefault(name, []).append(1e6 * used)
            print(f"  {number}/{ROUNDS} {model} {connections} {name}: {rate:.0f} requests/s", flush=True)
    what = f"{model}, {connections} connection{'s' * (connections > 1)}"
    middle = {name: statistics.median(values) for name, values in rates.items()}
    (root / "rates.json").write_text(json.dumps(middle))
    for name, values in rates.items():
        yield row(
            AREA, f"{what}: {name}", middle[name], "req/s", low=min(values), high=max(values), runs=ROUNDS
        )
    for name, values in proxy_micros.items():
        used = statistics.median(values)
        what_used = f"{what}: {name}, processor time per request"
        yield row(AREA, what_used, used, "µs", low=min(values), high=max(values), runs=ROUNDS)
    best = max(RIVALS, key=lambda name: middle[name])
    ratios = {
        f"{OURS} / {BARE}": middle[OURS] / middle[BARE],
        f"{OURS} / best peer ({best})": middle[OURS] / middle[best],
    }
    for (name, ratio), limit in zip(ratios.items(), (0.5, 3.0), strict=True):
        wanted = connections > 1
        yield (
            at_least(limit, AREA, f"{what}: {name}", ratio, "x")
            if wanted
            else row(AREA, f"{what}: {name}", ratio, "x")
        )


def _proxy_seconds(server: Server) -> float:
    return 0.0 if server.proxy is None else serving_nginx.cpu_seconds(server.proxy)


def _wrk_seconds() -> int:
    return max(1, round(SECONDS))


def requests_per_second(port: int, connections: int, script: Path, path: str = "/predict") -> float:
    """Raises RuntimeError if a request failed."""
    command = (
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{_wrk_seconds()}s",
        "-s",
        str(script),
        f"http://127.0.0.1:{port}{path}",
    )
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    told = json.loads(text.partition("RESULT ")[2])
    if told["failed"]:
        raise RuntimeError(f"{told['failed']} requests failed:\n{text}")
    return float(told["requests"] / (told["microseconds"] / 1e6))


def _latency(model: str, version: ServedVersion, root: Path, body: str) -> Iterator[Result]:
    slowest = min(json.loads((root / "rates.json").read_text())[name] for name in RIVALS)
    rate = SHARE_OF_SLOWEST * slowest
    latencies: dict[str, list[float]] = {}
    lateness: list[float] = []
    with ExitStack() as stack:
        servers = _servers(stack, (OURS, *RIVALS), version, root)
        for number in range(ROUNDS + 1):
            for name, server in servers.items():
                with awake(server):
                    load = _paced(server.port, body, rate, PACED_CONNECTIONS)
                if number:
                    latencies.setdefault(name, []).append(load.quantile(0.99))
                    lateness.append(load.lateness_quantile(0.99))
        slow = [_paced(servers[OURS].port, body, LOW_RATE, 1) for _ in range(ROUNDS)]
    middle = {name: statistics.median(values) for name, values in latencies.items()}
    for name, values in latencies.items():
        what = f"{model}, {rate:.0f} requests/s: p99 of {name}"
        yield row(AREA, what, middle[name], "ms", low=min(values), high=max(values), runs=ROUNDS)
    best = min(middle[name] for name in RIVALS)
    yield at_most(
        1.0,
        AREA,
        f"{model}, {rate:.0f} requests/s: p99 of {OURS} / lowest of the peers",
        middle[OURS] / best,
        "x",
    )
    yield row(
        AREA,
        f"{model}, {rate:.0f} requests/s: p99 of the client's own lateness",
        statistics.median(lateness),
        "ms",
        low=min(lateness),
        high=max(lateness),
        runs=len(lateness),
    )
    one = statistics.median(load.quantile(0.5) for load in slow)
    above = f"{model}, {LOW_RATE:g} requests/s: p50 above the bare prediction"
    yield at_most(1.0, AREA, f"{above} at this rate", one - _bare_predict_ms(version, LOW_RATE), "ms")
    yield row(AREA, f"{above} in a loop", one - _bare_predict_ms(version), "ms")


def _paced(port: int, body: str, rate: float, connections: int) -> Any:
    load = _PACED.PacedLoad(port, body.encode(), rate, connections, exact=True)
    try:
        load.run(max(SECONDS, min(10.0, PACED_REQUESTS / rate)))
    finally:
        load.close()
    return load


def _bare_predict_ms(version: ServedVersion, rate: float = math.inf) -> float:
    """The median time in ms of one prediction by the loaded model in this process, at `rate` predictions/s. A
    process that has slept finds neither the model nor its own code in the caches of its core, like the server
    at this rate."""
    predictor = load_model(Path(version.folder))
    width = len(predictor.card.inputs)
    shape = (1, width) if predictor.card.sequence is None else (1, predictor.card.sequence, width)
    one = np.zeros(shape)
    times = []
    for _ in range(200):
        time.sleep(1 / rate)
        begin = time.perf_counter()
        predictor.predict(one)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


@contextmanager
def awake(server: Server) -> Iterator[None]:
    if server.paused is None:
        yield
        return
    signal_tree(server.paused, signal.SIGCONT)
    try:
        yield
    finally:
        signal_tree(server.paused, signal.SIGSTOP)


def signal_tree(root: int, number: signal.Signals) -> None:
    """Signal a process and all its descendants."""
    for process in _tree(root):
        with suppress(ProcessLookupError):
            os.kill(process, number)


def pin_tree(root: int) -> None:
    """Put all threads of a process and of its descendants on the core of servers."""
    for process in _tree(root):
        with suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{process}/task"):
                os.sched_setaffinity(int(thread), SERVER_CORE)


def _tree(root: int) -> Iterator[int]:
    parents = dict(chain.from_iterable(map(_parent, Path("/proc").glob("[0-9]*"))))
    for process in {root, *parents}:
        ancestor = process
        while ancestor != root and ancestor in parents:
            ancestor = parents[ancestor]
        if ancestor == root:
            yield process


def _parent(folder: Path) -> Iterator[tuple[int, int]]:
    with suppress(OSError):  # it has ended
        yield int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def _server(name: str, version: ServedVersion, root: Path) -> Iterator[Server]:
    port = free_port()
    if name == OURS:
        order = ServiceOrder(name="bench", port=port, versions=(version,))
        with our_server(order, root / "service"):
            yield Server(port=port)
        return
    env = os.environ | {PATHS: os.pathsep.join(sys.path)}
    if name == BENTOML:
        env |= {
            "PYTHONPATH": str(REPOSITORY),
            "BENTOML_HOME": str(root / "bento"),
            "BENTOML_DO_NOT_TRACK": "True",
            "GRIDMILL_BENCH_MODEL": version.folder,
        }
    command = _command(name, str(port), version.folder)
    with server_process(command, env, lambda: answers(port)) as group:
        yield Server(port=port, paused=group if name in INSTALLED else None)


def _command(name: str, port: str, folder: str) -> list[str]:
    if name == LITSERVE:
        return [str(programs(name) / "python"), "-m", "bench.serving_litserve", port, folder]
    if name == BENTOML:
        place = ["--host", "127.0.0.1", "--port", port]
        return [
            str(programs(name) / "bentoml"),
            "serve",
            "--quiet",
            *place,
            "bench.serving_bentoml:Predictor",
        ]
    return [sys.executable, "-m", "bench.serving_peers", name, port, folder]


@contextmanager
def _router(to: int, root: Path) -> Iterator[Server]:
    port = free_port()
    upstream = Upstream(link="tcp", attempt_id="bench", settings={"host": "127.0.0.1", "port": str(to)})
    with our_server(ServiceOrder(name="bench", port=port, versions=(), upstream=upstream), root / "router"):
        report = read_report(root / "router")
        assert report is not None
        yield Server(port=port, proxy=report.replicas[0].pid)


@contextmanager
def _nginx(program: str, to: int, root: Path) -> Iterator[Server]:
    port = free_port()
    command = serving_nginx.command(program, port, to, root / "nginx")
    with server_process(command, dict(os.environ), lambda: answers(port)) as process:
        yield Server(port=port, proxy=process)


@contextmanager
def our_server(order: ServiceOrder, folder: Path) -> Iterator[None]:
    """Our parent process listens before a replica is ready, so its report is read."""
    folder.mkdir(exist_ok=True)
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    write_order(folder, order)

    def ready() -> bool:
        return report.exists() and '"state":"ready"' in report.read_text().split("replicas")[0]

    with server_process([sys.executable, "-m", "gridmill.serving", str(folder)], dict(os.environ), ready):
        yield


@contextmanager
def server_process(
    command: list[str],
    env: dict[str, str],
    ready: Callable[[], bool],
    *,
    patience_seconds: float = 60.0,
    cores: set[int] = SERVER_CORE,
) -> Iterator[int]:
    """A server on its core. Gives its process id, which is also the number of its process group."""
    process = subprocess.Popen(
        ("taskset", "--cpu-list", ",".join(map(str, cores)), *command),
        cwd=REPOSITORY,
        env=env,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + patience_seconds
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a server did not start: {' '.join(command)}")
            time.sleep(0.05)
        yield process.pid
    finally:
        tree = list(_tree(process.pid))  # some have sessions of their own
        signal_tree(process.pid, signal.SIGCONT)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        for one in tree:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


if __name__ == "__main__":
    main()
