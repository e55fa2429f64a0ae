"""The process of a shadow: it predicts copies of requests with another version, and compares its answers with
those that the clients got.

The parent process passes the order on standard input, and two file descriptors: the socket with the copies,
and a pipe for signs of life. Nothing waits for this process, and it may hang, fail or be killed.
"""

import argparse
import asyncio
import json
import logging
import math
import os
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

from gridmill.codec import decode
from gridmill.domain.frozen import replace
from gridmill.domain.serving import ServiceOrder
from gridmill.errors import GridmillError, explained
from gridmill.process_log import BoundedHandler
from gridmill.process_memory import share_memory_areas
from gridmill.serving.batching import limits_of, make_batcher
from gridmill.serving.chain import HostedStage, chained_of
from gridmill.serving.errors import RequestError
from gridmill.serving.hosting import HostedModel
from gridmill.serving.inference_protocol import HEADER_LENGTH, infer
from gridmill.serving.keyed_features import keyed_of
from gridmill.serving.metrics import SHADOW, SHADOW_LATENCY, Metrics, escaped
from gridmill.serving.parent_process import end_with_parent, write_beat
from gridmill.serving.predict import predict
from gridmill.serving.request import Request
from gridmill.serving.served_model import ServedModel, load_version, version_names
from gridmill.serving.shadow_comparison import PROBABILITY_TOLERANCE, Comparison, compare, rows_of_answer
from gridmill.serving.shadow_copies import Copy, receive
from gridmill.telemetry import turn_off_telemetry

BEAT_SECONDS = 0.25
NICENESS = 10
"""The process gets less of the CPUs than the replicas, if they need them at the same time."""
_RECENT = 1000
"""The number of compared requests of which the latencies are shown."""
_LOG = logging.getLogger(__name__)


class Shadow:
    """Predicts and compares copies, one after the other."""

    def __init__(self, order: ServiceOrder, model: ServedModel, folder: Path, beats: int) -> None:
        self._order, self._beats = order, beats
        self._host = _host(order, model)
        self._tolerance = PROBABILITY_TOLERANCE * max(model.card.spread, default=1.0)
        self._metrics = Metrics(folder, SHADOW)
        self._counts: Counter[str] = Counter()
        self._largest = 0.0
        self._latencies: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    async def run(self, copies: socket.socket) -> None:
        """Predict copies until the parent process has ended."""
        loop = asyncio.get_running_loop()
        beating = loop.create_task(self._beat(loop))
        while not beating.done():
            try:
                copy = receive(copies)
            except BlockingIOError:
                await _readable(loop, copies, beating)
                continue
            except ValueError as error:  # the copy is damaged
                self._fail(str(error))
                continue
            if copy is None:
                return
            await self._handle(copy)

    async def _handle(self, copy: Copy) -> None:
        begin = time.perf_counter()
        headers = {b"content-type": copy.content_type}
        request = Request(
            method="POST",
            path=copy.path,
            query={},
            headers=headers | ({HEADER_LENGTH: copy.length} if copy.length else {}),
            body=copy.body,
            request_id="shadow",
            as_of_us=copy.as_of_us,
        )
        is_inference = copy.path != "/predict"
        try:
            if is_inference:
                answer = await infer(self._host, request)
            else:
                answer = await predict(self._host, request, self._order.max_body_bytes)
            seconds = time.perf_counter() - begin
            length = dict(answer.headers).get(HEADER_LENGTH, b"")
            # in a thread, because the process gives signs of life while it compares many rows
            found = await asyncio.to_thread(self._compared, copy, answer.body, length)
            self._count(found, seconds)
            self._latencies.append((seconds, copy.seconds))
        except RequestError as error:
            self._fail(error.message)
        except Exception as error:  # noqa: BLE001  the outermost function of a copy: others continue
            self._fail(repr(error))

    def _compared(self, copy: Copy, answer: bytes, length: bytes) -> Comparison:
        is_inference = copy.path != "/predict"
        served = rows_of_answer(copy.answer, copy.answer_length, is_inference=is_inference)
        own = rows_of_answer(answer, length, is_inference=is_inference)
        return compare(served, own, self._tolerance)

    def _fail(self, why: str) -> None:
        if not self._counts["failed"]:
            _LOG.warning("the shadow could not predict a copy: %s", why)
        self._counts["failed"] += 1

    def _count(self, found: Comparison, seconds: float) -> None:
        counts = self._counts
        counts["requests"] += 1
        counts["equal"] += found.equal
        counts["different"] += found.different
        counts["difference_rows"] += len(found.differences)
        counts["difference"] += sum(found.differences)  # type: ignore[assignment]  # a sum of floats
        counts["seconds"] += seconds  # type: ignore[assignment]
        self._largest = max(self._largest, *found.differences, 0.0)

    async def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write signs of life and the counts, until the parent process has ended."""
        model = self._host.model
        about = {
            "label": model.label,
            "verification": model.verification,
            "differences": model.differences,
        }
        while True:
            now = time.monotonic()
            self._host.batcher.expire(loop.time())
            busy = model.busy_seconds(self._host.batcher.busy_seconds(now), now)
            if not write_beat(self._beats, {"busy_seconds": busy, "versions": [about]}):
                return
            self._save()
            await asyncio.sleep(BEAT_SECONDS)

    def _save(self) -> None:
        label, counts = f'version="{escaped(self._host.model.label)}"', self._counts
        values: dict[str, float] = {
            f"gridmill_shadow_requests_total{{{label}}}": counts["requests"],
            f'gridmill_shadow_rows_total{{{label},result="equal"}}': counts["equal"],
            f'gridmill_shadow_rows_total{{{label},result="different"}}': counts["different"],
            f"gridmill_shadow_failed_total{{{label}}}": counts["failed"],
            f"gridmill_shadow_seconds_total{{{label}}}": counts["seconds"],
            f"gridmill_shadow_difference_total{{{label}}}": counts["difference"],
            f"gridmill_shadow_difference_rows_total{{{label}}}": counts["difference_rows"],
        }
        self._metrics.counts.update(values)
        self._metrics.set_gauge(
            "gridmill_shadow_difference_max", self._largest, version=self._host.model.label
        )
        if self._latencies:
            for by, seconds in zip(("shadow", "served"), zip(*self._latencies, strict=True), strict=True):
                for quantile, value in _quantiles(seconds).items():
                    self._metrics.set_gauge(
                        SHADOW_LATENCY, value, version=self._host.model.label, by=by, quantile=quantile
                    )
        self._metrics.save()


async def _readable(
    loop: asyncio.AbstractEventLoop, copies: socket.socket, beating: "asyncio.Task[None]"
) -> None:
    """Wait until a copy can be received, or the parent process has ended."""
    found = asyncio.Event()
    loop.add_reader(copies, found.set)
    waiting = loop.create_task(found.wait())
    try:
        await asyncio.wait({waiting, beating}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(copies)
        waiting.cancel()


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return quantiles: the smallest value that at least this part of the values do not exceed."""
    ordered = sorted(seconds)
    return {f"{part:g}": ordered[max(0, math.ceil(part * len(ordered)) - 1)] for part in (0.5, 0.99)}


def _host(order: ServiceOrder, model: ServedModel) -> HostedModel:
    # the shadow predicts one copy after the other, so a batch never gets a second request
    limits = replace(limits_of(order), max_wait_seconds=0.0)

    def host(one: ServedModel) -> HostedModel:
        batcher = make_batcher(one.predict, limits, one.input_shape, is_code=one.is_code)
        stages = [HostedStage(host=host(stage.model), columns=stage.columns) for stage in one.stages]
        keyed = chained_of(one, limits, stages) or keyed_of(one, limits)
        return HostedModel(service=order.name, model=one, batcher=batcher, keyed=keyed)

    return host(model)


async def _run(
    order: ServiceOrder, model: ServedModel, folder: Path, beats: int, copies: socket.socket
) -> None:
    os.set_blocking(beats, False)
    await Shadow(order, model, folder, beats).run(copies)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the process of a shadow. The exit code is 1 if the version cannot be loaded or does not work."""
    parser = argparse.ArgumentParser(description="Compare another version with a service.")
    for name in ("copies", "beats", "number", "parent"):
        parser.add_argument(name, type=int)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    end_with_parent(given.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    turn_off_telemetry()
    share_memory_areas()
    logging.basicConfig(
        level=logging.WARNING,
        handlers=[BoundedHandler()],
        format="%(asctime)s shadow: %(levelname)s %(name)s: %(message)s",
    )
    # the GPUs belong to the replicas
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    order = decode(sys.stdin.buffer.read(), ServiceOrder)
    copies = socket.socket(fileno=given.copies)
    try:
        version, (name,) = order.versions[0], version_names(order.versions)
        model = load_version(version, name, order.threads, timeout_seconds=order.timeout_seconds)
        asyncio.run(_run(order, model, given.folder, given.beats, copies))
    except GridmillError as error:
        _end_with(given.beats, explained(error))
    os._exit(0)


def _end_with(beats: int, why: str) -> None:
    os.write(beats, json.dumps({"failure": why}).encode() + b"\n")
    _LOG.error("%s", why)
    sys.exit(1)


if __name__ == "__main__":
    main()
