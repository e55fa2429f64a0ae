"""`POST /predict`: rows with named fields, and predictions with the names that a prediction job gives."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from gridmill.jobs.features import Floats
from gridmill.serving.arrow_rows import arrow_columns, read_rows, write_stream
from gridmill.serving.errors import FieldsError, MediaTypeError, Problem, RequestError
from gridmill.serving.hosting import HostedModel
from gridmill.serving.keyed_features import (
    NO_INPUTS,
    KeyedInputs,
    KeyedRequest,
    Row,
    RowInputs,
    read_keyed,
    read_keyed_line,
    wish_of,
)
from gridmill.serving.request import ARROW, LINES, Answer, Request, json_answer
from gridmill.serving.served_model import ServedModel

_ENCODE = msgspec.json.Encoder().encode
_FEW = 16
"""Up to this number of values, Python is quicker than NumPy."""
JSON_TYPES = (b"application/json", b"", b"application/x-www-form-urlencoded")
"""The content types of a body in JSON. Some programs send JSON without its content type."""


async def predict(host: HostedModel, request: Request, most_bytes: int) -> Answer:
    """Answer rows in JSON, JSON lines or an Arrow stream, whose values have at most `most_bytes` bytes.
    Raises RequestError."""
    kind = request.content_type()
    if kind in LINES:
        return await _predict_lines(host, request)
    if kind == ARROW:
        return await _predict_arrow(host, request, most_bytes)
    if kind not in JSON_TYPES:
        raise MediaTypeError(
            f"the content type {kind.decode('latin-1')!r} is not supported",
            hint="Use application/json, application/x-ndjson for one row per line, or "
            f"{ARROW.decode()} for a stream of Apache Arrow.",
        )
    wish = wish_of(request.query.get("features", ""))
    keyed = await _keyed(host, request)
    inputs = keyed.inputs if keyed is not None else host.model.reader.read(request.body)
    request.rows = len(inputs)
    predicted = await host.predict(inputs)
    return answer_of(host, predicted, keyed.about(wish) if keyed is not None else None)


async def _predict_arrow(host: HostedModel, request: Request, most_bytes: int) -> Answer:
    """Answer the rows of a stream, with a stream if the request accepts it."""
    wish = wish_of(request.query.get("features", ""))
    rows = read_rows(request.body, arrow_columns(host.model), most_bytes)
    keyed = None
    if host.keyed is None:
        inputs = rows.inputs(host.model)
    else:
        keyed = await host.keyed.inputs_of(KeyedRequest(rows=rows.objects()).at(request.as_of_us))
        inputs, request.as_of_us = keyed.inputs, keyed.features.as_of_us
    request.rows, request.objects = len(rows), rows.objects
    predicted = await host.predict(inputs)
    about = keyed.about(wish) if keyed is not None else None
    if ARROW not in request.headers.get(b"accept", b""):
        return answer_of(host, predicted, about)
    texts = {"model": host.service, "version": host.model.label}
    texts |= {"features": _ENCODE(about).decode()} if about else {}
    return Answer(body=write_stream(host.model.columns(predicted), texts), media_type=ARROW)


def answer_of(host: HostedModel, predicted: Floats, about: object = None) -> Answer:
    """Return the answer with the predictions of a request. `about` describes its contextual features."""
    rows, not_finite = rows_of(host.model, predicted)
    body: dict[str, Any] = {"model": host.service, "version": host.model.label, "predictions": rows}
    if not_finite:
        body["not_finite"] = not_finite
    if about:
        body["features"] = about
    return json_answer(body)


async def _keyed(host: HostedModel, request: Request) -> KeyedInputs | None:
    """Return the inputs with features that are computed by key. The result is None if requests send all
    features."""
    if host.keyed is None:
        return None
    asked = read_keyed(request.body, has_sequences=host.model.card.sequence is not None)
    if asked is None:
        return None
    keyed = await host.keyed.inputs_of(asked.at(request.as_of_us))
    request.as_of_us = keyed.features.as_of_us
    return keyed


def rows_of(model: ServedModel, predicted: Floats) -> tuple[list[dict[str, Any]], list[int]]:
    """Return each row of a prediction as an object, and the numbers of the rows with a value that is NaN or
    infinite. JSON has no such numbers, so they are null in the objects."""
    if model.is_plain:
        return [{"prediction": value} for value in predicted.tolist()], rows_not_finite(predicted)
    columns = {
        name: values if isinstance(values, tuple) else values.tolist()
        for name, values in model.columns(predicted).items()
    }
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows, rows_not_finite(predicted)


def rows_not_finite(predicted: Floats) -> list[int]:
    """Return the numbers of the rows that have a value that is NaN or infinite."""
    if predicted.size <= _FEW:
        if all(map(math.isfinite, predicted.ravel().tolist())):
            return []
    elif math.isfinite(predicted.sum()):
        return []
    wrong = ~np.isfinite(predicted.reshape(len(predicted), -1)).all(axis=1)
    return [int(number) for number in np.flatnonzero(wrong)]


async def _predict_lines(host: HostedModel, request: Request) -> Answer:
    """Answer each line of the request by one line, in the same order. A line that is not a valid row is
    answered by its error, and the other rows get predictions."""
    lines = [line for line in request.body.splitlines() if line.strip()]
    if not lines:
        raise FieldsError((Problem(problem="the body has no lines"),))
    wish = wish_of(request.query.get("features", ""))
    parts: list[Floats] = []
    answers: list[dict[str, Any]] = []
    inputs = await _inputs_of_lines(host, lines, wish, request.as_of_us)
    # rows beside a line with an error are computed one after the other, each at its own time
    times = [one.as_of_us for one in inputs if isinstance(one, RowInputs) and one.as_of_us]
    request.as_of_us = max(times, default=0)
    for number, one in enumerate(inputs):
        if isinstance(one, RequestError):
            answers.append(_line_error(number, one, request.request_id))
            continue
        parts.append(one.inputs)
        answers.append({"features": one.about} if one.about else {})
    request.rows = len(lines)
    await _fill(host, answers, parts)
    wrong = len(lines) - len(parts)
    body = b"\n".join(map(_ENCODE, answers)) + b"\n"
    headers = ((b"x-failed-rows", b"%d" % wrong),)
    return Answer(body=body, media_type=LINES[0], headers=headers)


async def _inputs_of_lines(
    host: HostedModel, lines: Sequence[bytes], wish: str, as_of_us: int
) -> list[RowInputs | RequestError]:
    """Return for each line the inputs of its row, or the error of the line."""
    results: list[RowInputs | RequestError] = []
    keyed: dict[int, Row] = {}
    for number, line in enumerate(lines):
        try:
            if host.keyed is None or (host.model.card.sequence is not None and line.lstrip()[:1] == b"["):
                results.append(RowInputs(inputs=host.model.reader.read_line(line)))
            else:
                keyed[number] = read_keyed_line(line)
                results.append(NO_INPUTS)
        except RequestError as error:
            results.append(error)
    if host.keyed is not None and keyed:
        computed = await host.keyed.inputs_of_each(list(keyed.values()), wish, as_of_us)
        for number, one in zip(keyed, computed, strict=True):
            results[number] = one
    return results


async def _fill(host: HostedModel, answers: Sequence[dict[str, Any]], parts: Sequence[Floats]) -> None:
    if not parts:
        return
    rows, not_finite = rows_of(host.model, await host.predict(np.concatenate(parts)))
    for number in not_finite:
        rows[number]["not_finite"] = True
    valid = (answer for answer in answers if "error" not in answer)
    for answer, row in zip(valid, rows, strict=True):
        answer.update(row)


def _line_error(number: int, error: RequestError, request_id: str) -> dict[str, Any]:
    if isinstance(error, FieldsError):  # its rows count from the line, not from the request
        error = FieldsError(tuple(replace(one, row=number) for one in error.problems), hint=error.hint)
    body = error.body(request_id)
    line = {"error": body["error"], "code": body["code"], "row": number, "problems": body.get("problems", [])}
    return line | ({"hint": error.hint} if error.hint else {})
