"""What the workers of a swarm told of their shards, added up."""

import statistics
from collections.abc import Sequence
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
    not its first)."""

    rows: int
    took: Took
    opening: Took | None = None


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
    late = _excess([(one.rows, one.took.seconds) for one in firsts], [(r.rows, r.took.seconds) for r in rest])
    late_cpu = _excess(
        [(one.rows, one.took.spent.cpu_seconds) for one in firsts],
        [(one.rows, one.took.spent.cpu_seconds) for one in rest],
    )
    return Parallel(
        work=work,
        workers=workers,
        shards=len(done),
        rows=sum(shard.rows for shard in done),
        whole_rows=whole_rows,
        stage_seconds=stage_seconds,
        opening_seconds=(sum(one.opening.seconds for one in firsts if one.opening) + late) / opened,
        opening_cpu_seconds=(opening.cpu_seconds + late_cpu) / opened,
        opening_delay_seconds=(opening.delay_seconds or 0.0) / opened,
        busy_seconds=busy - late,
        longest_seconds=max(shard.took.seconds for shard in done),
        deviation=_deviation(rest or done),
        cpu_seconds=spent.cpu_seconds - late_cpu,
        delay_seconds=spent.delay_seconds,
        disk_seconds=spent.disk_seconds,
        read_bytes=spent.read_bytes,
        written_bytes=spent.written_bytes,
    )


def _excess(firsts: Sequence[tuple[int, float]], rest: Sequence[tuple[int, float]]) -> float:
    """What first shards took above the pace of the others: code that is loaded at its first use."""
    rows = sum(size for size, _ in rest)
    if not rows:
        return 0.0
    pace = sum(seconds for _, seconds in rest) / rows
    return max(0.0, sum(seconds - size * pace for size, seconds in firsts))


def _deviation(done: Sequence[ShardDone]) -> float:
    """How far the shards' seconds per row lie apart, over their mean."""
    speeds = [shard.took.seconds / shard.rows for shard in done if shard.rows]
    mean = statistics.fmean(speeds) if speeds else 0.0
    return statistics.stdev(speeds) / mean if len(speeds) > 1 and mean else 0.0
