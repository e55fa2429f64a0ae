"""The signature of an imported model: which features it reads, and what it predicts.

The signature comes from a file of the user, from the metadata of a graph that Gridmill exported, or otherwise
from the names and shapes of the inputs and outputs of the graph.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gridmill.codec import from_builtins
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import did_you_mean
from gridmill.domain.training import Objective
from gridmill.errors import InputError
from gridmill.jobs.classes import TEXT
from gridmill.jobs.features import Encoding
from gridmill.jobs.model_files import width_of
from gridmill.jobs.training.onnx_file import GraphValue, OnnxFile

PLACE = "training.signature"
_FIELDS = ("features", "label", "labels", "classes", "output", "threshold")
_FEATURE_FIELDS = ("name", "type", "categories", "others")
_TYPES = {"number": "double", "boolean": "bool", "text": "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSignature:
    """The features and predictions of an imported model, in the order of its inputs and outputs (see the
    fields of ModelCard with the same names)."""

    encodings: tuple[Encoding, ...]
    labels: tuple[str, ...]
    classes: tuple[str, ...] = ()
    class_type: str = TEXT
    output: str = ""
    threshold: float | None = None
    sequence: int | None = None

    @property
    def objective(self) -> Objective:
        """The objective, which follows from the classes."""
        return Objective.CLASSIFICATION if self.classes else Objective.REGRESSION


def find_signature(file: OnnxFile, path: Path | None) -> FileSignature:
    """Return the signature of a model. `path` is the file in which a user describes it. Raises InputError if
    the description does not match the graph."""
    name = path.name if path is not None else ""
    given = _read(path) if path is not None else {}
    stored = _stored(file) if path is None else None
    output = _output(file, str(given.get("output") or file.answer), name)
    width = _output_width(output)
    found = stored or FileSignature(
        encodings=_encodings(file, given, name),
        labels=_labels(given, output, width),
        **_classes(given, output, width, name),
        output=output.name,
        threshold=_threshold(given, name),
        sequence=_sequence(file),
    )
    _check_inputs(file, found, name)
    _check_outputs(file, found, output, width, name)
    return found


def _wrong(message: str, name: str, hint: str = "") -> InputError:
    return InputError(f"{name}: {message}" if name else message, hint=hint, place=PLACE)


def _read(path: Path) -> Mapping[str, Any]:
    # imported here, because only imports with a signature need it
    import yaml

    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _wrong(f"not valid YAML: {error}", path.name) from error
    if not isinstance(content, dict):
        raise _wrong("the signature must have named fields", path.name, f"Fields are {', '.join(_FIELDS)}.")
    for field in content:
        if field not in _FIELDS:
            text = f"there is no field {str(field)!r}{did_you_mean(str(field), _FIELDS)}"
            raise _wrong(text, path.name, f"Fields are {', '.join(_FIELDS)}.")
    return content


def _stored(file: OnnxFile) -> FileSignature | None:
    """Return the signature that Gridmill has stored in a graph that it made."""
    try:
        facts = {key: json.loads(file.metadata[f"gridmill.{key}"]) for key in ("columns", "labels")}
        more = {
            key: json.loads(file.metadata.get(f"gridmill.{key}", "null"))
            for key in ("classes", "class_type", "threshold", "sequence")
        }
        return FileSignature(
            encodings=tuple(from_builtins(one, Encoding) for one in facts["columns"]),
            labels=tuple(facts["labels"]),
            classes=tuple(more["classes"] or ()),
            class_type=more["class_type"] or TEXT,
            threshold=more["threshold"],
            sequence=more["sequence"],
            output=file.answer,
        )
    except (KeyError, ValueError, TypeError, InputError):
        return None


def _encodings(file: OnnxFile, given: Mapping[str, Any], name: str) -> tuple[Encoding, ...]:
    if "features" not in given:
        return tuple(Encoding(column=one, type="double") for one in _input_names(file))
    features = given["features"]
    if not isinstance(features, list) or not features:
        raise _wrong("features must be a list with at least one name", name)
    encodings = tuple(_encoding(one, number, name) for number, one in enumerate(features))
    columns = [one.column for one in encodings]
    twice = next((one for one in columns if columns.count(one) > 1), None)
    if twice is not None:
        raise _wrong(f"features has {twice!r} twice", name)
    return encodings


def _encoding(feature: object, number: int, name: str) -> Encoding:
    where = f"features[{number}]"
    if isinstance(feature, str):
        return Encoding(column=feature, type="double")
    if not isinstance(feature, dict) or not isinstance(feature.get("name"), str):
        raise _wrong(f"{where} must be a name, or have the field `name`", name)
    unknown = next((one for one in feature if one not in _FEATURE_FIELDS), None)
    if unknown is not None:
        raise _wrong(f"{where} has no field {str(unknown)!r}", name, f"Fields: {', '.join(_FEATURE_FIELDS)}.")
    categories = feature.get("categories")
    kind = feature.get("type") or ("text" if categories else "number")
    if kind not in _TYPES:
        raise _wrong(f"{where}.type is {kind!r}; it must be one of {', '.join(_TYPES)}", name)
    if (kind == "text") != bool(categories) or not isinstance(categories or [], list):
        raise _wrong(f"{where} must have a list of categories if, and only if, it is a text", name)
    return Encoding(
        column=feature["name"],
        type=_TYPES[kind],
        categories=tuple(map(str, categories)) if categories else None,
        others=bool(feature.get("others")),
    )


def _input_names(file: OnnxFile) -> list[str]:
    names: list[str] = []
    for one in file.inputs:
        if len(one.shape) > 1 and one.shape[-1] is None:
            raise InputError(
                f"input {one.name!r} of {file.name} has an unknown number of columns",
                hint="Name the features in a signature file: --signature FILE.",
                place=PLACE,
            )
        width = width_of(one.shape)
        names += [one.name] if width == 1 else [f"{one.name}_{number}" for number in range(width)]
    return names


def _sequence(file: OnnxFile) -> int | None:
    shape = file.inputs[0].shape
    return shape[1] if len(shape) == 3 else None


def _output(file: OnnxFile, wanted: str, name: str) -> GraphValue:
    found = next((one for one in file.outputs if one.name == wanted), None)
    if found is None:
        outputs = ", ".join(one.name for one in file.outputs)
        raise _wrong(f"output: {file.name} has no output {wanted!r}", name, f"Its outputs are {outputs}.")
    if not found.type.startswith("tensor(") or found.type == "tensor(string)":
        raise InputError(
            f"output {wanted!r} of {file.name} has the type {found.type}, but a model must return numbers",
            hint="Name another output in the signature (`output: NAME`). Convert a scikit-learn classifier "
            "with `options={'zipmap': False}`.",
            place=PLACE,
        )
    return found


def _output_width(output: GraphValue) -> int | None:
    """Return the number of values for each row; None if it is unknown."""
    if len(output.shape) < 2:
        return 1
    return output.shape[1]


def _labels(given: Mapping[str, Any], output: GraphValue, width: int | None) -> tuple[str, ...]:
    labels = given.get("labels") or ([given["label"]] if given.get("label") else None)
    if labels is not None:
        return tuple(map(str, labels)) if isinstance(labels, list) else (str(labels),)
    if given.get("classes") or _are_probabilities(output) or width in (None, 1):
        return (output.name,)
    return tuple(f"{output.name}_{number}" for number in range(width))


def _are_probabilities(output: GraphValue) -> bool:
    return "probabilit" in output.name


def _classes(given: Mapping[str, Any], output: GraphValue, width: int | None, name: str) -> dict[str, Any]:
    classes = given.get("classes")
    if classes is None:
        if not _are_probabilities(output) or width is None or "label" in given or "labels" in given:
            return {}
        # a converter that names no classes returns the probabilities of the classes 0, 1, ...
        classes = list(range(max(2, width)))
    if not isinstance(classes, list) or len(classes) < 2 or len(set(map(str, classes))) != len(classes):
        raise _wrong("classes must be a list of at least two different values", name)
    kinds = {type(one) for one in classes}
    if kinds == {bool}:
        return {"classes": tuple(str(one).lower() for one in classes), "class_type": "bool"}
    if kinds == {int}:
        return {"classes": tuple(map(str, classes)), "class_type": "int64"}
    if kinds <= {int, float}:
        return {"classes": tuple(str(float(one)) for one in classes), "class_type": "double"}
    return {"classes": tuple(map(str, classes)), "class_type": TEXT}


def _threshold(given: Mapping[str, Any], name: str) -> float | None:
    threshold = given.get("threshold")
    if threshold is None:
        return None
    if (
        not isinstance(threshold, int | float)
        or not 0 < threshold < 1
        or len(given.get("classes") or ()) != 2
    ):
        raise _wrong(f"threshold is {threshold!r}; it must be between 0 and 1, for two classes", name)
    return float(threshold)


def _check_inputs(file: OnnxFile, found: FileSignature, name: str) -> None:
    widths = [width_of(one.shape) for one in file.inputs]
    if len(widths) == 1 and len(file.inputs[0].shape) > 1 and file.inputs[0].shape[-1] is None:
        return
    needed = [one for encoding in found.encodings for one in encoding.inputs]
    if len(needed) != sum(widths):
        inputs = _shown([f"{one.name} ({width})" for one, width in zip(file.inputs, widths, strict=True)])
        raise _wrong(
            f"the features are {len(needed)} inputs of the model, but the inputs of {file.name} have "
            f"{sum(widths)} columns: {inputs}",
            name,
            "A number is one input, and a text is one input for each category.",
        )


def _check_outputs(
    file: OnnxFile, found: FileSignature, output: GraphValue, width: int | None, name: str
) -> None:
    wanted = len(found.classes or found.labels)
    if width is None or width == wanted or (width == 1 and len(found.classes) == 2):
        return
    what = "classes" if found.classes else "labels"
    raise _wrong(
        f"the signature has {wanted} {what}, but output {output.name!r} of {file.name} has {width} values "
        "per row",
        name,
    )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
