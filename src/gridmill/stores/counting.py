"""Which numbers a noun uses up: what `Store.counters` remembers, also once the noun is deleted."""

from collections.abc import Iterable, Iterator

from gridmill.model.deployment import Deployment
from gridmill.model.run import Run
from gridmill.ports.store import Change, Put


def numbers_used(changes: Iterable[Change]) -> dict[str, int]:
    """The highest number of each name among nouns that are new in `changes`."""
    used: dict[str, int] = {}
    for change in changes:
        if isinstance(change, Put) and change.expected == 0:
            for name, number in _numbers(change):
                used[name] = max(number, used.get(name, 0))
    return used


def _numbers(put: Put) -> Iterator[tuple[str, int]]:
    noun = put.noun
    if isinstance(noun, Run | Deployment):
        name, _, number = noun.id.rpartition("-")
        if number.isdecimal():
            yield name, int(number)
    if isinstance(noun, Run):
        yield "order", noun.order
