"""Compare-and-set, as every record store implements it. Changes are applied in order, and each change names
the version that it expects.

`Store.counters` returns the highest numbers that were used in ids, also after the records with these ids
were deleted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from gridmill.domain.deployment import Deployment
from gridmill.domain.lease import Lease
from gridmill.domain.run import Run
from gridmill.errors import StaleVersionError
from gridmill.ports.store import Change, Put, key_of


def numbers_used(changes: Iterable[Change]) -> dict[str, int]:
    """Returns, for each name, the highest number that the ids of the new records in `changes` contain."""
    used: dict[str, int] = {}
    for change in changes:
        if (
            isinstance(change, Put)
            and change.expected == 0
            and isinstance(change.noun, (Run, Deployment, Lease))
        ):
            for name, number in _numbers(change.noun):
                used[name] = max(number, used.get(name, 0))
    return used


def _numbers(noun: Run | Deployment | Lease) -> Iterator[tuple[str, int]]:
    name, _, number = noun.id.rpartition("-")
    if number.isdecimal():
        yield name, int(number)
    if isinstance(noun, Run):
        yield "order", noun.order


Address: TypeAlias = tuple[type[Any], str]


def address_of(change: Change) -> Address:
    """Returns the class and the key of the changed record."""
    if isinstance(change, Put):
        return type(change.noun), key_of(change.noun)
    return change.noun, change.key


def check_versions(changes: Iterable[Change], version_of: Callable[[Address], int]) -> None:
    """Raises StaleVersionError unless each change finds the version that it expects. For each change, the
    earlier changes of the list are treated as applied.

    `version_of` returns the version of a record in the store, or 0 if there is no such record.
    """
    versions: dict[Address, int] = {}
    for change in changes:
        address = address_of(change)
        version = versions[address] if address in versions else version_of(address)
        if version != change.expected or (version == 0 and not isinstance(change, Put)):
            raise stale(address, change.expected, version)
        versions[address] = version + 1 if isinstance(change, Put) else 0


def stale(address: Address, expected: int, actual: int) -> StaleVersionError:
    """Returns the error that every store raises if a change expects another version."""
    what = f"{address[0].__name__} {address[1]!r}"
    if actual == 0:
        return StaleVersionError(f"{what} does not exist; version {expected} was expected")
    if expected == 0:
        return StaleVersionError(f"{what} already exists, with version {actual}")
    return StaleVersionError(f"{what} has version {actual}; {expected} was expected")


def rounds(changes: Iterable[Change]) -> Iterator[Sequence[Change]]:
    """Yields the changes in order, split into rounds. No two changes in a round concern the same record, so
    the changes in a round may be made in any order."""
    current: dict[Address, Change] = {}
    for change in changes:
        address = address_of(change)
        if address in current:
            yield [*current.values()]
            current = {}
        current[address] = change
    if current:
        yield [*current.values()]
