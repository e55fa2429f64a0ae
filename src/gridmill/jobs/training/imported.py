"""Makes a version of a model from an ONNX file without a dataset: the file is checked, loaded and computed
once, and the version stores rows with their predictions."""

import csv
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.job import JobSize
from gridmill.domain.training import TrainingSpec
from gridmill.errors import DataError, GridmillError, InputError
from gridmill.jobs.context import CODE, JobContext, JobResult
from gridmill.jobs.features import Encoding, Floats, encode
from gridmill.jobs.golden_rows import MOST, write_golden
from gridmill.jobs.model_files import (
    GRAPH,
    GraphPredictor,
    ModelCard,
    check_probabilities,
    load_model,
    save_model,
)
from gridmill.jobs.packages import recorded_packages
from gridmill.jobs.signatures import model_signature
from gridmill.jobs.training.file_signature import FileSignature, find_signature
from gridmill.jobs.training.onnx_file import OnnxFile, read_onnx
from gridmill.jobs.training.result import card_details

_TRIAL_ROWS, _TRIAL_VALUES = 5, 3
_SAMPLES = "training.samples"
_MOST_SAMPLE_BYTES = 16 * 2**20


def import_model(context: JobContext, spec: TrainingSpec) -> JobResult:
    """Store the file as a version. If the file cannot be a model, InputError is raised, which names the file
    and the input or the column."""
    code = context.work / CODE
    file = read_onnx(_file(code, str(spec.file), "training.file"))
    signature = find_signature(
        file, _file(code, spec.signature, "training.signature") if spec.signature else None
    )
    samples = _samples(_file(code, spec.samples, _SAMPLES), signature) if spec.samples else []
    trial = GraphPredictor(card=_card(file, signature, samples, spec), graph=file.content)
    predicted = _try(trial, file, samples)
    card = _card(file, signature, samples, spec, predicted)
    save_model(context.output, card, file.content)
    if samples:
        write_golden(context.output, load_model(context.output, context.threads), samples)
    facts = f"{len(card.encodings)} features, opset {file.opset}, {len(samples)} golden rows"
    print(f"{file.name}: {facts}", flush=True)
    return _result(context, card, file, len(samples))


def _file(code: Path, name: str, place: str) -> Path:
    path = code / name
    if not path.resolve().is_relative_to(code.resolve()):
        raise InputError(f"{name!r} is outside the project", place=place)
    if not path.is_file():
        raise InputError(f"there is no {name!r} in the project", place=place)
    if place == "training.file" and path.suffix != ".onnx":
        raise InputError(
            f"{name!r} is not an ONNX file, so it needs a dataset",
            hint="Convert the model to ONNX, or name a dataset.",
            place=place,
        )
    return path


def _card(
    file: OnnxFile,
    signature: FileSignature,
    samples: list[pa.Table],
    spec: TrainingSpec,
    predicted: Floats | None = None,
) -> ModelCard:
    has_scale = bool(samples) and not signature.classes and predicted is not None
    return ModelCard(
        kind=spec.model,
        objective=signature.objective,
        labels=signature.labels,
        encodings=signature.encodings,
        label_columns=(None,) * len(signature.labels),
        classes=signature.classes,
        class_type=signature.class_type,
        sequence=signature.sequence,
        output=signature.output,
        threshold=signature.threshold if spec.threshold is None else spec.threshold,
        spread=_spread(predicted, signature) if has_scale and predicted is not None else (),
        options={**spec.options, "imported": file.name},
        versions=recorded_packages(),
    )


def _spread(predicted: Floats, signature: FileSignature) -> tuple[float, ...]:
    """Return the standard deviation of the predictions for each label, which is the scale of the tolerance of
    golden rows."""
    finite = np.where(np.isfinite(predicted), predicted, np.nan).reshape(
        len(predicted), len(signature.labels)
    )
    return tuple(float(one) if np.isfinite(one) else 0.0 for one in np.nan_to_num(np.nanstd(finite, axis=0)))


def _samples(path: Path, signature: FileSignature) -> list[pa.Table]:
    """Return up to MOST rows of the file, each as a table with its history. Raises InputError."""
    if path.stat().st_size > _MOST_SAMPLE_BYTES:
        raise InputError(f"{path.name} has more than 16 MiB; some rows are enough", place=_SAMPLES)
    rows = _rows(path)
    if not rows:
        raise InputError(f"{path.name} has no rows", place=_SAMPLES)
    places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST)).round().astype(int))
    return [_table(rows[number], int(number), path.name, signature) for number in places]


def _rows(path: Path) -> list[Any]:
    try:
        text = path.read_text("utf-8-sig")
        if path.suffix.lower() == ".csv":
            return list(csv.DictReader(text.splitlines()))
        if text.lstrip()[:1] in ("[", "{") and path.suffix.lower() != ".jsonl":
            content = json.loads(text)
            rows = content.get("rows") if isinstance(content, dict) else content
            if not isinstance(rows, list):
                raise InputError(f"{path.name} has no list of rows", place=_SAMPLES)
            return rows
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path.name} cannot be read: {error}", place=_SAMPLES) from error


def _table(row: Any, number: int, name: str, signature: FileSignature) -> pa.Table:  # noqa: ANN401  any JSON
    group = row if signature.sequence is not None else [row]
    if not isinstance(group, list) or not group or not all(isinstance(one, dict) for one in group):
        what = "a list of objects" if signature.sequence is not None else "an object"
        raise InputError(f"{name}: row {number} is not {what} with named fields", place=_SAMPLES)
    if signature.sequence is not None:
        group = [group[0]] * (signature.sequence - len(group)) + group[-signature.sequence :]
    columns = {
        one.column: pa.array([_sample(each, one, number, name) for each in group], _type(one))
        for one in signature.encodings
    }
    return pa.table(columns)


def _type(encoding: Encoding) -> pa.DataType:
    if encoding.categories is not None:
        return pa.string()
    return pa.bool_() if encoding.type == "bool" else pa.float64()


def _sample(row: dict[str, Any], encoding: Encoding, number: int, name: str) -> object:
    where = f"{name}: row {number}: column {encoding.column!r}"
    if encoding.column not in row:
        raise InputError(
            f"{where} is missing", hint=f"The row has {', '.join(map(str, row))}.", place=_SAMPLES
        )
    value = row[encoding.column]
    if value is None or value == "":
        return None
    if encoding.categories is not None:
        return str(value)
    if encoding.type == "bool" and str(value).lower() in _BOOLEANS:
        return _BOOLEANS[str(value).lower()]
    try:
        return bool(float(value)) if encoding.type == "bool" else float(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} is {value!r}, not a number", place=_SAMPLES) from error


_BOOLEANS = {"true": True, "false": False}


def _try(predictor: GraphPredictor, file: OnnxFile, samples: list[pa.Table]) -> Floats:
    """Return the predictions of the samples, or of rows of zeros. Raises InputError if the graph fails,
    returns an array of another shape, or predicts a row differently beside other rows."""
    card = predictor.card
    if samples:
        inputs = np.stack([encode(table, card.encodings) for table in samples])
        inputs = inputs if card.sequence is not None else inputs[:, -1]
    else:
        width = len(card.inputs)
        inputs = np.zeros(
            (_TRIAL_ROWS, width) if card.sequence is None else (_TRIAL_ROWS, card.sequence, width)
        )
    try:
        together, alone = _together_and_alone(predictor, inputs)
        if card.classes:
            check_probabilities(together, np.arange(len(together)))
    except GridmillError as error:
        raise InputError(f"{file.name}: {error.message}", hint=error.hint, place="training.file") from error
    except Exception as error:  # the exceptions of ONNX Runtime have no common class
        names = ", ".join(repr(one.name) for one in file.inputs)
        raise InputError(
            f"{file.name} fails for {len(inputs)} rows of its inputs {names}: {error}", place="training.file"
        ) from error
    if not (_are_equal(together, alone) and (samples or _are_rows_independent(predictor, inputs))):
        raise InputError(
            f"{file.name} predicts a row differently if other rows are computed with it",
            hint="Export the model in evaluation mode, without dropout and without normalization by batch.",
            place="training.file",
        )
    return together


def _together_and_alone(predictor: GraphPredictor, inputs: Floats) -> tuple[Floats, Floats]:
    """Return the predictions of rows that are computed together, and of the same rows one by one."""
    alone = [predictor.predict(inputs[number : number + 1]) for number in range(len(inputs))]
    return predictor.predict(inputs), np.concatenate(alone)


def _are_equal(together: Floats, alone: Floats) -> bool:
    return np.allclose(together, alone, rtol=1e-3, atol=1e-5, equal_nan=True)


def _are_rows_independent(predictor: GraphPredictor, zeros: Floats) -> bool:
    """Return whether rows that differ get the same predictions together and one by one. In rows of zeros, a
    mean over the rows could not be seen. A graph need not accept these rows, because nobody has chosen them
    as samples, so its failure shows nothing."""
    places = np.arange(zeros.size) + np.arange(zeros.size) // max(1, zeros[0].size)
    rows = (places % _TRIAL_VALUES).astype(np.float64).reshape(zeros.shape)
    try:
        return _are_equal(*_together_and_alone(predictor, rows))
    except Exception:  # noqa: BLE001  the exceptions of ONNX Runtime have no common class
        return True


def _result(context: JobContext, card: ModelCard, file: OnnxFile, golden: int) -> JobResult:
    files = [path for path in context.output.iterdir() if path.is_file()]
    if not any(path.name == GRAPH for path in files):
        raise DataError(f"{GRAPH} was not written")
    details = {
        **card_details(card),
        "options": dict(card.options),
        "packages": dict(card.versions),
        "predicts": model_signature(card).text,
        "files": sorted(path.name for path in files),
        "imported": {
            "file": file.name,
            "sha256": sha256(file.content).hexdigest(),
            "size_bytes": len(file.content),
            "opset": file.opset,
            "producer": file.producer,
            "golden_rows": golden,
        },
    }
    output = Output(
        kind=ArtifactKind.MODEL,
        uri=context.order.output_uri,
        rows=0,
        size_bytes=sum(path.stat().st_size for path in files),
        details=details,
    )
    return JobResult(outputs=(output,), size=JobSize(rows=golden, columns=len(card.encodings)))
