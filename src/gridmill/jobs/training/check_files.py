"""Checks that a model that is loaded from its files predicts the same values as the trained model in memory.
The files are loaded in the same way as for a prediction."""

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
"""The number of training rows for which the predictions are compared. If there are fewer training rows, all
of them are compared."""
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
"""The number of floating-point steps (ulp) of a double by which predictions may always differ, because sums
are computed in another order."""
ALIKE = 1e-3
"""The allowed change of the prediction of a row when the same call contains other rows. The limit applies if
a model predicts with code or files of the user.

The change is measured in standard deviations of the label, or as a probability.
"""
SINGLE = 1e-6
"""The additional tolerance for 32-bit floats, relative to the prediction."""
MOST_SECONDS = 1.0
"""The time in seconds that may be spent on further calls of the user's code. The number of rows that are
predicted again depends on this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRows:
    """The training rows for which the model is called."""

    frame: SortedFrame
    rows: Integers
    length: int | None

    def inputs(self, rows: Integers) -> Floats:
        """Return the inputs of these rows, in the shape [rows, inputs] or [rows, length, inputs]."""
        frame = self.frame
        return frame.inputs[rows if self.length is None else windows(rows, frame.starts, self.length)]

    def pieces(self) -> Iterator[tuple[Integers, Floats]]:
        """Yield row numbers with the inputs of these rows, in chunks."""
        cells = self.frame.inputs.shape[1] * (self.length or 1)
        step = max(1, PIECE_CELLS // max(1, cells))
        for first in range(0, len(self.rows), step):
            rows = self.rows[first : first + step]
            yield rows, self.inputs(rows)


def sample_rows(frame: SortedFrame, length: int | None, split: str = "train") -> CheckRows:
    """Return rows that are spread over the complete split."""
    rows = frame.rows[split]
    places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), ROWS)).round().astype(np.int64))
    return CheckRows(frame=frame, rows=rows[places], length=length)


def check_stored(predictors: Sequence[Predictor], trained: TrainedModel, sample: CheckRows) -> dict[str, Any]:
    """Compare the predictions of the model that is loaded from its files with the predictions of the trained
    model, on training rows and on rows with extreme values.

    Return the result for the details of the version, in which `difference` is the largest difference as a
    fraction of the allowed difference. Raises InternalError if the difference of a row is larger than
    allowed.
    """
    begin, worst = time.perf_counter(), 0.0
    for rows, inputs in sample.pieces():
        names = [f"training row {row}" for row in rows]
        worst = max(worst, *(_compare(predictor, trained, inputs, names) for predictor in predictors))
    edges = [(name, inputs.copy()) for name, inputs in edge_rows(sample)]
    names = [f"a row {name}" for name, inputs in edges for _ in range(len(inputs))]
    # a single call, because each call has a fixed cost
    together = np.concatenate([inputs for _, inputs in edges])
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
            f"the stored model predicts other values than the trained model: for {names[row]} the files "
            f"give {_shown(actual[row])} and the model in memory gives {_shown(expected[row])}",
            hint="This is a bug in Gridmill. No version of the model was made. Please report it.",
        )
    return float(share[row])


def _same(one: Floats, other: Floats) -> npt.NDArray[np.bool_]:
    return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)), bool)


def _matrix(values: Floats) -> Floats:
    return values.reshape(len(values), -1)


def _shown(row: Floats) -> str:
    return ", ".join(f"{value:.9g}" for value in row[:6]) + (", ..." if len(row) > 6 else "")


def edge_rows(sample: CheckRows) -> Iterator[tuple[str, Floats]]:
    """Yield training rows in which one input, or all inputs, are missing, infinite or extreme, or have an
    unknown category."""
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
    """Call the code or file of the user again, with the same rows among other rows.

    Raises InputError if the prediction of a row changes, because predictions would then depend on the number
    of shards.
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
    """Return the number of rows that can be predicted in the allowed time, after the code is loaded."""
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
            f"the model predicts {_shown(first[row])} for row {rows[row]}, but {_shown(again[row])} if "
            f"other rows are in the same call ({(share > 1).sum()} of {len(rows)} rows differ)",
            hint="A row's prediction must depend only on its own inputs: do not normalise over the rows "
            "of a call, and draw no random numbers.",
            place="training.predict",
        )
    return float(share[row])
