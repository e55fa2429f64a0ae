"""What simulated jobs do."""

from dataclasses import dataclass
from random import Random

from gridmill.model.artifact import Output
from gridmill.model.message import Order
from gridmill.model.parallel import Parallel
from gridmill.model.state import AttemptState, Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a simulated job does: how long it runs, how it ends, how many log lines it writes, and what its
    workers tell of themselves. `outputs` is what it makes; None: one output of its kind."""

    seconds: float = 1.0
    outcome: AttemptState = AttemptState.SUCCEEDED
    cause: Cause | None = None
    lines: int = 1
    peak_memory_bytes: int = 2**20
    parallel: Parallel | None = None
    outputs: tuple[Output, ...] | None = None


def pick(random: Random, order: Order, *, failing: float = 0.0, killed: float = 0.0) -> Behaviour:
    """A random behaviour: some fail, some are killed for memory, most succeed."""
    draw, seconds, lines = random.random(), random.uniform(0.1, 20.0), random.randrange(4)
    if draw < failing:
        return Behaviour(seconds=seconds, lines=lines, outcome=AttemptState.FAILED, cause=Cause.EXIT)
    if draw < failing + killed:
        return Behaviour(
            seconds=seconds,
            lines=lines,
            outcome=AttemptState.FAILED,
            cause=Cause.MEMORY,
            peak_memory_bytes=order.given.memory_bytes,
        )
    return Behaviour(seconds=seconds, lines=lines, peak_memory_bytes=order.given.memory_bytes // 2)
