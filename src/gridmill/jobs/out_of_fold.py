"""Stores and loads out-of-fold predictions in the folder of a model.

Out-of-fold predictions are predictions of training rows by models that were not trained on these rows.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gridmill.domain.frozen import dataclass
from gridmill.errors import StorageError
from gridmill.jobs.features import Floats, Integers

FILE = "held-out.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfFoldModel:
    """Predictions of the training rows. The model that predicts a row was trained without the fold of the
    row.

    `rows` are the numbers of all training rows in the dataset, ascending. `folds` contains the number of the
    fold of each row. `predicted` is the result of Predictor.predict, with NaN for rows that no model could
    predict.
    """

    rows: Integers
    folds: Integers
    predicted: Floats

    def find(self, rows: Integers) -> tuple[npt.NDArray[np.bool_], Integers]:
        """Return for each of these rows of the dataset whether it has a prediction, and the positions of the
        rows that have a prediction."""
        place = np.searchsorted(self.rows, rows).clip(max=len(self.rows) - 1)
        is_found = np.asarray(self.rows[place] == rows, bool)
        return is_found, place[is_found].astype(np.int64)


def save_held_out(folder: Path, held_out: OutOfFoldModel) -> None:
    """Write out-of-fold predictions into the folder of a model."""
    np.savez(folder / FILE, rows=held_out.rows, folds=held_out.folds, predicted=held_out.predicted)


def load_held_out(folder: Path) -> OutOfFoldModel:
    """Return the out-of-fold predictions of the model in `folder`. Raises StorageError if the file does not
    exist or cannot be read."""
    names: Iterable[str] = ("rows", "folds", "predicted")
    try:
        with np.load(folder / FILE, allow_pickle=False) as file:
            return OutOfFoldModel(**{name: file[name] for name in names})
    except (OSError, ValueError, KeyError) as error:
        raise StorageError(
            f"the model's predictions of its training rows cannot be read: {error}", place=str(folder / FILE)
        ) from error
