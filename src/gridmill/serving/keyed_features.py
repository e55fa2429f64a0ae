"""Contextual features of requests: rows with keys and basis features become the inputs of a model.

The features are computed in threads, so that the event loop answers other requests meanwhile.
"""

import asyncio
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.naming import read_moment
from gridmill.errors import DataError, GridmillError, InputError, UnavailableError
from gridmill.jobs.features import Encoding, Floats, encode
from gridmill.serving.batching import BatchLimits
from gridmill.serving.errors import (
    FieldsError,
    LateError,
    ModelFailedError,
    OverloadedError,
    Problem,
    RequestError,
    ViewUnavailableError,
)
from gridmill.serving.fields import TOO_LARGE, not_json, untyped
from gridmill.serving.served_model import ServedModel

if TYPE_CHECKING:
    from gridmill.online.features import OnlineFeatures, OnlineRows
    from gridmill.online.plan import OnlinePlan

_LOG = logging.getLogger(__name__)
THREADS = 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RETRY_SECONDS = 5.0
STATUS, VALUES = "status", "values"
PRESENT = "present"
_PLACE = re.compile(r"rows\[(\d+)\](?:\.(.*))?", re.DOTALL)
_DECODE = msgspec.json.Decoder().decode

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRequest:
    """The rows of a request, each with keys, basis features and optionally contextual features. `as_of` is
    the as-of time of rows that have none; None is the time of the request."""

    rows: Sequence[Row]
    as_of: datetime | None = None

    def at(self, as_of_us: int) -> "KeyedRequest":
        """Return the request with this as-of time in microseconds, if it names none. 0 is no time."""
        if self.as_of is not None or not as_of_us:
            return self
        return replace(self, as_of=_EPOCH + timedelta(microseconds=as_of_us))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedInputs:
    """The inputs of a model for the rows of a request, and the values and statuses of their features. A row
    of a model that reads sequences has `length` values of each feature."""

    inputs: Floats
    features: "OnlineRows"
    length: int = 1

    def about(self, wish: str) -> dict[str, Any]:
        """Return what an answer shows about the features of all rows. `wish` is STATUS, VALUES or empty. If
        it is empty and all values are present, the result is empty.

        The result has for each status except `present` the features, each with the numbers of the rows.
        """
        statuses: dict[str, dict[str, list[int]]] = {}
        for name, every in self.features.statuses.items():
            for place, status in enumerate(every):
                if status != PRESENT:
                    rows = statuses.setdefault(str(status), {}).setdefault(name, [])
                    if rows[-1:] != [place // self.length]:
                        rows.append(place // self.length)
        if not (wish or statuses or self.features.problem):
            return {}
        about: dict[str, Any] = dict(statuses)
        if self.features.problem:
            about["problem"] = self.features.problem
        about["view"] = {name: held.number for name, held in self.features.held.items()}
        return about | ({VALUES: self._values()} if wish == VALUES else {})

    def of_rows(self, wish: str) -> "list[RowInputs]":
        """Return the inputs of each row, and what an answer shows about its features."""
        about = self.about(wish)
        every = {name: about[name] for name in ("problem", "view") if name in about}
        shown: list[dict[str, Any]] = [{} for _ in self.inputs]
        for status, features in about.items():
            for name, numbers in features.items() if status not in (*every, VALUES) else ():
                for number in numbers:
                    shown[number].setdefault(status, []).append(name)
        rows: list[RowInputs] = []
        for number, one in enumerate(shown):
            if wish or one or self.features.problem:
                one |= every | ({VALUES: about[VALUES][number]} if VALUES in about else {})
            inputs = self.inputs[number : number + 1]
            rows.append(RowInputs(inputs=inputs, about=one, as_of_us=self.features.as_of_us))
        return rows

    def _values(self) -> list[Any]:
        rows = [
            {name: _shown(value) for name, value in row.items()} for row in self.features.columns.to_pylist()
        ]
        if self.length == 1:
            return rows
        return [rows[at : at + self.length] for at in range(0, len(rows), self.length)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInputs:
    """The inputs of one row, what an answer shows about its features, and the as-of time for which they were
    computed if the row names none."""

    inputs: Floats
    about: Mapping[str, Any] = field(default_factory=dict)
    as_of_us: int = 0


NO_INPUTS = RowInputs(inputs=np.zeros((0, 0)))


class KeyedFeatures:
    """Computes the features of requests to one version of a model."""

    def __init__(
        self,
        features: "OnlineFeatures",
        encodings: Sequence[Encoding],
        sequence: int | None,
        limits: BatchLimits,
    ) -> None:
        self.plan = features.plan
        self._features, self._encodings, self._sequence = features, tuple(encodings), sequence
        self._limits, self._waiting = limits, 0
        self._optional_keys = optional_keys(features.plan)
        self._pool = ThreadPoolExecutor(THREADS, "features")

    async def inputs_of(self, request: KeyedRequest) -> KeyedInputs:
        """Return the inputs for the rows of a request. Raises RequestError."""
        if self._waiting >= self._limits.queue_limit + THREADS:
            raise OverloadedError(f"{self._waiting} requests wait for their features", retry_seconds=1)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            computed = loop.run_in_executor(self._pool, self._computed, request)
            return await asyncio.wait_for(computed, self._limits.timeout_seconds)
        except TimeoutError as error:
            seconds = self._limits.timeout_seconds
            raise LateError(
                f"the features were not computed within {seconds:g} s", retry_seconds=1
            ) from error
        finally:
            self._waiting -= 1

    async def inputs_of_each(
        self, rows: Sequence[Row], wish: str, as_of_us: int = 0
    ) -> list[RowInputs | RequestError]:
        """Return for each row its inputs, or the error of the row. Rows that name no as-of time have the time
        `as_of_us` in microseconds, or if it is 0 the time of the call."""
        try:
            return [*(await self.inputs_of(KeyedRequest(rows=rows).at(as_of_us))).of_rows(wish)]
        except RequestError as error:
            if len(rows) == 1 or not isinstance(error, FieldsError):
                return [error] * len(rows)
        return [one for row in rows for one in await self.inputs_of_each([row], wish, as_of_us)]

    def close(self) -> None:
        """Compute no more features."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _computed(self, request: KeyedRequest) -> KeyedInputs:
        rows = [with_optional_keys(row, self._optional_keys) for row in request.rows]
        try:
            made = self._features.features_for(rows, request.as_of)
            inputs = encode(made.columns, self._encodings)
        except InputError as error:
            raise wrong_field(error) from error
        except UnavailableError as error:
            # loaded with the first features, which need the SQL engine
            from gridmill.online.view import plain_reason

            reason = plain_reason(error)
            raise ViewUnavailableError(reason, hint=error.hint, retry_seconds=RETRY_SECONDS) from error
        except DataError as error:
            raise ModelFailedError(f"the features cannot be encoded: {error.message}") from error
        except GridmillError as error:
            _LOG.error("features cannot be computed: %s", error)
            raise ModelFailedError("the features cannot be computed; the log has the reason") from error
        length = self._sequence or 1
        if self._sequence is not None:
            inputs = inputs.reshape(len(rows), length, -1)
        return KeyedInputs(inputs=inputs, features=made, length=length)


def keyed_of(model: ServedModel, limits: BatchLimits) -> KeyedFeatures | None:
    """Return the object that computes the features of requests to a model without stages, or None if requests
    send them."""
    if model.features is None:
        return None
    return KeyedFeatures(model.features, model.card.encodings, model.card.sequence, limits)


def with_optional_keys(row: Row, optional: Mapping[str, set[str]]) -> Row:
    """Return the row with missing keys as null, if the row has all features that are computed by the key.
    `optional` is the result of `optional_keys`."""
    absent = [key for key, features in optional.items() if key not in row and features <= row.keys()]
    return {**row, **dict.fromkeys(absent)} if absent else row


def optional_keys(plan: "OnlinePlan") -> dict[str, set[str]]:
    """Return the keys that are needed only for features that are computed by key, each with these
    features."""
    if plan.history is not None:
        return {}
    texts = " ".join(plan.expressions.values()).lower()
    keys: dict[str, set[str]] = {}
    for feed in plan.feeds:
        for key in feed.on:
            if key not in plan.features and key.lower() not in texts:
                keys.setdefault(key, set()).update(feed.features)
    return keys


def wish_of(text: object) -> str:
    """Return what a request wants to see about its features. Raises RequestError."""
    if text not in ("", STATUS, VALUES):
        raise RequestError(f"`features` is {str(text)[:40]!r}", hint=f"Use `{STATUS}` or `{VALUES}`.")
    return str(text)


def read_keyed(body: bytes, *, has_sequences: bool) -> KeyedRequest | None:
    """Return the rows of a JSON body. If the model reads sequences and each row is a list, the request sends
    complete sequences, and the result is None. Raises MalformedError, FieldsError."""
    content = _decoded(body, "body")
    as_of = content.get("as_of") if isinstance(content, dict) else None
    rows = content.get("rows") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise FieldsError(
            (Problem(field="rows", problem="the body has no list of rows"),), hint='Send {"rows": [...]}.'
        )
    if has_sequences and rows and all(isinstance(row, list) for row in rows):
        return None
    check_objects(rows)
    return KeyedRequest(rows=rows, as_of=as_of_time(as_of))


def read_keyed_line(line: bytes) -> Row:
    """Return the row of one line. Raises MalformedError, FieldsError."""
    row: Row = _decoded(line, "line")
    check_objects([row])
    return row


def _decoded(text: bytes, what: str) -> Any:  # noqa: ANN401  any JSON
    try:
        return _DECODE(text)
    except msgspec.ValidationError as error:  # a number that a double cannot hold
        raise FieldsError(_too_large(untyped(text, what))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(what, text, error) from error


def _too_large(content: object) -> tuple[Problem, ...]:
    rows = content.get("rows", [content]) if isinstance(content, dict) else content
    places = [
        Problem(row=number, field=name, problem=TOO_LARGE)
        for number, row in enumerate(rows if isinstance(rows, list) else [])
        for name, value in (row.items() if isinstance(row, dict) else ())
        if isinstance(value, float) and math.isinf(value)
    ]
    return tuple(places) or (Problem(problem="a number is too large for a double"),)


def check_objects(rows: Sequence[object]) -> None:
    """Raise FieldsError if a row is not an object."""
    problems = tuple(
        Problem(row=number, problem="the row is not an object with named fields")
        for number, row in enumerate(rows)
        if not isinstance(row, dict)
    )
    if problems:
        raise FieldsError(problems)


def as_of_time(value: object) -> datetime | None:
    """Return the as-of time of a request. Raises FieldsError."""
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            raise InputError(f"{json.dumps(value)[:40]} is not a time in ISO 8601")
        return read_moment(value, "as_of")
    except (InputError, OverflowError) as error:
        message = error.message if isinstance(error, InputError) else str(error)
        raise FieldsError((Problem(field="as_of", problem=message),)) from error


def wrong_field(error: InputError) -> FieldsError:
    """Return the error of a request for the error of a field of its rows."""
    match = _PLACE.fullmatch(error.place)
    row = int(match[1]) if match else None
    field = (match[2] if match else error.place) or None
    return FieldsError((Problem(row=row, field=field, problem=error.message),), hint=error.hint)


def _shown(value: Any) -> Any:  # noqa: ANN401  a value of a feature
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)
