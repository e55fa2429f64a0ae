"""Random datasets, made in several ways, each compared with the brute-force dataset.

Counts, whole numbers, texts, times and missing values are the same; floats within 1e-9 of the absolute values
that went into them. Each case is made whole and in one or two of the other ways: chunk by chunk, in buckets,
in parts as on several machines, and by rows that are appended.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from gridmill.domain.artifact import Artifact, Input, Output
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.pod_protocol import JobPart
from gridmill.errors import DataError, InputError
from gridmill.jobs.dataset import key_order, window_engine, window_kernels, write
from gridmill.jobs.dataset.labels import NO_LABEL
from gridmill.jobs.dataset.run import KEYLESS, run
from gridmill.jobs.dataset.splits import AFTER, APART, GAP, MISSING, REACHES, UNSEEN
from gridmill.jobs.tables import plain_schema
from tests.kit.dataset_case import DatasetCase
from tests.oracles.dataset_draws import KINDS, Drawn, draw_case
from tests.oracles.dataset_encoders import encode
from tests.oracles.dataset_splits import split_rows
from tests.oracles.dataset_values import OneOf, Row
from tests.oracles.datasets import Oracle

REASONS = {
    NO_LABEL: "label",
    UNSEEN: "label",
    REACHES: "later split",
    AFTER: "until",
    GAP: "gap",
    APART: "disagree",
    MISSING: "required",
}
ARROW = {
    "text": pa.string(),
    "time": pa.timestamp("us", "UTC"),
    "float": pa.float64(),
    "int": pa.int64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
}


def case(seed: int, folder: Path) -> None:
    """Draw tables and a declaration, compute the dataset in several ways, and compare each."""
    random = Random(seed)
    for _ in range(random.choice((1, 6, 6, 6))):
        drawn = draw_case(random)
        expected = Expected(drawn)
        if expected.can_be_learned:
            break
    ways = [way for way in random.sample(list(WAYS)[1:], 2) if WAYS[way].fits(drawn.spec)]
    check(random, folder, drawn, expected, ["whole", *ways[: random.choice((1, 1, 2))]])


def check(random: Random, folder: Path, drawn: Drawn, expected: "Expected", ways: Sequence[str]) -> None:
    """Compute the dataset in these ways, and compare each. Raises AssertionError."""
    for name in ways:
        spec = replace(drawn.spec, incremental=True) if name == "grown" else drawn.spec
        try:
            made = WAYS[name].make(random, folder / name, replace(drawn, spec=spec))
        except (DataError, InputError) as error:
            if expected.is_refused(str(error)):
                return
            raise AssertionError(f"{name}: {error}\n{show(drawn)}") from error
        problems = list(expected.problems(made))
        assert not problems, f"{name}: " + "\n".join(problems[:20]) + f"\n{show(drawn)}"


def show(drawn: Drawn) -> str:
    rows = [f"{name}: {row}" for name in drawn.spec.references() for row in drawn.tables[name]]
    return "\n".join([str(drawn.spec), *rows[:80]])


@dataclass
class Dataset:
    """What the engine made."""

    rows: list[Row]
    output: Output
    ordered: bool = False


class Expected:
    """What the oracle makes."""

    def __init__(self, drawn: Drawn) -> None:
        oracle = Oracle(drawn.spec, drawn.read)
        self.spec, self.made = drawn.spec, oracle.made()
        times = [row["t"] for row in drawn.tables["obs"] if row["t"] is not None]
        split_rows(drawn.spec, self.made, times)
        self.kept = [one for one in self.made if not one.reasons]
        self.keyless = oracle.without_place
        encode(drawn.spec, self.made)
        self.rows: dict[int, Row] = {
            one.source["id"]: {**one.values, **one.labels}
            | ({"split": one.split} if drawn.spec.split else {})
            for one in self.kept
        }

    @property
    def splits(self) -> Counter[str]:
        return Counter(one.split for one in self.kept) if self.spec.split else Counter()

    @property
    def can_be_learned(self) -> bool:
        """Whether each split that is declared has rows, and the label of those to train on varies."""
        split = self.spec.split
        for name in ("validation", "test"):
            declared = split and (getattr(split, name) or getattr(split, f"{name}_from"))
            if declared and not self.splits[name]:
                return False
        rows = [one for one in self.kept if one.split == "train"]
        return bool(rows) and all(
            len({_plain(one.labels[name]) for one in rows}) > 1 for name in rows[0].labels
        )

    def is_refused(self, error: str) -> bool:
        """Whether the error is right: nothing is left, or nothing can be learned from what is."""
        if "no row is left" in error:
            return not self.kept
        if "split has no row" in error:
            names = ("train", "validation", "test")
            return any(f"the {name} split" in error and not self.splits[name] for name in names)
        if "nothing to learn" in error:
            rows = [one for one in self.kept if one.split == "train"] or self.kept
            return any(len({_plain(one.labels[name]) for one in rows}) == 1 for name in rows[0].labels)
        return "the data reaches from" in error and self.spec.split is not None

    def problems(self, made: Dataset) -> Iterator[str]:
        """What is wrong with the rows, and with what was counted."""
        details = made.output.details
        if details["splits"] != self.splits:
            yield f"splits are {details['splits']}, not {dict(self.splits)}"
        yield from self._dropped(details["dropped"])
        kept, found = (
            Counter(ids)
            for ids in ([one.source["id"] for one in self.kept], [row["id"] for row in made.rows])
        )
        if kept != found:
            yield f"rows are missing: {sorted(kept - found)}, too many: {sorted(found - kept)}"
            return
        for row in made.rows:
            yield from self._compare(row["id"], self.rows[row["id"]], row)
        if made.ordered and not _is_ordered(made.rows, self.spec):
            yield "the rows are not in the order of entity and time"

    def _dropped(self, counted: Mapping[str, int]) -> Iterator[str]:
        """Each row is dropped for one reason; of those that have several, which one is not documented."""
        if counted.get(KEYLESS, 0) != self.keyless:
            yield f"{counted.get(KEYLESS)} rows without time or entity, not {self.keyless}"
        dropped = [one.reasons for one in self.made if one.reasons]
        if sum(counted.values()) != len(dropped) + self.keyless:
            yield f"dropped are {dict(counted)}, not {Counter(map(str, dropped))}"
        for reason in set(REASONS.values()):
            most = sum(reason in one for one in dropped)
            least = sum(one == {reason} for one in dropped)
            told = sum(count for text, count in counted.items() if REASONS.get(text) == reason)
            if not least <= told <= most:
                yield f"{told} rows are dropped for {reason}, not {least} to {most}"

    def _compare(self, identity: int, expected: Row, made: Row) -> Iterator[str]:
        if expected.keys() != made.keys():
            yield f"columns: {sorted(made.keys() ^ expected.keys())}"
            return
        for name, value in expected.items():
            if not is_same(value, made[name]):
                yield f"row {identity}: {name} is {made[name]!r}, not {value!r}"
            if isinstance(value, OneOf):
                right = (one for one in value.options if is_same(one, made[name]))
                expected[name] = next(right, value)  # the other ways give the same one


def _plain(value: Any) -> Any:
    """0.0 and -0.0 are the same."""
    return float(value) if isinstance(value, float | int) else value


def is_same(expected: Any, made: Any) -> bool:
    if isinstance(expected, OneOf):
        return any(is_same(one, made) for one in expected.options)
    if expected is None or made is None:
        return expected is made
    if isinstance(expected, float | int) and isinstance(made, float | int):
        if isinstance(expected, bool) != isinstance(made, bool):
            return False
        if math.isnan(expected) or math.isnan(made):
            return math.isnan(expected) and math.isnan(made)
        return expected == made or abs(expected - made) <= 1e-9 * getattr(expected, "scale", 0.0)
    if isinstance(made, datetime):
        made = made.replace(tzinfo=None)
    return bool(expected == made)


def _is_ordered(rows: Sequence[Row], spec: DatasetSpec) -> bool:
    assert spec.basis is not None
    keys = [tuple(row[name] for name in (*spec.basis.entity, spec.basis.time)) for row in rows]
    return keys == sorted(keys)


# Ways


@dataclass(frozen=True)
class Way:
    make: Callable[[Random, Path, Drawn], Dataset]
    fits: Callable[[DatasetSpec], bool] = lambda spec: True


def given(folder: Path, tables: Mapping[str, Sequence[Row]], spec: DatasetSpec) -> DatasetCase:
    """Tables as a first load wrote them."""
    case = DatasetCase(folder)
    for name in spec.references():
        case.give(name, as_arrow(name, tables[name]))
        note_version(case, name)
    return case


def as_arrow(name: str, rows: Sequence[Row]) -> pa.Table:
    return pa.table(
        {column: pa.array([row[column] for row in rows], ARROW[kind]) for column, kind in KINDS[name].items()}
    )


def note_version(case: DatasetCase, name: str) -> None:
    output = case.tables[name]
    version = DeltaTable(case.folder / "root" / output.uri).version()
    case.tables[name] = replace(output, table_version=version)


def append(case: DatasetCase, name: str, rows: Sequence[Row]) -> None:
    """One more load."""
    table = as_arrow(name, rows)
    path = case.folder / "root" / case.tables[name].uri
    write_deltalake(path, table.cast(plain_schema(table.schema)), mode="append")
    note_version(case, name)


def dataset(case: DatasetCase, output: Output, *, ordered: bool = False) -> Dataset:
    return Dataset(rows=case.table(output).to_pylist(), output=output, ordered=ordered)


def whole(random: Random, folder: Path, drawn: Drawn) -> Dataset:
    case = given(folder, drawn.tables, drawn.spec)
    return dataset(case, case.make(drawn.spec), ordered=True)


@contextmanager
def rows_at_a_time(rows: int) -> Iterator[None]:
    """Chunks, pieces, batches and slices of so many rows, so that entities are cut in time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CHUNK_ROWS", "BATCH_ROWS", "PIECE_ROWS", "CHUNK_VALUES"):
            patch.setattr(window_engine, name, rows)
        patch.setattr(key_order, "BATCH_ROWS", rows)
        patch.setattr(window_kernels, "SLICE_ROWS", rows)
        patch.setattr(write, "MOST_VALUES", 0)
        yield


def chunked(random: Random, folder: Path, drawn: Drawn) -> Dataset:
    case = given(folder, drawn.tables, drawn.spec)
    with rows_at_a_time(random.choice((1, 2, 5, 20, 100))):
        return dataset(case, case.make(drawn.spec, cpus=random.choice((1, 3))), ordered=True)


def bucketed(random: Random, folder: Path, drawn: Drawn) -> Dataset:
    spec = replace(drawn.spec, buckets=random.choice((2, 3, 7)))
    case = given(folder, drawn.tables, spec)
    return dataset(case, case.make(spec))


def parted(random: Random, folder: Path, drawn: Drawn) -> Dataset:
    """As on several pods: each makes a part, and one puts them together."""
    spec, count = replace(drawn.spec, buckets=random.choice((2, 5))), random.choice((2, 3))
    case = given(folder, drawn.tables, spec)
    uris = []
    for number in range(count):
        context = case.context(spec)
        part = JobPart(of="p-1/d", number=number, count=count)
        run(replace(context, order=replace(context.order, part=part)))
        uris.append(context.order.output_uri)
    context = case.context(spec)
    output = run(replace(context, order=replace(context.order, parts=tuple(uris)))).outputs[0]
    return dataset(case, output)


def can_be_cut(spec: DatasetSpec) -> bool:
    """Whether there is an entity: buckets need one."""
    assert spec.basis is not None
    return bool(spec.basis.entity)


def grown(random: Random, folder: Path, drawn: Drawn) -> Dataset:
    """In loads that follow each other: most often each of later rows, sometimes of any."""
    loads = list(cut_in_loads(random, drawn))
    case = given(folder, loads[0], drawn.spec)
    made: Output | None = None
    for number, load in enumerate(loads):
        if number:
            for name in drawn.spec.references():
                if load[name]:
                    append(case, name, load[name])
        try:
            made = make_upon(case, drawn.spec, made)
        except (DataError, InputError):
            made = None
            if number == len(loads) - 1:
                raise
    assert made is not None
    return dataset(case, made)


def make_upon(case: DatasetCase, spec: DatasetSpec, earlier: Output | None) -> Output:
    """The next version."""
    spec.check()
    context = case.context(spec)
    if earlier is not None:
        artifact = Artifact(id="p/d@1", name="p/d", number=1, output=earlier, fingerprint="")
        order = replace(context.order, earlier=(Input(name="d", artifact=artifact),))
        context = replace(context, order=order)
    return run(context).outputs[0]


def cut_in_loads(random: Random, drawn: Drawn) -> Iterator[dict[str, list[Row]]]:
    times = sorted(row["t"] for row in drawn.tables["obs"] if row["t"] is not None)
    cuts = sorted(random.sample(times, min(len(times), random.choice((1, 2)))))
    by_time = random.random() < 0.75
    clocks = {"obs": "t", "news": "m", "exits": "h"}

    def load_of(name: str, row: Row) -> int:
        time = row.get(clocks.get(name, "")) if by_time else random.choice(times)
        return sum(time > cut for cut in cuts) if time is not None else 0

    numbered = {name: [(load_of(name, row), row) for row in rows] for name, rows in drawn.tables.items()}
    for number in range(len(cuts) + 1):
        yield {name: [row for load, row in rows if load == number] for name, rows in numbered.items()}


def can_grow(spec: DatasetSpec) -> bool:
    try:
        replace(spec, incremental=True).check()
    except InputError:
        return False
    return True


WAYS = {
    "whole": Way(whole),
    "chunked": Way(chunked),
    "bucketed": Way(bucketed, can_be_cut),
    "parted": Way(parted, can_be_cut),
    "grown": Way(grown, can_grow),
}
