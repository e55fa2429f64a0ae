"""What a job used that was done in parts: one measurement of the whole, from what each of them told."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from gridmill.model.parallel import Parallel
from gridmill.model.part import Told
from gridmill.model.resource import Use
from gridmill.planning.together import added, counted, together_used


def use_of_whole(parts: Sequence[Told], gathered: Use) -> Use:
    """Of the parts and of the attempt that put them together. The memory is what one pod needed."""
    use = together_used([*(part.use for part in parts), gathered])
    return replace(use, wall_seconds=_stage(parts) + gathered.wall_seconds)


def parallel_of_whole(work: str, rows: int, parts: Sequence[Told]) -> Parallel:
    """Its parts as shards: as many workers as there were parts at work at once. `rows` is how much it did,
    in whatever attempts of one `work` count."""
    uses = [part.use for part in parts]
    seconds = [use.wall_seconds for use in uses]
    mean = fmean(seconds)
    return Parallel(
        work=work,
        workers=_at_once(parts),
        pods=_at_once(parts),
        shards=len(parts),
        rows=rows,
        whole_rows=rows,
        stage_seconds=_stage(parts),
        opening_seconds=0.0,
        opening_cpu_seconds=0.0,
        opening_delay_seconds=0.0,
        busy_seconds=sum(seconds),
        longest_seconds=max(seconds),
        deviation=stdev(seconds) / mean if len(seconds) > 1 and mean else 0.0,
        cpu_seconds=sum(use.cpu_seconds for use in uses),
        disk_seconds=added([use.disk_seconds for use in uses]),
        read_bytes=counted([use.read_bytes for use in uses]),
        written_bytes=counted([use.written_bytes for use in uses]),
    )


def parallel_of_swarm(told: Parallel, parts: Sequence[Told]) -> Parallel:
    """What the workers of all parts told together, by how many parts were at work at once."""
    at_once = _at_once(parts)
    if at_once == len(parts):
        return replace(told, pods=at_once)
    workers = max(1, told.workers * at_once // len(parts))
    return replace(told, pods=at_once, workers=workers, stage_seconds=_stage(parts))


def _stage(parts: Sequence[Told]) -> float:
    return max(part.ended for part in parts) - min(part.began for part in parts)


def _at_once(parts: Sequence[Told]) -> int:
    """The most that were at work at a time. One that begins as another ends comes after it."""
    moments = sorted([(part.began, 1) for part in parts] + [(part.ended, -1) for part in parts])
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most
