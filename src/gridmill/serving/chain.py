"""The features of requests to a chain of versions: the stages predict features of the last model, in parallel
and for each request."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gridmill.domain.frozen import dataclass, replace
from gridmill.jobs.features import Encoding, Floats
from gridmill.serving.batching import BatchLimits
from gridmill.serving.errors import FieldsError, RequestError
from gridmill.serving.keyed_features import PRESENT, KeyedFeatures, KeyedInputs, KeyedRequest
from gridmill.serving.served_model import ServedModel

if TYPE_CHECKING:
    from gridmill.online.features import OnlineFeatures, OnlineRows
    from gridmill.serving.hosting import HostedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedStage:
    """A hosted version whose predictions are features of another version. `columns` are the columns of its
    predictions, by the names of the features."""

    host: "HostedModel"
    columns: Mapping[str, str]

    async def predict(self, request: KeyedRequest) -> "StageRows":
        """Predict the rows of a request. Raises RequestError, which names the stage if it failed."""
        label = self.host.model.label
        try:
            assert self.host.keyed is not None
            inputs = await self.host.keyed.inputs_of(request)
            predicted = await self.host.predict(inputs.inputs)
        except FieldsError:
            raise  # it names the row and the field of the request
        except RequestError as error:
            if not error.message.startswith("stage "):
                error.message = f"stage {label}: {error.message}"
            raise
        return StageRows(label=label, inputs=inputs, features=self._features(predicted))

    def _features(self, predicted: Floats) -> dict[str, list[Any]]:
        columns = self.host.model.columns(predicted)
        return {name: _json_values(columns[of]) for name, of in self.columns.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """The predictions of a stage for the rows of a request, by the names of the features, and the inputs of
    the stage."""

    label: str
    inputs: KeyedInputs
    features: Mapping[str, Sequence[Any]]


class ChainedFeatures(KeyedFeatures):
    """Computes the features of requests to the last version of a chain. All stages get the rows of the
    request with the same as-of time."""

    def __init__(
        self,
        features: "OnlineFeatures",
        encodings: Sequence[Encoding],
        limits: BatchLimits,
        stages: Sequence[HostedStage],
        request: Sequence[str],
    ) -> None:
        super().__init__(features, encodings, None, limits)
        self._stages = tuple(stages)
        self._hint = f"A row needs {', '.join(request)}. Send null if a value is unknown."

    async def inputs_of(self, request: KeyedRequest) -> KeyedInputs:
        """See KeyedFeatures. Raises the error of a stage; if stages refuse fields of the request, the error
        has the problems of all stages."""
        if request.as_of is None:
            request = replace(request, as_of=datetime.now(UTC))
        stages = await asyncio.gather(
            *(stage.predict(request) for stage in self._stages), return_exceptions=True
        )
        made = _made(stages, self._hint)
        rows = [
            {**row, **{name: values[number] for one in made for name, values in one.features.items()}}
            for number, row in enumerate(request.rows)
        ]
        try:
            own = await super().inputs_of(replace(request, rows=rows))
        except FieldsError as error:
            raise FieldsError(error.problems, hint=self._hint) from error
        return replace(own, features=_with_stages(own.features, made))

    def close(self) -> None:
        """See KeyedFeatures."""
        super().close()
        for stage in self._stages:
            stage.host.close()


def chained_of(
    model: ServedModel, limits: BatchLimits, stages: Sequence[HostedStage]
) -> ChainedFeatures | None:
    """Return the object that computes the features of requests to a model with stages; None if the model has
    no stages."""
    if not stages:
        return None
    assert model.features is not None
    return ChainedFeatures(model.features, model.card.encodings, limits, stages, tuple(model.plan.request))


def _made(stages: Sequence[StageRows | BaseException], hint: str) -> list[StageRows]:
    """Return the rows of all stages. Raises the first error that is not about fields, or else the problems of
    the fields of all stages."""
    errors = [one for one in stages if isinstance(one, BaseException)]
    fields = [one for one in errors if isinstance(one, FieldsError)]
    for error in errors:
        if not isinstance(error, FieldsError):
            raise error
    if fields:
        problems = tuple(dict.fromkeys(problem for one in fields for problem in one.problems))
        raise FieldsError(problems, hint=hint)
    return [one for one in stages if isinstance(one, StageRows)]


def _json_values(values: Any) -> list[Any]:  # noqa: ANN401  a column of predictions
    plain = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return [None if isinstance(one, float) and not math.isfinite(one) else one for one in plain]


def _with_stages(own: "OnlineRows", stages: Sequence[StageRows]) -> "OnlineRows":
    """Return the features of the last model with those of its stages. A feature that has the name of another
    one, but other values, gets the name of its stage too."""
    columns = {name: own.columns[name] for name in own.columns.column_names}
    statuses, held, problems = dict(own.statuses), dict(own.held), [own.problem]
    for stage in stages:
        rows, length = stage.inputs.features, stage.inputs.length
        last = pa.array(range(length - 1, rows.columns.num_rows, length), pa.int64())
        for name in rows.columns.column_names:
            values = rows.columns[name].take(last)
            shown = name if columns.get(name, values).equals(values) else f"{stage.label}.{name}"
            columns[shown] = values
            if name in rows.statuses:
                statuses[shown] = tuple(_worst(rows.statuses[name], length))
        held |= rows.held
        problems.append(rows.problem)
    table = pa.table(list(columns.values()), names=list(columns))
    problem = "; ".join(dict.fromkeys(filter(None, problems)))
    return replace(own, columns=table, statuses=statuses, held=held, problem=problem)


def _worst(statuses: Sequence[Any], length: int) -> list[Any]:
    """Return for each sequence the first status that is not present, or else that it is."""
    groups = (statuses[at : at + length] for at in range(0, len(statuses), length))
    return [next((one for one in group if one != PRESENT), group[-1]) for group in groups]
