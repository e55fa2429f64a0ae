"""Computes the predictions of concurrent requests in batches, without a timer.

While a batch is computed, the next batch is collected. A model that needs less than a millisecond is computed
in the event loop, where all requests that have arrived in one turn of the loop become one batch. A slower
model is computed in a thread of its own, so that the event loop continues to read requests.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from gridmill.domain.frozen import dataclass
from gridmill.domain.serving import ServiceOrder
from gridmill.errors import GridmillError, InputError
from gridmill.jobs.features import Floats
from gridmill.serving.errors import (
    FieldsError,
    LateError,
    ModelFailedError,
    OverloadedError,
    Problem,
    RequestError,
)

_LOG = logging.getLogger(__name__)

INLINE_SECONDS = 0.001
"""A model is computed in the event loop if one row takes at most this time."""
INLINE_BATCH_SECONDS = 0.004
"""A batch in the event loop has at most as many rows as can be computed in this time."""
_SMOOTHING = 0.1
"""The weight of the newest batch in the mean time of a row."""

Predict = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits of a batcher. See `ServiceOrder` for their meaning."""

    max_rows: int
    max_requests: int
    queue_limit: int
    max_wait_seconds: float
    timeout_seconds: float


def limits_of(order: ServiceOrder) -> BatchLimits:
    """Return the limits of the batchers of a service."""
    return BatchLimits(
        max_rows=order.max_batch,
        max_requests=order.max_concurrent,
        queue_limit=order.queue_limit,
        max_wait_seconds=order.max_wait_seconds,
        timeout_seconds=order.timeout_seconds,
    )


class Outcome(Protocol):
    """Gets the predictions of rows, or the error: a future, or an object with the same methods."""

    def done(self) -> bool:
        """Return whether there is a result or an error, or nobody waits for it."""

    def set_result(self, result: Floats, /) -> None:
        """Take the predictions."""

    def set_exception(self, exception: RequestError, /) -> None:
        """Take the error."""


@dataclass(slots=True)
class _Waiting:
    """Rows that wait for a batch. `is_request` means that they are a whole request, which ends with its
    outcome."""

    inputs: Floats
    outcome: Outcome
    deadline: float
    is_request: bool


class Batcher:
    """Collects the rows of requests into batches for one model. All methods are called in the event loop."""

    def __init__(self, predict: Predict, limits: BatchLimits, *, inline: bool, row_seconds: float) -> None:
        self._predict = predict
        self._limits = limits
        self._inline = inline
        self._row_seconds = row_seconds
        self._queue: deque[_Waiting] = deque()
        self._waiting_rows = 0
        self._running: list[_Waiting] = []
        self._busy_since: float | None = None
        self._scheduled = False
        self._requests = 0
        self._loop = asyncio.get_running_loop()
        self._executor = None if inline else ThreadPoolExecutor(1, thread_name_prefix="model")
        self.batches = 0
        self.rows = 0
        self.seconds = 0.0
        most = max(1, int(INLINE_BATCH_SECONDS / max(row_seconds, 1e-9)))
        self._max_rows = min(limits.max_rows, most) if inline else limits.max_rows

    @property
    def max_rows(self) -> int:
        """The largest number of rows of a batch."""
        return self._max_rows

    @property
    def waiting_rows(self) -> int:
        """The number of rows that wait for a batch."""
        return self._waiting_rows

    @property
    def requests(self) -> int:
        """The number of requests that wait or are computed."""
        return self._requests

    def busy_seconds(self, now: float) -> float:
        """Return for how many seconds the current batch has been computed."""
        return 0.0 if self._busy_since is None else now - self._busy_since

    def submit(self, inputs: Floats, outcome: Outcome) -> None:
        """Compute the rows of a request, at most `max_rows`, without a task. `outcome` gets the predictions,
        or LateError, FieldsError or ModelFailedError. Raises OverloadedError."""
        self._admit(len(inputs))
        self._requests += 1
        self._put(_Waiting(inputs, outcome, self._loop.time() + self._limits.timeout_seconds, True))

    async def predict(self, inputs: Floats) -> Floats:
        """Return the predictions for the rows of a request. Raises OverloadedError, LateError, FieldsError,
        ModelFailedError."""
        self._admit(len(inputs))
        self._requests += 1
        try:
            if len(inputs) <= self._max_rows:
                return await self._future(inputs)
            step = self._max_rows
            pieces = [self._future(inputs[at : at + step]) for at in range(0, len(inputs), step)]
            return np.concatenate(await asyncio.gather(*pieces))
        finally:
            self._requests -= 1

    def expire(self, now: float) -> None:
        """Answer the requests whose time limit has passed with LateError. Their rows leave the queue."""
        while self._queue and (self._queue[0].deadline <= now or self._queue[0].outcome.done()):
            self._end_late(self._first())
        for one in self._running:
            if one.deadline <= now:
                self._end_late(one)

    def close(self) -> None:
        """Release the thread of the model, without waiting for a model that hangs."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _admit(self, rows: int) -> None:
        limits = self._limits
        wait = (self.waiting_rows + rows) * self._row_seconds if self._requests else 0.0
        if self._requests >= limits.max_requests + limits.queue_limit or wait > limits.timeout_seconds:
            raise OverloadedError(
                f"{self._requests} requests wait for the model",
                hint="Send the request again later, or add replicas.",
                retry_seconds=max(1.0, math.ceil(wait)),
            )

    def _future(self, inputs: Floats) -> "asyncio.Future[Floats]":
        future: asyncio.Future[Floats] = self._loop.create_future()
        self._put(_Waiting(inputs, future, self._loop.time() + self._limits.timeout_seconds, False))
        return future

    def _put(self, one: _Waiting) -> None:
        self._queue.append(one)
        self._waiting_rows += len(one.inputs)
        if not self._scheduled and self._busy_since is None:
            self._schedule(self._limits.max_wait_seconds)

    def _schedule(self, wait: float) -> None:
        self._scheduled = True
        if wait > 0 and self.waiting_rows < self._max_rows:
            self._loop.call_later(wait, self._start)
        else:
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        if self._busy_since is not None or not (batch := self._take()):
            return
        self._running, self._busy_since = batch, time.monotonic()
        inputs = batch[0].inputs if len(batch) == 1 else np.concatenate([one.inputs for one in batch])
        if self._executor is None:
            self._end(inputs, *self._attempt(inputs))
        else:
            self._executor.submit(self._in_thread, inputs)

    def _take(self) -> list[_Waiting]:
        """Remove the next batch from the queue. Requests that were answered or broken off are skipped."""
        batch: list[_Waiting] = []
        rows = 0
        while self._queue and len(batch) < self._limits.max_requests:
            one = self._queue[0]
            if not one.outcome.done():
                rows += len(one.inputs)
                if batch and rows > self._max_rows:
                    break
                batch.append(one)
            self._first()
        return batch

    def _first(self) -> _Waiting:
        """Remove the first request from the queue."""
        one = self._queue.popleft()
        self._waiting_rows -= len(one.inputs)
        return one

    def _in_thread(self, inputs: Floats) -> None:
        result = self._attempt(inputs)
        self._loop.call_soon_threadsafe(self._end, inputs, *result)

    def _attempt(self, inputs: Floats) -> tuple[Floats | None, Exception | None]:
        try:
            return self._predict(inputs), None
        except Exception as error:  # noqa: BLE001  a model may raise anything, and other requests continue
            return None, error

    def _end(self, inputs: Floats, predicted: Floats | None, error: Exception | None) -> None:
        batch, begin = self._running, self._busy_since or 0.0
        self._running, self._busy_since = [], None
        self._count(len(inputs), time.monotonic() - begin)
        if predicted is None and len(batch) > 1:
            self._retry_alone(batch)
        else:
            self._hand_out(batch, predicted, error)
        if self._queue and not self._scheduled:
            self._schedule(0.0)

    def _count(self, rows: int, seconds: float) -> None:
        self.batches += 1
        self.rows += rows
        self.seconds += seconds
        self._row_seconds += _SMOOTHING * (seconds / max(1, rows) - self._row_seconds)

    def _hand_out(self, batch: list[_Waiting], predicted: Floats | None, error: Exception | None) -> None:
        at = 0
        for one in batch:
            rows = len(one.inputs)
            if not one.outcome.done():
                self._requests -= one.is_request
                if predicted is None:
                    one.outcome.set_exception(_failure(error))
                else:
                    one.outcome.set_result(predicted[at : at + rows])
            at += rows

    def _retry_alone(self, batch: list[_Waiting]) -> None:
        """Compute each request of a failed batch alone, so that only the request that causes the failure
        fails."""
        if self._executor is not None:
            self._running, self._busy_since = batch, time.monotonic()
            self._executor.submit(self._each_in_thread, batch)
            return
        for one in batch:
            self._hand_out([one], *self._attempt(one.inputs))

    def _each_in_thread(self, batch: list[_Waiting]) -> None:
        for one in batch:
            if not one.outcome.done():  # its time limit may have passed
                self._loop.call_soon_threadsafe(self._hand_out, [one], *self._attempt(one.inputs))
        self._loop.call_soon_threadsafe(self._end, batch[0].inputs[:0], np.empty(0), None)

    def _end_late(self, one: _Waiting) -> None:
        if not one.outcome.done():
            self._requests -= one.is_request
            seconds = self._limits.timeout_seconds
            one.outcome.set_exception(LateError(f"the model did not answer within {seconds:g} s"))


def _failure(error: Exception | None) -> RequestError:
    if isinstance(error, InputError):  # the rows are wrong, not the model
        return FieldsError((Problem(problem=error.message),), hint=error.hint)
    _LOG.error("the model failed", exc_info=error)
    return ModelFailedError(
        f"the model failed for these rows{_kind(error)}",
        hint="The log of the replica has the details.",
    )


def _kind(error: Exception | None) -> str:
    """Return the class of an error of a library. The classes of Gridmill mean nothing to a client."""
    return "" if error is None or isinstance(error, GridmillError) else f": {type(error).__name__}"


def measure(predict: Predict, example: Floats, repeats: int = 5) -> float:
    """Return the shortest time in seconds in which the model computes the rows of `example`. The first call,
    in which libraries allocate memory, does not count."""
    predict(example)
    times: list[float] = []
    for _ in range(repeats):
        begin = time.perf_counter()
        predict(example)
        times.append(time.perf_counter() - begin)
    return min(times)


def make_batcher(
    predict: Predict, limits: BatchLimits, shape: tuple[int, ...], *, is_code: bool = False
) -> Batcher:
    """Warm the model up, and return a batcher that computes in the event loop if the model is quick enough.

    `shape` is the shape of the inputs of one row. A model that is code of a user has computed its golden
    rows, and need not be able to compute rows of zeros; it is always computed in a thread. Raises what the
    model raises.
    """
    if is_code:
        return Batcher(predict, limits, inline=False, row_seconds=INLINE_SECONDS)
    one = measure(predict, np.zeros((1, *shape)))
    many = measure(predict, np.zeros((limits.max_rows, *shape)), repeats=2)
    row_seconds = many / limits.max_rows
    return Batcher(predict, limits, inline=one <= INLINE_SECONDS, row_seconds=row_seconds)
