import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridmill.cli.configure import read_change
from gridmill.declarations.read import read_constraint, read_outage
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.sink import Constraint, Outage, SinkSpec
from gridmill.domain.sink_overrides import (
    Alterations,
    AlterVerb,
    SinkChange,
    SinkPart,
    altered,
    altered_pipeline,
    with_change,
)
from gridmill.domain.source import Source
from gridmill.errors import InputError, NotFoundError
from gridmill.sdk.client import change_of
from gridmill.testing.fake_grid import FakeGrid

ADD, REMOVE = AlterVerb.ADD, AlterVerb.REMOVE
PRICE = Constraint(column="price", min=0)
OUTAGE = Outage(time="at", begins="2024-01-01", ends="2024-01-02")
SPEC = SinkSpec(source=Source(path="a.csv"), constraints=(PRICE,), metrics={"n": "count(*)"})


def apply(*changes: SinkChange, spec: SinkSpec = SPEC) -> tuple[SinkChange, ...]:
    kept: tuple[SinkChange, ...] = ()
    for change in changes:
        kept = with_change(spec, kept, change)
    return kept


def test_each_part_is_added_and_removed() -> None:
    kept = apply(
        change_of(ADD, "b.csv"),
        change_of(ADD, Constraint(unique=("id",))),
        change_of(ADD, "sum(price)", metric="revenue"),
        change_of(ADD, OUTAGE),
        SinkChange(verb=REMOVE, part=SinkPart.SOURCE, key="a.csv"),
        SinkChange(verb=REMOVE, part=SinkPart.CONSTRAINT, key="price: less than 0"),
        SinkChange(verb=REMOVE, part=SinkPart.METRIC, key="n"),
    )
    now = altered(SPEC, kept)
    assert now.source.paths == ("b.csv",)
    assert now.constraints == (Constraint(unique=("id",)),)
    assert now.metrics == {"revenue": "sum(price)"}
    assert now.outages == (OUTAGE,)
    assert altered(now, kept) == now  # of a spec that has them already


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_of(ADD, PRICE), "already has the constraint 'price: less than 0'"),
        (change_of(ADD, "a.csv"), "already has the source"),
        (SinkChange(verb=REMOVE, part=SinkPart.METRIC, key="m"), "has no metric 'm'"),
        (SinkChange(verb=REMOVE, part=SinkPart.SOURCE, key="a.csv"), "the only source"),
    ],
)
def test_what_is_there_is_not_added_and_what_is_not_is_not_removed(change: SinkChange, message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply(change)


KEYS = st.sampled_from(["price: less than 0", "id: not unique"])


@given(st.lists(st.tuples(st.sampled_from([ADD, REMOVE]), KEYS), max_size=8))
def test_after_any_changes_what_was_said_last_holds(steps: list[tuple[AlterVerb, str]]) -> None:
    of = {"price: less than 0": PRICE, "id: not unique": Constraint(unique=("id",))}
    kept: tuple[SinkChange, ...] = ()
    there = {"price: less than 0"}
    for verb, key in steps:
        change = SinkChange(
            verb=verb, part=SinkPart.CONSTRAINT, key=key, constraint=of[key] if verb == ADD else None
        )
        if (key in there) == (verb == ADD):
            with pytest.raises(InputError):
                with_change(SPEC, kept, change)
            continue
        kept = with_change(SPEC, kept, change)
        there = there ^ {key}
        for spec in (SPEC, altered(SPEC, kept)):
            assert set(altered(spec, kept).constraints) == {of[key] for key in there}
    assert len(kept) <= 2


def test_what_is_taken_back_is_altered_no_more() -> None:
    assert apply(change_of(ADD, "b.csv"), SinkChange(verb=REMOVE, part=SinkPart.SOURCE, key="b.csv")) == ()


def test_only_the_sink_of_that_name() -> None:
    pipeline = Pipeline(name="p", jobs=(Job(name="s", sink=SPEC), Job(name="t", sink=SPEC)))
    changes = apply(change_of(ADD, OUTAGE))
    one, other = altered_pipeline(pipeline, {"p/s": Alterations(name="p/s", changes=changes)}).jobs
    assert one.sink is not None
    assert one.sink.outages == (OUTAGE,)
    assert other.sink == SPEC


def test_parts_as_they_are_written() -> None:
    assert read_constraint("{column: price, min: 0}") == PRICE
    assert read_constraint("{foreign_key: shop, references: shops}").references == "shops"
    assert read_outage("{time: at, begins: 2024-01-01, ends: 2024-01-02}") == OUTAGE
    for text, message in (
        ("{column: price, most: 0}", "most"),
        ("price", "is not a mapping"),
        ("{column: price}", "no condition is given for column 'price'"),
    ):
        with pytest.raises(InputError, match=message):
            read_constraint(text)


def test_the_grid_in_memory_keeps_them() -> None:
    grid = FakeGrid()
    grid.apply(Pipeline(name="p", jobs=(Job(name="s", sink=SPEC),)))
    assert grid.alter_sink("p/s", change_of(ADD, OUTAGE)).changes == (change_of(ADD, OUTAGE),)
    assert [one.name for one in grid.alterations().items] == ["p/s"]
    with pytest.raises(NotFoundError):
        grid.alter_sink("p/other", change_of(ADD, OUTAGE))


@pytest.mark.parametrize(
    ("part", "text"),
    [("source", "b.csv"), ("constraint", "{unique: id}"), ("metric", "n=count(*)"), ("outage_window", "")],
)
def test_a_sort_of_part_may_be_said_in_the_plural(part: str, text: str) -> None:
    text = text or "{time: at, begins: 2024-01-01, ends: 2024-01-02}"
    assert read_change(["add", part + "s", text]) == read_change(["add", part, text])


@pytest.mark.parametrize(
    "words", [[], ["add"], ["add", "colour", "x"], ["mend", "source", "x"], ["add", "source"]]
)
def test_other_words_are_told_what_is_meant(words: list[str]) -> None:
    with pytest.raises(InputError, match="is not a change of a sink"):
        read_change(words)
