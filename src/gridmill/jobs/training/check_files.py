"""Checks that a model's files, loaded as a reader loads them, give the answers of the trained model."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError, InternalError
from gridmill.jobs.features import Encoding, Floats, Integers, windows
from gridmill.jobs.model_files import Predictor
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.result import TrainedModel

ROWS = 1000
"""How many training rows are compared: all if there are fewer."""
PIECE_CELLS = 2**20
POKED_INPUTS, POKED_CELLS = 64, 2**21
EXTREMES = (
    np.nan,
    np.inf,
    -np.inf,
    np.finfo(float).max,
    -np.finfo(float).max,
    1e30,
    0.0,
    np.finfo(float).smallest_subnormal,
)
STEPS = 8
"""Floating-point steps (ulp) of a double that an answer may differ by, whatever the tolerance: sums are made
in another order."""
ALIKE = 1e-3
"""How far the answers of a user's own code or file for a row may differ when other rows are in the same call:
in standard deviations of the label, or of a probability."""
SINGLE = 1e-6
"""The additional tolerance for single floats, as a share of the answer."""
MOST_SECONDS = 1.0
"""A user's own code is called again for as many rows as it answers in this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRows:
    """Training rows of a frame to ask a model for."""

    frame: SortedFrame
    rows: Integers
    length: int | None

    def inputs(self, rows: Integers) -> Floats:
        """[rows, inputs] or [rows, length, inputs]."""
        frame = self.frame
        return frame.inputs[rows if self.length is None else windows(rows, frame.starts, self.length)]

    def pieces(self) -> Iterator[tuple[Integers, Floats]]:
        """Row numbers with their inputs, some at a time."""
        cells = self.frame.inputs.shape[1] * (self.length or 1)
        step = max(1, PIECE_CELLS // max(1, cells))
        for first in range(0, len(self.rows), step):
            rows = self.rows[first : first + step]
            yield rows, self.inputs(rows)


def sample_rows(frame: SortedFrame, length: int | None, split: str = "train") -> CheckRows:
    """Rows from the whole of a split."""
    rows = frame.rows[split]
    places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), ROWS)).round().astype(np.int64))
    return CheckRows(frame=frame, rows=rows[places], length=length)


def check_stored(predictors: Sequence[Predictor], trained: TrainedModel, sample: CheckRows) -> dict[str, Any]:
    """Compare the loaded files with what was trained, on training rows and on rows with extreme values.

    Returns what to tell about it; `difference` is the largest one as a share of what is allowed. Raises
    InternalError for a row whose difference is larger.
    """
    begin, worst = time.perf_counter(), 0.0
    for rows, inputs in sample.pieces():
        names = [f"row {row} of the training" for row in rows]
        worst = max(worst, *(_compare(predictor, trained, inputs, names) for predictor in predictors))
    edges = [(name, inputs.copy()) for name, inputs in edge_rows(sample)]
    names = [f"a row {name}" for name, inputs in edges for _ in range(len(inputs))]
    together = np.concatenate([inputs for _, inputs in edges])  # asked at once: each call has its own costs
    worst = max(worst, *(_compare(predictor, trained, together, names) for predictor in predictors))
    return {
        "rows": len(sample.rows),
        "edge_rows": len(names),
        "difference": worst,
        "seconds": round(time.perf_counter() - begin, 3),
    }


def _compare(predictor: Predictor, trained: TrainedModel, inputs: Floats, names: Sequence[str]) -> float:
    finite_inputs = np.where(np.isinf(inputs), np.nan, inputs)
    expected, actual = _matrix(trained.predict(finite_inputs)), _matrix(predictor.predict(inputs))
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = trained.tolerance(finite_inputs) + STEPS * np.spacing(np.abs(expected))
        apart = np.abs(actual - expected)
        share = np.where(_same(actual, expected), 0.0, apart / allowed)
    share = np.where(np.isnan(share), np.inf, share).max(axis=1)
    row = int(share.argmax())
    if share[row] > 1:
        raise InternalError(
            f"the stored model does not answer what was trained: {names[row]} gets {_shown(actual[row])} from"
            f" the files and {_shown(expected[row])} from the model in memory",
            hint="This is a defect of Gridmill: no version of the model was made. Please report it.",
        )
    return float(share[row])


def _same(one: Floats, other: Floats) -> npt.NDArray[np.bool_]:
    return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)), bool)


def _matrix(values: Floats) -> Floats:
    return values.reshape(len(values), -1)


def _shown(row: Floats) -> str:
    return ", ".join(f"{value:.9g}" for value in row[:6]) + (", ..." if len(row) > 6 else "")


def edge_rows(sample: CheckRows) -> Iterator[tuple[str, Floats]]:
    """Training rows with an input, or all of them, missing, infinite or extreme, or of an unseen category."""
    width = sample.frame.inputs.shape[1]
    most = max(4, POKED_CELLS // (len(EXTREMES) * width * (sample.length or 1)))
    poked = np.unique(np.linspace(0, width - 1, min(width, POKED_INPUTS, most)).round().astype(int))
    base = sample.inputs(sample.rows[np.arange(len(poked)) % len(sample.rows)])
    newest = base if sample.length is None else base[:, -1]
    own = newest.copy()
    for extreme in EXTREMES:
        newest[:] = own
        newest[np.arange(len(poked)), poked] = extreme
        yield f"with an input of {extreme:g}", base
    newest[:] = own
    for number, extreme in enumerate(EXTREMES):
        base[number % len(base)] = extreme
        yield f"with inputs of {extreme:g}", base[[number % len(base)]]
    newest[:] = own
    yield from _unseen(newest, base, sample.frame.encodings)


def _unseen(newest: Floats, base: Floats, encodings: Sequence[Encoding]) -> Iterator[tuple[str, Floats]]:
    first = 0
    for encoding in encodings[:POKED_INPUTS]:
        if encoding.categories is not None:
            kept = newest[0].copy()
            newest[0, first : first + len(encoding.inputs)] = 0.0
            yield f"with an unseen category in {encoding.column!r}", base[:1]
            newest[0] = kept
        first += len(encoding.inputs)


def check_alike(predictor: Predictor, sample: CheckRows) -> dict[str, Any]:
    """Ask a user's own code or file again, for the same rows beside other ones.

    Raises InputError where a row's answer is another then: it would depend on how many shards there are.
    """
    begin = time.perf_counter()
    count = _affordable(predictor, sample)
    rows = sample.rows[np.linspace(0, len(sample.rows) - 1, count).round().astype(np.int64)]
    inputs = sample.inputs(rows)
    first = _matrix(predictor.predict(inputs))
    order = np.argsort(first[:, -1], kind="stable")
    halves = np.array_split(order, 2)
    again = np.empty_like(first)
    for half in halves:
        if len(half):
            again[half] = _matrix(predictor.predict(inputs[half]))
    worst = _apart(first, again, sample.frame, rows)
    return {"rows": len(rows), "difference": worst, "seconds": round(time.perf_counter() - begin, 3)}


def _affordable(predictor: Predictor, sample: CheckRows) -> int:
    """How many of the rows can be asked for in the time, once the code is loaded."""
    predictor.predict(sample.inputs(sample.rows[:1]))
    cells = sample.frame.inputs.shape[1] * (sample.length or 1)
    most: int = min(len(sample.rows), max(8, PIECE_CELLS // max(1, cells)))
    count = min(8, most)
    while count < most:
        begin = time.perf_counter()
        predictor.predict(sample.inputs(sample.rows[:count]))
        if time.perf_counter() - begin > MOST_SECONDS / 32:
            break
        count = min(8 * count, most)
    return count


def _apart(first: Floats, again: Floats, frame: SortedFrame, rows: Integers) -> float:
    target = _matrix(frame.target[frame.rows["train"]])
    deviation = np.ones(1) if frame.classes else np.std(target, axis=0)
    with np.errstate(invalid="ignore"):
        apart = np.abs(again - first)
        share = np.where(_same(first, again), 0.0, apart / (ALIKE * deviation + SINGLE * np.abs(first)))
    share = np.where(np.isnan(share), np.inf, share).max(axis=1)
    row = int(share.argmax())
    if share[row] > 1:
        raise InputError(
            f"the model answers {_shown(first[row])} for row {rows[row]}, and"
            f" {_shown(again[row])} when it is asked beside other rows ({(share > 1).sum()} of {len(rows)}"
            " rows differ)",
            hint="A row's prediction must follow from its own inputs: do not normalise by the rows that are"
            " asked together, and draw no random numbers.",
            place="training.predict",
        )
    return float(share[row])
