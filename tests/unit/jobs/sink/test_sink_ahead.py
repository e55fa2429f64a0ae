from collections.abc import Iterator
from contextlib import closing
from threading import enumerate as living

import pytest

from gridmill.jobs.parquet_reader import ahead


def test_all_items_in_order_and_then_the_error() -> None:
    def items() -> Iterator[int]:
        yield from range(100)
        raise ValueError("the end")

    seen: list[int] = []
    with pytest.raises(ValueError, match="the end"):
        seen.extend(ahead(items()))
    threads = set(living())
    assert list(ahead(range(50))) == list(range(50))
    assert set(living()) <= threads
    assert list(ahead([])) == []


def test_nothing_more_is_read_once_it_is_closed() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            read.append(number)
            yield number

    threads = set(living())
    with closing(ahead(items())) as reading:
        assert next(reading) == 0
    assert len(read) < 10
    assert set(living()) <= threads
