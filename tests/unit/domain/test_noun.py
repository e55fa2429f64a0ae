"""A dataclass of ours is what one of the standard library is, frozen or not."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import pytest

from gridmill.codec import decode, encode
from gridmill.domain import frozen


def declared(dataclass) -> type:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Machine:
        """One."""

        name: str
        cpus: float = 1.0
        tags: tuple[str, ...] = ()
        settings: dict[str, int] = field(default_factory=dict, hash=False)
        seen: int = field(default=0, compare=False)
        secret: str = field(default="", repr=False)

        def __post_init__(self) -> None:
            if self.cpus < 0:
                raise ValueError("cpus")

    return Machine


def with_state(dataclass) -> type:
    @dataclass(slots=True)
    class Count:
        """Changes."""

        name: str
        total: int = 0
        parts: list[int] = field(default_factory=list)
        twice: int = field(init=False)
        seen: set[str] = field(default_factory=set, init=False, compare=False)
        limit: int = field(default=3, init=False, repr=False)
        unit: str = field(default="rows", kw_only=True)

        def __post_init__(self) -> None:
            self.twice = 2 * self.total

    return Count


def with_cache(dataclass) -> type:
    @dataclass(frozen=True, kw_only=True)
    class Table:
        """Caches."""

        rows: tuple[int, ...]

        @cached_property
        def total(self) -> int:
            return sum(self.rows)

    return Table


OURS, THEIRS = declared(frozen.dataclass), declared(dataclasses.dataclass)


@frozen.dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    pass


@frozen.dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    a: int = 1


@frozen.dataclass(frozen=True, slots=True, kw_only=True)
class Derived(Base):
    b: int = 2


@frozen.dataclass(frozen=True, kw_only=True)
class Cached:
    rows: tuple[int, ...]

    @cached_property
    def total(self) -> int:
        return sum(self.rows)


@frozen.dataclass(slots=True)
class Node:
    name: str
    others: list[Any] = field(default_factory=list)


@frozen.dataclass(slots=True)
class Leaf(Node):
    size: int = 0


@frozen.dataclass(frozen=True, slots=True, kw_only=True)
class ByName:
    name: str
    note: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByName) and self.name == other.name


def test_it_says_the_same_of_itself():
    described = [
        [(f.name, f.type, f.default, f.default_factory, f.kw_only) for f in fields(one)]
        for one in (OURS, THEIRS)
    ]
    assert described[0] == described[1]
    assert repr(OURS(name="a", secret="x")) == repr(THEIRS(name="a", secret="x"))
    assert (OURS.__slots__, OURS.__match_args__) == (THEIRS.__slots__, THEIRS.__match_args__)
    assert is_dataclass(OURS)
    assert not hasattr(OURS(name="a"), "__dict__")


@pytest.mark.parametrize("other", [{}, {"cpus": 2.0}, {"settings": {"a": 1}}, {"seen": 3}, {"secret": "x"}])
def test_it_compares_and_hashes_the_same(other: dict):
    for kind in (OURS, THEIRS):
        one, two = kind(name="a"), kind(name="a", **other)
        assert (one == two) == (not set(other) - {"seen"})
        assert (hash(one) == hash(two)) == (not set(other) - {"seen", "settings"})
    assert OURS(name="a") != THEIRS(name="a")


def test_nothing_is_shared_between_defaults():
    assert OURS(name="a").settings is not OURS(name="b").settings


def test_it_does_not_change():
    one = OURS(name="a")
    for act in (
        lambda: setattr(one, "name", "b"),
        lambda: delattr(one, "name"),
        lambda: setattr(one, "x", 1),
    ):
        with pytest.raises(FrozenInstanceError):
            act()
    assert replace(one, cpus=3.0) == OURS(name="a", cpus=3.0)


@pytest.mark.parametrize("arguments", [{}, {"name": "a", "color": "red"}, {"name": "a", "cpus": -1}])
def test_wrong_arguments_are_refused_alike(arguments: dict):
    said = []
    for kind in (OURS, THEIRS):
        with pytest.raises((TypeError, ValueError)) as raised:
            kind(**arguments)
        said.append(str(raised.value))
    assert said[0] == said[1]
    with pytest.raises(TypeError):
        OURS("a")


def test_it_can_be_copied_sent_and_stored():
    one = OURS(name="a", settings={"b": 1})
    assert copy.deepcopy(one) == one == decode(encode(one), OURS)
    assert pickle.loads(pickle.dumps(Derived(b=3))) == Derived(a=1, b=3)


def test_without_fields_and_with_inherited_ones():
    assert (Empty(), hash(Empty()), repr(Empty())) == (Empty(), hash(Empty()), "Empty()")
    assert Derived() != Base()
    assert repr(Derived(a=3)) == "Derived(a=3, b=2)"


COUNTS = [with_state(one) for one in (frozen.dataclass, dataclasses.dataclass)]


@pytest.mark.parametrize(
    "given", [(), ("a",), ("a", 2), ("a", 2, [1]), ("a", 2, [1], 4), ("a", 2, [1], 4, 5)]
)
@pytest.mark.parametrize("named", [{}, {"unit": "bytes"}, {"total": 3}, {"limit": 1}, {"twice": 1}])
def test_state_takes_the_same_arguments(given: tuple, named: dict):
    results = []
    for kind in COUNTS:
        try:
            made = kind(*given, **named)
            results.append((repr(made), asdict(made), made.limit))
        except TypeError as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_state_changes_and_has_no_hash():
    for kind in COUNTS:
        one, other = kind("a"), kind("a")
        one.seen.add("x")
        assert one == other
        assert other.seen == set()
        one.total += 1
        assert one != other
        assert replace(one, name="b") == kind("b", 1)
        assert copy.deepcopy(one) == one
        with pytest.raises(TypeError, match="unhashable"):
            hash(one)
        with pytest.raises(AttributeError):
            one.other = 1
    assert COUNTS[0].__match_args__ == COUNTS[1].__match_args__ == ("name", "total", "parts")


def test_state_is_inherited_sent_and_shown_where_it_holds_itself():
    leaf = Leaf("a", size=2)
    assert pickle.loads(pickle.dumps(leaf)) == leaf == Leaf("a", [], 2)
    leaf.others.append(leaf)
    assert repr(leaf) == "Leaf(name='a', others=[...], size=2)"


def test_a_record_with_a_cached_property_does_not_change_either():
    for kind in (with_cache(frozen.dataclass), with_cache(dataclasses.dataclass)):
        one = kind(rows=(1, 2))
        assert (one.total, one, hash(one)) == (3, kind(rows=(1, 2)), hash(kind(rows=(1, 2))))
        with pytest.raises(FrozenInstanceError):
            one.rows = ()
    sent = Cached(rows=(1, 2))
    assert sent.total == 3
    assert pickle.loads(pickle.dumps(sent)) == sent


def test_a_comparison_of_its_own_is_kept():
    assert ByName(name="a") == ByName(name="a", note="b")
    assert len({ByName(name="a"), ByName(name="a")}) == 1
