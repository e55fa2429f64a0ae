"""Copies of records with changes: the same as the standard library's, whatever the form of the class."""

from dataclasses import FrozenInstanceError, field

import pytest

from gridmill.domain.frozen import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A record."""

    name: str
    numbers: tuple[int, ...] = ()
    marks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A record that refuses a value."""

    count: int

    def __post_init__(self) -> None:
        """Refuse less than 0."""
        if self.count < 0:
            raise ValueError(self.count)


@dataclass(slots=True)
class Changing:
    """State, with a field that only it sets."""

    name: str
    made: list[int] = field(default_factory=list, init=False)


def test_a_copy_has_the_changes_and_all_other_values_and_does_not_change_either():
    before = Plain(name="a", numbers=(1, 2), marks={"x": 1})
    after = replace(before, name="b")
    assert after == Plain(name="b", numbers=(1, 2), marks={"x": 1})
    assert type(after) is Plain
    assert after.marks is before.marks
    assert before.name == "a"
    with pytest.raises(FrozenInstanceError):
        after.name = "c"  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        replace(before, nmae="b")  # type: ignore[call-arg]


def test_a_copy_is_checked_and_made_as_its_class_says():
    assert replace(Checked(count=1), count=2) == Checked(count=2)
    with pytest.raises(ValueError, match="-1"):
        replace(Checked(count=1), count=-1)
    one = Changing(name="a")
    one.made.append(1)
    assert replace(one, name="b").made == []
