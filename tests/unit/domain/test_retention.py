"""Which versions may go."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.retention import DAY_SECONDS, Retention, beyond
from gridmill.errors import InputError

NOW = 100 * DAY_SECONDS


def version(number: int, name: str = "p/m", *, days: float = 0.0, **changes) -> Artifact:
    output = Output(kind=ArtifactKind.MODEL, uri=f"{name}/{number}")
    made = Artifact(id=f"{name}@{number}", name=name, number=number, output=output, fingerprint="f")
    return replace(made, created=NOW - days * DAY_SECONDS, **changes)


def going(some: list[Artifact], *stay: str, **limits: float) -> list[int]:
    wanted = {name: Retention(**limits) for name in ("p/m", "p/d")}
    return [one.number for one in beyond(some, wanted, NOW, frozenset(stay)) if one.name == "p/m"]


FIVE = [
    version(number, days=10 * (5 - number)) for number in (5, 4, 3, 2, 1)
]  # newest first: 0, 10, ... days


def test_a_version_goes_when_it_is_beyond_every_limit() -> None:
    assert going(FIVE, versions=2) == [3, 2, 1]
    assert going(FIVE, days=15) == [3, 2, 1]
    assert going(FIVE, versions=4, days=15) == [1]
    assert going(FIVE, versions=2, days=35) == [1]


def test_the_newest_stays_however_old() -> None:
    assert going([version(1, days=90)], days=1) == []


def test_what_is_named_stays() -> None:
    assert going(FIVE, "p/m@2", versions=1) == [4, 3, 1]


def test_what_a_kept_version_was_made_from_stays_until_that_goes() -> None:
    data = [version(2, "p/d"), version(1, "p/d", days=90)]
    kept = [version(1, "p/end", made_from=("p/m@1",)), *FIVE]
    assert going(kept, versions=2) == [3, 2]
    models = [version(2), version(1, days=90, made_from=("p/d@1",))]
    both = beyond([*models, *data], {n: Retention(versions=1) for n in ("p/m", "p/d")}, NOW, frozenset())
    assert {one.id for one in both} == {"p/m@1", "p/d@1"}


def test_versions_of_a_sink_go_too_but_those_that_a_kept_version_was_made_from() -> None:
    sink = Output(kind=ArtifactKind.SINK, uri="t")
    loaded = [replace(one, output=sink) for one in FIVE]
    assert going(loaded, versions=1) == [4, 3, 2, 1]
    assert going([version(1, "p/end", made_from=("p/m@2",)), *loaded], versions=1) == [4, 3, 1]


def test_jobs_without_a_limit_stay() -> None:
    assert beyond(FIVE, {}, NOW, frozenset()) == ()


@pytest.mark.parametrize("wrong", [{}, {"versions": 0}, {"days": 0}])
def test_limits_must_keep_something(wrong: dict) -> None:
    with pytest.raises(InputError):
        Retention(**wrong).check()


@given(st.data())
def test_nothing_kept_was_made_from_what_goes(data: st.DataObject) -> None:
    versions: list[Artifact] = []
    for place in range(data.draw(st.integers(0, 12))):
        sources = (
            data.draw(st.lists(st.sampled_from([one.id for one in versions]), max_size=2)) if versions else []
        )
        name = data.draw(st.sampled_from(["p/a", "p/b"]))
        number = 1 + sum(one.name == name for one in versions)
        versions.append(version(number, name, days=20 - place, made_from=tuple(sources)))
    newest_first = versions[::-1]
    limits = {name: Retention(versions=data.draw(st.integers(1, 3))) for name in ("p/a", "p/b")}
    gone = {one.id for one in beyond(newest_first, limits, NOW, frozenset())}
    kept = [one for one in versions if one.id not in gone]
    assert not gone & {source for one in kept for source in one.made_from}
    assert {one.name for one in kept} == {one.name for one in versions}
