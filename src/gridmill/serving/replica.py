"""A replica: a process that loads the versions of a service, and answers requests on the socket of the parent
process.

The parent process passes the order on standard input, and two file descriptors: the listening socket, and a
pipe to which the replica writes its signs of life.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from gridmill.codec import decode
from gridmill.domain.serving import ServiceOrder
from gridmill.errors import GridmillError, explained
from gridmill.http.connections import Acceptor, Limits, raise_open_files
from gridmill.process_log import BoundedHandler
from gridmill.process_memory import share_memory_areas
from gridmill.serving.api_keys import ApiKeys
from gridmill.serving.app import Application
from gridmill.serving.batching import limits_of, make_batcher
from gridmill.serving.chain import HostedStage, chained_of
from gridmill.serving.direct import DirectConnection
from gridmill.serving.drift_counter import DriftFile, drift_counter
from gridmill.serving.gpu_memory import take_share
from gridmill.serving.hosting import HostedModel, Versions
from gridmill.serving.keyed_features import keyed_of
from gridmill.serving.metrics import SHADOW_DROPPED, Metrics, escaped
from gridmill.serving.parent_process import end_with_parent, write_beat
from gridmill.serving.request_log import RequestLogWriter
from gridmill.serving.served_model import ServedModel, SharedStages, load_version, version_names
from gridmill.serving.service_files import api_keys_file
from gridmill.serving.shadow_copies import CopyWriter, WaitingBytes
from gridmill.serving.tls import TlsContext
from gridmill.telemetry import turn_off_telemetry

BEAT_SECONDS = 0.25
_EXPIRE_SECONDS = 0.05
_IDLE_SECONDS = 1.0
"""A connection without a request is closed after this time when the replica stops. A client that sends its
next request immediately thus never finds its connection closed."""
_RESERVED_FILES = 256
_MOST_CONNECTIONS = 16_000


class Replica:
    """The event loop of a replica: it accepts connections, gives signs of life, and drains."""

    def __init__(
        self,
        order: ServiceOrder,
        folder: Path,
        number: int,
        beats: int,
        gpu_size_bytes: int = 0,
        copies: int | None = None,
    ) -> None:
        self._order, self._folder, self._number, self._beats = order, folder, number, beats
        self._gpu_size_bytes = gpu_size_bytes
        self._stop = asyncio.Event()
        shadow = order.shadow.version.label if order.shadow is not None else ""
        self._metrics = Metrics(folder, number, shadow)
        self._drift = DriftFile(folder, number)
        self._log = None
        if order.request_log is not None:
            self._log = RequestLogWriter(order.request_log, order.name, number, folder)
        self._copies = None
        if copies is not None and order.shadow is not None:
            served, percent = order.versions[0].label, order.shadow.percent
            self._copies = CopyWriter(copies, order.name, served, percent, WaitingBytes(folder, number))
        keys = api_keys_file(folder, order)
        self._keys = ApiKeys(keys) if keys is not None else None

    async def run(self, models: Sequence[ServedModel], listener: socket.socket) -> None:
        """Answer requests until the process gets SIGTERM, and then drain. Raises InputError."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        known: dict[int, HostedModel] = {}
        hosted = [self._host(model, known) for model in models]
        served = {id(one) for one in hosted}
        self._hosted = [*hosted, *(one for one in known.values() if id(one) not in served)]
        self._app = Application(
            self._order,
            Versions(hosted),
            self._metrics,
            keys=self._keys,
            log=self._log,
            copies=self._copies,
        )
        server = uvicorn.Server(_config(self._app))
        server.config.load()
        self._state = server.server_state
        self._tls = TlsContext(self._order)
        acceptor = Acceptor(listener, self._tls.context, _limits())
        # the objects that exist now are never garbage, so the collector need not examine them
        gc.collect()
        gc.freeze()
        acceptor.start(server, partial(DirectConnection, self._app))
        expiry = loop.create_task(self._expire())
        try:
            while not self._stop.is_set():
                self._tick()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), BEAT_SECONDS)
            acceptor.stop()
            listener.close()
            await self._drain()
        finally:
            expiry.cancel()
            self._save(ends=True)

    def _host(self, model: ServedModel, known: dict[int, HostedModel]) -> HostedModel:
        """Return the model with a batcher. The stages of several versions share one, so that their requests
        form larger batches."""
        if id(model) not in known:
            known[id(model)] = self._hosted_anew(model, known)
        return known[id(model)]

    def _hosted_anew(self, model: ServedModel, known: dict[int, HostedModel]) -> HostedModel:
        order = self._order
        limits = limits_of(order)
        batcher = make_batcher(model.predict, limits, model.input_shape, is_code=model.is_code)
        stages = [
            HostedStage(host=self._host(stage.model, known), columns=stage.columns) for stage in model.stages
        ]
        return HostedModel(
            service=order.name,
            model=model,
            batcher=batcher,
            keyed=chained_of(model, limits, stages) or keyed_of(model, limits),
            drift=drift_counter(model),
        )

    def _tick(self) -> None:
        """Write a sign of life and the counts, and update what can change between requests."""
        now = time.monotonic()
        busy = max(one.model.busy_seconds(one.batcher.busy_seconds(now), now) for one in self._hosted)
        versions = [
            {
                "label": one.model.label,
                "verification": one.model.verification,
                "differences": one.model.differences,
            }
            for one in self._hosted
        ]
        load = self._metrics.load()
        gpu_bytes = sum(one.model.gpu_bytes for one in self._hosted)
        self._metrics.set_gauge("gridmill_gpu_memory_bytes", gpu_bytes)
        self._beat(
            {
                "ready": True,
                "busy_seconds": busy,
                "versions": versions,
                "load": load,
                "gpu_memory_bytes": gpu_bytes,
                "gpu_needed_bytes": sum(one.model.gpu_needed_bytes for one in self._hosted),
                "gpu_size_bytes": self._gpu_size_bytes,
            }
        )
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._save()
        self._tls.reload()
        if self._keys is not None:
            try:
                self._keys.reload()
            except GridmillError as error:  # the keys that were read last stay valid
                logging.getLogger(__name__).warning("%s", error)

    def _save(self, *, ends: bool = False) -> None:
        metrics = self._metrics
        counts: dict[str, float] = defaultdict(float)
        for one in self._hosted:
            labels = f'{{version="{one.model.label}"}}'
            counts[f"gridmill_batches_total{labels}"] += one.batcher.batches
            counts[f"gridmill_batch_rows_total{labels}"] += one.batcher.rows
            counts[f"gridmill_batch_seconds_total{labels}"] += one.batcher.seconds
        metrics.counts.update(counts)
        metrics.set_gauge("gridmill_requests_waiting", sum(one.batcher.requests for one in self._hosted))
        metrics.set_gauge("gridmill_connections", len(self._state.connections))
        metrics.set_gauge("gridmill_memory_bytes", _resident_bytes())
        for model in (part for one in self._hosted for part in one.model.all_models()):
            _measure_view(metrics, model)
        if self._log is not None:
            self._log.flush(ends=ends)
        if self._copies is not None and self._order.shadow is not None:
            self._copies.release()
            label = escaped(self._order.shadow.version.label)
            metrics.counts[f'{SHADOW_DROPPED}{{version="{label}"}}'] = self._copies.dropped
        metrics.save()
        self._drift.save({one.model.label: one.drift for one in self._hosted if one.drift is not None})

    def _beat(self, content: dict[str, Any]) -> None:
        if not write_beat(self._beats, content):
            self._stop.set()

    async def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            for one in self._hosted:
                one.batcher.expire(loop.time())

    async def _drain(self) -> None:
        """Wait until the connections have ended. Their next answers ask the clients to close them, and those
        without a request are closed after a short time."""
        self._app.is_draining = True
        begin = time.monotonic()
        idle: dict[Any, tuple[object, float]] = {}
        while self._state.connections and time.monotonic() - begin < self._order.drain_seconds:
            now = time.monotonic()
            connections: tuple[Any, ...] = tuple(self._state.connections)
            for connection in connections:
                cycle = connection.cycle
                if cycle is not None and not cycle.response_complete:
                    cycle.keep_alive = False
                    idle.pop(connection, None)
                    continue
                known, since = idle.setdefault(connection, (cycle, now))
                if known is not cycle:
                    idle[connection] = (cycle, now)
                elif now - since >= _IDLE_SECONDS:
                    connection.transport.close()
            await asyncio.sleep(_EXPIRE_SECONDS)
        for one in self._hosted:
            one.batcher.close()
            one.model.close()


def _config(app: Application) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        loop="none",
        log_level="warning",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=75,
    )


def _limits() -> Limits:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, soft - _RESERVED_FILES)
    return Limits(connections=most, of_one_address=most, accepted_at_once=1)


def _measure_view(metrics: Metrics, model: ServedModel) -> None:
    """Set the gauges of the view of a model. The gauges of a view that cannot be read stay as they are."""
    if model.features is None or not model.features.plan.stored:
        return
    with suppress(GridmillError):
        state = model.features.state()
        age = max(0.0, time.time() - state.ahead_seconds - state.synced_at)
        metrics.set_gauge("gridmill_view_age_seconds", age, version=model.label)
        for name, held in state.held.items():
            metrics.set_gauge("gridmill_view_table_version", held.number, version=model.label, table=name)


def _resident_bytes() -> int:
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a replica. The exit code is 1 if a version cannot be loaded or does not work."""
    parser = argparse.ArgumentParser(description="Run one replica of a service.")
    for name in ("listener", "beats", "number", "parent"):
        parser.add_argument(name, type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--copies", type=int)
    given = parser.parse_args(arguments)
    end_with_parent(given.parent)
    turn_off_telemetry()
    share_memory_areas()
    raise_open_files()
    logging.basicConfig(
        level=logging.WARNING,
        handlers=[BoundedHandler()],
        format=f"%(asctime)s replica {given.number}: %(levelname)s %(name)s: %(message)s",
    )
    order = decode(sys.stdin.buffer.read(), ServiceOrder)
    listener = socket.socket(fileno=given.listener)
    try:
        names = version_names(order.versions)
        shared: SharedStages = {}
        gpu = take_share(order, given.number)
        models = [
            load_version(
                version, name, order.threads, timeout_seconds=order.timeout_seconds, shared=shared, gpu=gpu
            )
            for version, name in zip(order.versions, names, strict=True)
        ]
        gpu_size_bytes = gpu.gpu_bytes if gpu is not None else 0
        os.set_blocking(given.beats, False)
        make = partial(Replica, order, given.folder, given.number, given.beats, gpu_size_bytes, given.copies)
        serving = _serve(make, models, listener)
        # uvloop where it is installed
        with asyncio.Runner(loop_factory=uvicorn.Config("", loop="auto").get_loop_factory()) as runner:
            runner.run(serving)
    except GridmillError as error:
        os.write(given.beats, json.dumps({"failure": explained(error)}).encode() + b"\n")
        logging.getLogger(__name__).error("%s", explained(error))
        sys.exit(1)
    # without the cleanup of the interpreter, which would wait for the thread of a model that hangs
    os._exit(0)


async def _serve(make: Callable[[], Replica], models: Sequence[ServedModel], listener: socket.socket) -> None:
    """Make the replica in its event loop, and run it."""
    await make().run(models, listener)


if __name__ == "__main__":
    main()
