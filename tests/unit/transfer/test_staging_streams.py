"""Lines are functions here: so much goes over them by so many streams."""

from collections.abc import Callable

import pytest

from gridmill.transfer.engine import ParallelStreams


def used(
    line: Callable[[int], float], batches: int = 20, streams: ParallelStreams | None = None
) -> list[int]:
    """How many streams each of the next batches had, of four at most."""
    streams, found = streams or ParallelStreams(4), list[int]()
    for _ in range(batches):
        found.append(streams.now)
        streams.learn(streams.now, line(streams.now))
    return found


@pytest.mark.parametrize("bytes_per_second", [1.0, 250e3, 999e3])
def test_over_a_thin_line_another_is_tried_once(bytes_per_second: float) -> None:
    assert used(lambda _: bytes_per_second) == [1, 2] + [1] * 18


def test_over_a_quick_line_all_go_at_once() -> None:
    streams = ParallelStreams(4)
    assert used(lambda _: 1e6, streams=streams) == [1] + [4] * 19
    assert not streams.thin


def test_where_a_line_loses_packets_each_brings_more() -> None:
    assert used(lambda streams: 178e3 * streams) == [1, 2, 3] + [4] * 17


def test_as_many_as_bring_something() -> None:
    assert used(lambda streams: min(streams, 2) * 200e3) == [1, 2, 3] + [2] * 17


def test_a_line_that_becomes_thin_is_looked_at_anew_and_one_that_becomes_quick() -> None:
    streams = ParallelStreams(4)
    used(lambda _: 1e8, streams=streams)
    assert used(lambda _: 1e5, streams=streams) == [4, 1, 2] + [1] * 17
    assert streams.thin
    assert used(lambda _: 1e8, streams=streams) == [1] + [4] * 19


def test_one_stream_stays_one() -> None:
    streams = ParallelStreams(1)
    assert used(lambda streams: 1e5 * streams, streams=streams) == [1] * 20
