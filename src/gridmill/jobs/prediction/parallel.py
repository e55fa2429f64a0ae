"""What the workers of a swarm told of their shards, added up."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from gridmill.jobs.spent import NOTHING, Spent
from gridmill.model.parallel import Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Wall seconds, and what was spent in them."""

    seconds: float
    spent: Spent


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDone:
    """A shard. The first shard of a worker also tells how it opened the dataset and the model before (None:
    not its first). `unknown` rows have a category that training did not have."""

    rows: int
    took: Took
    opening: Took | None = None
    unknown: int = 0


def add_up(
    done: Sequence[ShardDone], *, work: str, workers: int, whole_rows: int, stage_seconds: float
) -> Parallel:
    """The attempt's parallel part. `done` has at least one shard."""
    firsts = [shard for shard in done if shard.opening is not None]
    rest = [shard for shard in done if shard.opening is None]
    opened = len(firsts) or 1
    spent = reduce(Spent.plus, (shard.took.spent for shard in done), NOTHING)
    opening = reduce(Spent.plus, (shard.opening.spent for shard in done if shard.opening), NOTHING)
    busy = sum(shard.took.seconds for shard in done)
    late = _excess(firsts, rest, lambda shard: shard.took.seconds)
    late_cpu = _excess(firsts, rest, lambda shard: shard.took.spent.cpu_seconds)
    late_delay = _excess(firsts, rest, lambda shard: shard.took.spent.delay_seconds or 0.0)
    return Parallel(
        work=work,
        workers=workers,
        shards=len(done),
        rows=sum(shard.rows for shard in done),
        whole_rows=whole_rows,
        stage_seconds=stage_seconds,
        opening_seconds=(sum(one.opening.seconds for one in firsts if one.opening) + late) / opened,
        opening_cpu_seconds=(opening.cpu_seconds + late_cpu) / opened,
        opening_delay_seconds=((opening.delay_seconds or 0.0) + late_delay) / opened,
        busy_seconds=busy - late,
        longest_seconds=max(shard.took.seconds for shard in done),
        deviation=_deviation(rest or done),
        cpu_seconds=spent.cpu_seconds - late_cpu,
        delay_seconds=None if spent.delay_seconds is None else spent.delay_seconds - late_delay,
        disk_seconds=spent.disk_seconds,
        read_bytes=spent.read_bytes,
        written_bytes=spent.written_bytes,
    )


def _excess(
    firsts: Sequence[ShardDone], rest: Sequence[ShardDone], what: Callable[[ShardDone], float]
) -> float:
    """What first shards took above the pace of the others: code that is loaded at its first use."""
    rows = sum(shard.rows for shard in rest)
    if not rows:
        return 0.0
    pace = sum(map(what, rest)) / rows
    return max(0.0, sum(what(shard) - shard.rows * pace for shard in firsts))


def _deviation(done: Sequence[ShardDone]) -> float:
    """How far the shards' seconds per row lie apart, over their mean."""
    speeds = [shard.took.seconds / shard.rows for shard in done if shard.rows]
    mean = statistics.fmean(speeds) if speeds else 0.0
    return statistics.stdev(speeds) / mean if len(speeds) > 1 and mean else 0.0
