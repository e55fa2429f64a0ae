"""A frozen dataclass of ours is what one of the standard library is."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field, fields, is_dataclass, replace

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
