"""Faults put into a copy of the dataset job: the random datasets must find each.

A mutation replaces one text of a source file. `python -m tests.oracles.dataset_mutations NAME`, with the copy
first in PYTHONPATH, tries cases that can show the fault until one does, and prints the number of that one.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import gridmill
from gridmill.model.dataset import DatasetSpec, Lag, SplitBy, Window
from gridmill.model.encoder import Method
from tests.oracles.dataset_cases import WAYS, Expected, check
from tests.oracles.dataset_draws import Drawn, draw_case

SOURCE = Path(gridmill.__file__).parent
JOB = Path("jobs") / "dataset"
ROOT = Path(__file__).parents[2]
Fits = Callable[[DatasetSpec], bool]


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """`text` of `file` becomes `instead`; cases that `fit` can show it when they are made in that `way`."""

    name: str
    file: str
    text: str
    instead: str
    fits: Fits
    way: str = "whole"
    cases: int = 60
    """Of so many cases that fit one must fail."""


def is_label(kind: str) -> Fits:
    """Whether the label is of that kind."""

    def fits(spec: DatasetSpec) -> bool:
        label = spec.label
        if label is None:
            return False
        kinds = {
            "own": label.is_own,
            "events": label.table is not None,
            "horizon": label.table is None and label.horizon_seconds is not None,
            "steps": label.steps is not None,
            "rows": label.next_rows is not None,
        }
        return kinds[kind]

    return fits


def has_delay(spec: DatasetSpec) -> bool:
    """Whether it matters in the splits that labels are known late."""
    timed = spec.split is not None and bool(spec.split.test_from or spec.split.test)
    return spec.label is not None and spec.label.delay_seconds is not None and timed


def has_times(spec: DatasetSpec) -> bool:
    return spec.split is not None and bool(spec.split.test_from or spec.split.validation_from)


def is_drawn(spec: DatasetSpec) -> bool:
    return spec.split is not None and spec.split.by != SplitBy.TIME


def encodes(*methods: Method) -> Fits:
    return lambda spec: spec.split is not None and any(one.method in methods for one in spec.encoders)


def windows_of_late_labels(spec: DatasetSpec) -> bool:
    """Whether a part says an earlier time for the label's own column than the label does."""
    label = spec.label
    parts: list[Window | Lag] = [*spec.windows, *spec.lags]
    return (
        label is not None
        and label.is_own
        and label.delay_seconds is not None
        and any(part.column in label.sources and part.known_at for part in parts)
    )


MUTATIONS = (
    Mutation(
        name="a horizon off by a minute",
        file="labels.py",
        text="    ahead = interval(label.horizon_seconds or 0.0)\n",
        instead="    ahead = interval((label.horizon_seconds or 0.0) + 60)\n",
        fits=is_label("horizon"),
    ),
    Mutation(
        name="steps off by one",
        file="labels.py",
        text="over = f'{label.steps} + ",
        instead="over = f'{label.steps + 1} + ",
        fits=is_label("steps"),
    ),
    Mutation(
        name="the next rows begin at the row itself",
        file="labels.py",
        text="(1 + {after}) FOLLOWING AND ({rows} + {after})",
        instead="({after}) FOLLOWING AND ({rows} - 1 + {after})",
        fits=is_label("rows"),
    ),
    Mutation(
        name="the delay of a label ignored",
        file="labels.py",
        text="return known if label.delay_seconds is None else",
        instead="return known if True else",
        fits=has_delay,
    ),
    Mutation(
        name="a label that is never known",
        file="labels.py",
        text="if dated and label.table is None:",
        instead="if False:",
        fits=lambda spec: spec.label is not None and spec.label.known_at is not None,
    ),
    Mutation(
        name="a label that is no number",
        file="labels.py",
        text='return f"{name} IS NULL OR isnan({name})" if type_ in FLOATS else',
        instead='return f"{name} IS NULL" if type_ in FLOATS else',
        fits=lambda spec: spec.label is not None and spec.label.column in ("x", "y"),
    ),
    Mutation(
        name="the first row of a split in the one before",
        file="splits.py",
        text='f"WHEN \\"{TIME}\\" >= {moment(begins)} THEN \'{name}\'"',
        instead='f"WHEN \\"{TIME}\\" > {moment(begins)} THEN \'{name}\'"',
        fits=has_times,
    ),
    Mutation(
        name="a label known when the next split begins",
        file="splits.py",
        text='"{LABEL_TIME}" >= {moment(start)}',
        instead='"{LABEL_TIME}" > {moment(start)}',
        fits=lambda spec: has_times(spec) and spec.label is not None and not spec.label.is_own,
        cases=200,
    ),
    Mutation(
        name="labels that reach into the next split",
        file="splits.py",
        text="    if has_time(label):\n",
        instead="    if False:\n",
        fits=lambda spec: has_times(spec) and spec.label is not None and not spec.label.is_own,
    ),
    Mutation(
        name="the row at the end of the splits",
        file="splits.py",
        text='f"WHEN \\"{TIME}\\" >= {moment(bounds.until)} THEN \'{AFTER}\'"',
        instead='f"WHEN \\"{TIME}\\" > {moment(bounds.until)} THEN \'{AFTER}\'"',
        fits=lambda spec: spec.split is not None and spec.split.until is not None,
    ),
    Mutation(
        name="no gap before a split",
        file="splits.py",
        text="    if bounds.gap:\n",
        instead="    if False:\n",
        fits=lambda spec: spec.split is not None and bool(spec.split.gap),
    ),
    Mutation(
        name="drawn without a seed",
        file="splits.py",
        text="literal(str(bounds.seed))",
        instead="literal(str(0))",
        fits=lambda spec: is_drawn(spec) and spec.split is not None and spec.split.seed > 0,
    ),
    Mutation(
        name="a split by time that the drawn one is not",
        file="splits.py",
        text="if bounds.shares is not None and (bounds.validation_from or bounds.test_from):\n        yield",
        instead="if False:\n        yield",
        fits=lambda spec: is_drawn(spec) and has_times(spec),
    ),
    Mutation(
        name="shares of the rows after the end",
        file="checks.py",
        text="validation_from = (test_from or last) -",
        instead="validation_from = last -",
        fits=lambda spec: spec.split is not None and bool(spec.split.validation) and not is_drawn(spec),
    ),
    Mutation(
        name="a missing value that is required",
        file="splits.py",
        text="    if required:\n",
        instead="    if False:\n",
        fits=lambda spec: bool(spec.required),
    ),
    Mutation(
        name="encoders fitted on all rows",
        file="encode.py",
        text='return (ds.field("split") == "train") & mine if',
        instead="return mine if",
        fits=encodes(Method.STANDARD, Method.MINMAX, Method.MEAN, Method.FREQUENCY),
    ),
    Mutation(
        name="encoders fitted on rows in no split",
        file="encode.py",
        text="isin([AFTER, GAP, APART])",
        instead='isin(["nothing"])',
        fits=lambda spec: (
            encodes(Method.STANDARD, Method.MINMAX, Method.MEAN, Method.FREQUENCY)(spec)
            and spec.split is not None
            and bool(spec.split.until or spec.split.gap or (is_drawn(spec) and has_times(spec)))
        ),
    ),
    Mutation(
        name="the deviation of a sample",
        file="encoders.py",
        text="known.std()",
        instead="known.std(ddof=min(1, len(known) - 1))",
        fits=encodes(Method.STANDARD),
    ),
    Mutation(
        name="quartiles",
        file="encoders.py",
        text="[0.25, 0.5, 0.75]",
        instead="[0.2, 0.5, 0.8]",
        fits=encodes(Method.ROBUST),
    ),
    Mutation(
        name="the target of a label known at the row's time",
        file="encoders.py",
        text='at = np.searchsorted(moments, times, "left")',
        instead='at = np.searchsorted(moments, times, "right")',
        fits=encodes(Method.TARGET),
    ),
    Mutation(
        name="a target without smoothing",
        file="encoders.py",
        text="    weight = rows + smoothing\n",
        instead="    weight = rows + 0.0\n",
        fits=lambda spec: any(one.method is Method.TARGET and one.smoothing for one in spec.encoders),
    ),
    Mutation(
        name="what training never saw",
        file="encoders.py",
        text="other=-1.0",
        instead="other=0.0",
        fits=encodes(Method.ORDINAL),
    ),
    Mutation(
        name="a late label seen early",
        file="label_clock.py",
        text="WHEN {mine} < {theirs} THEN {theirs} END",
        instead="WHEN {mine} < {theirs} THEN {mine} END",
        fits=windows_of_late_labels,
    ),
    Mutation(
        name="events complete for longer than they are",
        file="checks.py",
        text="return Seen(labels=until + delay,",
        instead="return Seen(labels=until + delay + timedelta(hours=1),",
        fits=is_label("events"),
    ),
    Mutation(
        name="rows final before their labels are",
        file="incremental.py",
        text="return min((complete or last) - timedelta(seconds=label.horizon_seconds), last)",
        instead="return last",
        fits=lambda spec: is_label("horizon")(spec) or is_label("events")(spec),
        way="grown",
    ),
    Mutation(
        name="rows appended that are not later",
        file="incremental.py",
        text="if first is not None and first <= seen:",
        instead="if False:",
        fits=lambda spec: True,
        way="grown",
    ),
    Mutation(
        name="half the history that windows need",
        file="incremental.py",
        text="    return after - timedelta(seconds=longest)",
        instead="    return after - timedelta(seconds=longest / 60)",
        fits=lambda spec: bool(spec.windows) and not spec.lags and spec.basis is not None,
        way="grown",
        cases=200,
    ),
    Mutation(
        name="dropped rows counted by none of the parts",
        file="parts.py",
        text='for name in ("dropped", "final", "splits")}',
        instead='for name in ("final", "splits")} | {"dropped": Counter[str]()}',
        fits=lambda spec: spec.split is not None,
        way="parted",
    ),
)


def mutated_text(mutation: Mutation) -> str:
    """The file with the fault in it. Raises ValueError where the text is not there once."""
    file = JOB / mutation.file
    text = (SOURCE / file).read_text()
    if text.count(mutation.text) != 1:
        raise ValueError(
            f"{mutation.name}: {file} has {text.count(mutation.text)} times {mutation.text!r}; "
            "correct the mutation in tests/oracles/dataset_mutations.py"
        )
    return text.replace(mutation.text, mutation.instead)


def mutated(mutation: Mutation, folder: Path) -> Path:
    """A copy of the package with the fault in it."""
    package, text = folder / "gridmill", mutated_text(mutation)
    for path in SOURCE.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            copy = package / path.relative_to(SOURCE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(path)
    (package / JOB / mutation.file).unlink()
    (package / JOB / mutation.file).write_text(text)
    return folder


def cases(mutation: Mutation) -> Iterator[tuple[int, Drawn]]:
    """The cases that can show the fault, with their numbers."""
    fitting = (
        (number, drawn)
        for number in range(100_000)
        if mutation.fits((drawn := draw_case(Random(number))).spec) and WAYS[mutation.way].fits(drawn.spec)
    )
    return islice(fitting, mutation.cases)


def attempt(mutation: Mutation, number: int, drawn: Drawn) -> None:
    """Make one case. Raises an error where the engine and the oracle differ."""
    expected = Expected(drawn)
    if expected.kept:
        with tempfile.TemporaryDirectory() as folder:
            check(Random(number), Path(folder), drawn, expected, [mutation.way])


def first_shown(mutation: Mutation) -> int | None:
    """The first case that shows the fault."""
    for number, drawn in cases(mutation):
        try:
            attempt(mutation, number, drawn)
        except Exception:  # noqa: BLE001 - an engine that fails is found as well
            return number
    return None


def find(mutation: Mutation, folder: Path) -> int | None:
    """The first case that shows the fault, in a process that imports the mutated copy."""
    source = mutated(mutation, folder)
    paths = os.pathsep.join([str(source), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracles.dataset_mutations", mutation.name],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = done.stdout.splitlines()[-1].split()
    assert answer[0] == str(source / "gridmill"), f"{answer[0]} was tried, not the mutated copy"
    return int(answer[1]) if len(answer) > 1 else None


if __name__ == "__main__":
    (chosen,) = (one for one in MUTATIONS if one.name == sys.argv[1])
    shown = first_shown(chosen)
    print(Path(gridmill.__file__).parent, "" if shown is None else shown)
