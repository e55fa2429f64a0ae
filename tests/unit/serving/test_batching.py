"""Concurrent requests are computed in batches, and one request does not harm the others."""

import asyncio
import threading

import numpy as np
import pytest

from gridmill.serving.batching import Batcher, BatchLimits
from gridmill.serving.errors import LateError, ModelFailedError, OverloadedError


def limits(**changed) -> BatchLimits:
    defaults = {
        "max_rows": 8,
        "max_requests": 4,
        "queue_limit": 4,
        "max_wait_seconds": 0.0,
        "timeout_seconds": 30.0,
    }
    return BatchLimits(**(defaults | changed))


class Model:
    """Doubles its inputs, and records the sizes of the batches. It fails for negative inputs, and waits for
    `gate` if there is one."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.batches: list[int] = []
        self.gate = gate
        self.entered = threading.Event()

    def __call__(self, inputs):
        self.batches.append(len(inputs))
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(60)
        if (inputs < 0).any():
            raise ZeroDivisionError("negative")
        return inputs[:, 0] * 2


def rows(*values: float):
    return np.array(values, float).reshape(-1, 1)


async def settled(test) -> None:
    """Let the loop run until `test` is true."""
    while not test():
        await asyncio.sleep(0)


@pytest.mark.parametrize("inline", [True, False])
def test_requests_of_one_turn_are_one_batch_and_get_their_own_rows(inline):
    model = Model()

    async def scenario():
        batcher = Batcher(model, limits(), inline=inline, row_seconds=1e-6)
        answers = await asyncio.gather(*(batcher.predict(rows(n, n + 10)) for n in range(3)))
        batcher.close()
        return answers

    answers = asyncio.run(scenario())
    assert [answer.tolist() for answer in answers] == [[0, 20], [2, 22], [4, 24]]
    assert model.batches == [6]


@pytest.mark.parametrize("inline", [True, False])
def test_a_batch_has_at_most_so_many_rows_and_requests(inline):
    model = Model()

    async def scenario():
        batcher = Batcher(model, limits(queue_limit=9), inline=inline, row_seconds=1e-6)
        await asyncio.gather(*(batcher.predict(rows(*range(3))) for _ in range(3)))
        await asyncio.gather(*(batcher.predict(rows(n)) for n in range(6)))
        long = await batcher.predict(rows(*range(20)))
        batcher.close()
        return long

    assert asyncio.run(scenario()).tolist() == [2 * n for n in range(20)]
    assert model.batches == [6, 3, 4, 2, 8, 8, 4]


def test_the_next_batch_is_collected_while_one_is_computed():
    gate = threading.Event()
    model = Model(gate)

    async def scenario():
        batcher = Batcher(model, limits(), inline=False, row_seconds=1e-6)
        first = asyncio.create_task(batcher.predict(rows(1)))
        await settled(model.entered.is_set)
        others = [asyncio.create_task(batcher.predict(rows(n))) for n in (2, 3, 4)]
        await settled(lambda: batcher.waiting_rows == 3)
        gate.set()
        await asyncio.gather(first, *others)
        assert batcher.waiting_rows == 0
        batcher.close()

    asyncio.run(scenario())
    assert model.batches == [1, 3]


@pytest.mark.parametrize("inline", [True, False])
def test_only_the_request_that_makes_the_model_fail_fails(inline):
    async def scenario():
        batcher = Batcher(Model(), limits(), inline=inline, row_seconds=1e-6)
        answers = await asyncio.gather(
            *(batcher.predict(rows(n)) for n in (1, -2, 3)), return_exceptions=True
        )
        later = await batcher.predict(rows(4))
        alone = await asyncio.gather(batcher.predict(rows(-1)), return_exceptions=True)
        batcher.close()
        return [*answers, later, *alone]

    one, wrong, three, later, alone = asyncio.run(scenario())
    assert (one.tolist(), three.tolist(), later.tolist()) == ([2], [6], [8])
    assert isinstance(wrong, ModelFailedError)
    assert isinstance(alone, ModelFailedError)


def test_more_requests_than_allowed_are_refused_with_a_time_to_retry():
    gate = threading.Event()
    model = Model(gate)

    async def scenario():
        batcher = Batcher(model, limits(queue_limit=1), inline=False, row_seconds=1e-6)
        tasks = [asyncio.create_task(batcher.predict(rows(n))) for n in range(5)]
        await settled(lambda: batcher.requests == 5)
        with pytest.raises(OverloadedError) as refused:
            await batcher.predict(rows(6))
        assert refused.value.retry_seconds >= 1
        gate.set()
        assert len(await asyncio.gather(*tasks)) == 5
        assert (await batcher.predict(rows(6))).tolist() == [12]
        batcher.close()

    asyncio.run(scenario())


def test_a_request_that_could_not_be_answered_in_time_is_refused_at_once():
    gate = threading.Event()

    async def scenario():
        batcher = Batcher(Model(gate), limits(timeout_seconds=10), inline=False, row_seconds=3.0)
        task = asyncio.create_task(batcher.predict(rows(1)))
        await settled(lambda: batcher.requests == 1)
        with pytest.raises(OverloadedError) as refused:
            await batcher.predict(rows(1, 2, 3, 4))
        assert refused.value.retry_seconds >= 12
        gate.set()
        await task
        batcher.close()

    asyncio.run(scenario())


def test_a_model_that_hangs_does_not_hold_requests_longer_than_their_time_limit():
    gate = threading.Event()
    model = Model(gate)

    async def scenario():
        batcher = Batcher(model, limits(timeout_seconds=5), inline=False, row_seconds=1e-6)
        tasks = [asyncio.create_task(batcher.predict(rows(n))) for n in range(2)]
        await settled(model.entered.is_set)
        tasks.append(asyncio.create_task(batcher.predict(rows(3))))
        await settled(lambda: batcher.waiting_rows == 1)
        now = asyncio.get_running_loop().time()
        batcher.expire(now)
        assert not any(task.done() for task in tasks)
        batcher.expire(now + 6)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, LateError) for error in errors)
        assert batcher.waiting_rows == 0
        gate.set()
        # the late batch is dropped, and the model answers again
        assert (await batcher.predict(rows(4))).tolist() == [8]
        batcher.close()

    asyncio.run(scenario())


def test_a_wait_collects_requests_until_the_batch_is_full():
    model = Model()

    async def scenario():
        batcher = Batcher(model, limits(max_wait_seconds=60, max_requests=9), inline=True, row_seconds=1e-6)
        tasks = [asyncio.create_task(batcher.predict(rows(n))) for n in range(7)]
        await settled(lambda: batcher.waiting_rows == 7)
        assert model.batches == []
        await asyncio.gather(batcher.predict(rows(8)), *tasks)

    asyncio.run(scenario())
    assert model.batches == [8]
