"""This module has a sorted collection of distinct items that is cheap to change and very cheap to copy."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])

# moving a bucket of 512 pointers takes about 100 ns; larger buckets would cost more than they save
_BUCKET = 512


class SortedTuples(Generic[T]):
    """A sorted collection of distinct tuples. Adding, removing or finding an item takes O(log n + bucket)
    steps, and a copy of the collection copies only n pointers.

    The content of the collection depends only on the added and discarded items, never on the order of these
    operations.
    """

    __slots__ = ("_buckets", "_count", "_last")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._hold(sorted(items))

    def _hold(self, ordered: list[T]) -> None:
        self._buckets = [ordered[start : start + _BUCKET] for start in range(0, len(ordered), _BUCKET)]
        self._last = [bucket[-1] for bucket in self._buckets]
        self._count = len(ordered)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._buckets)

    def __reversed__(self) -> Iterator[T]:
        return chain.from_iterable(reversed(bucket) for bucket in reversed(self._buckets))

    def copy(self) -> "SortedTuples[T]":
        """Return an independent copy of the collection."""
        twin: SortedTuples[T] = SortedTuples.__new__(SortedTuples)
        twin._buckets = [bucket.copy() for bucket in self._buckets]
        twin._last = self._last.copy()
        twin._count = self._count
        return twin

    def add(self, item: T) -> None:
        """Add an item that is not in the collection."""
        self._count += 1
        if not self._buckets:
            self._buckets.append([item])
            self._last.append(item)
            return
        at = bisect_left(self._last, item)
        if at == len(self._last):
            at -= 1
            self._last[at] = item
            bucket = self._buckets[at]
            bucket.append(item)
        else:
            bucket = self._buckets[at]
            insort(bucket, item)
        if len(bucket) > 2 * _BUCKET:
            self._split(at)

    def update(self, items: Sequence[T]) -> None:
        """Add items that are not in the collection. If the number of added items is large in comparison with
        the collection, the whole collection is sorted again, because this is cheaper."""
        if len(items) * 8 < self._count:
            for item in items:
                self.add(item)
        else:
            self._hold(sorted(chain(self, items)))

    def _split(self, at: int) -> None:
        bucket = self._buckets[at]
        self._buckets[at : at + 1] = [bucket[:_BUCKET], bucket[_BUCKET:]]
        self._last[at : at + 1] = [bucket[_BUCKET - 1], bucket[-1]]

    def discard(self, item: T) -> None:
        """Remove an item from the collection. If the item is not in the collection, the method does
        nothing."""
        at = place = 0
        # saves the search in most cases, in which the item is the first
        if not self._buckets or self._buckets[0][0] != item:
            at = bisect_left(self._last, item)
            if at == len(self._last):
                return
            place = bisect_left(self._buckets[at], item)
        bucket = self._buckets[at]
        if bucket[place] != item:
            return
        del bucket[place]
        self._count -= 1
        if not bucket:
            del self._buckets[at], self._last[at]
        elif place == len(bucket):
            self._last[at] = bucket[-1]

    def first(self) -> T | None:
        """Return the smallest item of the collection."""
        return self._buckets[0][0] if self._buckets else None

    def last(self) -> T | None:
        """Return the largest item of the collection."""
        return self._last[-1] if self._last else None

    def first_from(self, key: tuple[Any, ...]) -> T | None:
        """Return the smallest item that is not smaller than `key`."""
        at = bisect_left(self._last, key)
        if at == len(self._last):
            return None
        bucket = self._buckets[at]
        return bucket[bisect_left(bucket, key)]

    def count_before(self, key: tuple[Any, ...]) -> int:
        """Return the number of items that are smaller than `key`."""
        at = bisect_left(self._last, key)
        inside = bisect_left(self._buckets[at], key) if at < len(self._last) else 0
        return sum(len(bucket) for bucket in self._buckets[:at]) + inside

    def iter_from(self, key: tuple[Any, ...]) -> Iterator[T]:
        """Return the items that are not smaller than `key`, in order. The collection must not change during
        the iteration."""
        at = bisect_left(self._last, key)
        if at == len(self._last):
            return
        bucket = self._buckets[at]
        yield from bucket[bisect_left(bucket, key) :]
        for later in self._buckets[at + 1 :]:
            yield from later

    def iter_down_from(self, key: tuple[Any, ...]) -> Iterator[T]:
        """Return the items that are smaller than `key`, largest first. The collection must not change during
        the iteration."""
        at = bisect_left(self._last, key)
        if at < len(self._last):
            bucket = self._buckets[at]
            yield from reversed(bucket[: bisect_left(bucket, key)])
        for earlier in reversed(self._buckets[:at]):
            yield from reversed(earlier)
