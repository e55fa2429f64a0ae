"""Checks a chain of versions before its first request: the predictions of the stages are the features with
which the last model was trained, and the whole chain predicts what this model predicts from them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from gridmill.errors import DataError
from gridmill.jobs.features import Floats, encode
from gridmill.jobs.golden_rows import predict_last, scale_of, shares_of_tolerance
from gridmill.jobs.model_files import Predictor
from gridmill.online.chain_rows import load_chain_rows


class ChainModel(Protocol):
    """A loaded model, and the models that predict its features."""

    @property
    def label(self) -> str:
        """The id of the version."""

    @property
    def predictor(self) -> Predictor:
        """The predictor of the model itself."""

    @property
    def stages(self) -> "Sequence[ChainStage]":
        """The stages of the model."""

    def columns(self, predicted: Floats) -> dict[str, Any]:
        """Return the columns of a prediction job for the output of the model."""


class ChainStage(Protocol):
    """A model, and the columns of its predictions by the names of features of the next model."""

    @property
    def model(self) -> ChainModel:
        """The loaded model."""

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns of its predictions."""


def check_chain(model: ChainModel, definition: Path) -> None:
    """Compute the chain of a model for the rows in the folder of its definition. Raises DataError that names
    the stage which predicts other features."""
    chain = load_chain_rows(definition)
    if chain is None:
        return
    rows = chain.rows
    for stage in model.stages:
        for name, values in _predicted(stage, chain.stages[stage.model.label]).items():
            _check_feature(stage, name, values, rows[name].to_pylist(), model.label)
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, name, pa.array(values).cast(rows[name].type))
    card = model.predictor.card
    whole, alone = (model.predictor.predict(encode(one, card.encodings)) for one in (rows, chain.rows))
    shares = shares_of_tolerance(_by_row(whole), _by_row(alone), scale_of(card)).max(axis=1)
    if (shares > 1).any():
        raise DataError(
            f"the chain of {model.label} predicts {int((shares > 1).sum())} of {len(shares)} rows of its "
            "dataset differently than the model alone"
        )


def _predicted(stage: ChainStage, groups: Sequence[pa.Table]) -> dict[str, list[Any]]:
    predicted = predict_last(stage.model.predictor, groups)
    card = stage.model.predictor.card
    columns = stage.model.columns(predicted if card.classes or card.many else predicted.reshape(-1))
    return {name: [_plain(one) for one in columns[of]] for name, of in stage.columns.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401  a value of a prediction
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and not np.isfinite(plain) else plain


def _check_feature(
    stage: ChainStage, name: str, found: Sequence[Any], expected: Sequence[Any], label: str
) -> None:
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in (*found, *expected)):
        scale = scale_of(stage.model.predictor.card)[:1]
        shares = shares_of_tolerance(np.array(found, np.float64), np.array(expected, np.float64), scale)
        wrong = [int(number) for number in np.flatnonzero(shares > 1)]
    else:
        pairs = enumerate(zip(found, expected, strict=True))
        wrong = [number for number, (one, other) in pairs if one != other]
    if wrong:
        row = wrong[0]
        raise DataError(
            f"stage {stage.model.label} predicts {found[row]} as {name} of row {row + 1} of the chain, but "
            f"{label} was trained with {expected[row]} ({len(wrong)} of {len(found)} rows differ)",
            hint="The packages here differ from those of the training, or a file of the stage was changed.",
        )


def _by_row(predicted: Floats) -> Floats:
    return predicted.reshape(len(predicted), -1)
