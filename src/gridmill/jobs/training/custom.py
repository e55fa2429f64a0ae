"""Trainings by a script or function of the user: this module prepares the inputs of the code, and turns its
outputs into a model."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from gridmill.domain.metrics import OWN
from gridmill.domain.training import TrainingSpec
from gridmill.errors import InputError, JobError
from gridmill.jobs.classes import Classes
from gridmill.jobs.containers import EVENTS, ContainerJob, container_argv, read_record
from gridmill.jobs.context import CODE, JobContext, PrunedError
from gridmill.jobs.features import is_text
from gridmill.jobs.model_files import CARD, GRAPH, load_graph, takes_single_floats
from gridmill.jobs.out_of_fold import FILE as HELD_OUT
from gridmill.jobs.secret_values import fill_in
from gridmill.jobs.subprocess_model import RUNNER
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.result import FittedModel
from gridmill.jobs.training_rows import FILE as LEARNED
from gridmill.transfer.tree_writer import hand_tree
from gridmill.transfer.verify import check_inputs

PICKLED = ("model.joblib", "model.pkl")
MEASURED = "metrics.json"
LOSSES = ("train_loss", "validation_loss")
"""The names under which the user's code can report losses by step. Losses with these names are the learning
curves. A search uses these losses to stop trials early."""
DATASET = "dataset"
"""The folder below the work folder that contains the files of the dataset. `hand_tree` copies some of these
files for the script."""
OUTSIDE = 255
POLL_SECONDS = 0.2
BLUR_ROWS = 10_000


def fit(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> FittedModel:
    """Run the script or function, or import the file, and return the fitted model. Raises InputError if
    there is no model, JobError."""
    code = context.work / CODE
    curve: list[tuple[float, float, float]] = []
    not_finite: dict[str, str] = {}
    if spec.script is not None:
        _write_inputs(frame, spec, context)
        shutil.rmtree(context.work / DATASET, ignore_errors=True)
        hand_tree(context.below_root(context.input(spec.dataset).output.uri), context.work / DATASET)
        _run(spec, context, code, _teller(context, curve, not_finite))
        check_inputs(context.order.root, [context.input(spec.dataset)])
    else:
        _take_file(spec, context, code)
    if context.rank:
        return FittedModel()
    _check_names(context.output)
    graph = _graph(context.output)
    predict = "" if graph else _predict(spec, context, code)
    blurred = _blurred(frame) if graph and takes_single_floats(graph) else ""
    if blurred:
        print(
            f"the inputs of model.onnx are 32-bit floats, which cannot represent all values of: {blurred}",
            flush=True,
        )
    return FittedModel(
        graph=graph,
        predict=predict,
        environment=_environment(spec, code) if predict else "",
        curve=tuple(curve),
        metrics=_metrics(context.output, not_finite),
        not_finite=not_finite,
        options={**spec.options, "script": spec.script or spec.file}
        | ({"blurred_inputs": blurred} if blurred else {})
        | _container(context),
        libraries=(),
    )


def _container(context: JobContext) -> dict[str, str]:
    """Return the image with its digest in which the script ran, or nothing."""
    record = read_record(context.work.parent)
    return {"container": f"{record.image.partition('@')[0]}@{record.digest}"} if record is not None else {}


def _check_names(output: Path) -> None:
    """Raise InputError if the script wrote a file with a name that Gridmill uses in the folder of a
    model."""
    taken = [name for name in (CARD, CODE, HELD_OUT, LEARNED) if os.path.lexists(output / name)]
    taken += [name for name in (GRAPH, MEASURED) if (output / name).is_dir()]
    if taken:
        raise InputError(
            f"the script wrote {', '.join(map(repr, taken))} to $GRIDMILL_OUTPUT, but Gridmill writes a "
            "file of the same name",
            hint="Choose another name.",
            place="training.script",
        )


def _write_inputs(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> None:
    folder = context.work / "arrays"
    folder.mkdir(exist_ok=True)
    split = np.full(len(frame.target), OUTSIDE, np.uint8)
    for number, name in enumerate(("train", "validation", "test")):
        split[frame.rows[name]] = number
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "inputs": frame.inputs,
        "target": _without_test(frame),
        "split": split,
        "starts": frame.starts,
    }
    if frame.weights is not None:
        arrays["weights"] = np.nan_to_num(frame.weights)
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values, allow_pickle=False)
    facts = {
        "labels": list(frame.subject.labels),
        "classes": _classes(frame),
        "objective": frame.objective.value,
        "features": [encoding.column for encoding in frame.encodings],
        "input_names": list(frame.names),
        "entity": list(frame.subject.entity),
        "time": frame.subject.time,
        "seed": spec.seed,
        "threads": context.threads,
        "options": dict(spec.options),
    }
    (context.work / "training.json").write_text(json.dumps(facts))
    (context.work / "metrics.jsonl").write_bytes(b"")


def _classes(frame: SortedFrame) -> list[Any]:
    """Return the classes: integers and booleans unchanged, other numbers as floats, all other values as
    text."""
    values = Classes(names=frame.classes, type=frame.class_type).values()
    plain = is_text(values.type) or pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)
    result: list[Any] = (values if plain else values.cast(pa.float64())).to_pylist()
    return result


def _without_test(frame: SortedFrame) -> np.ndarray[Any, Any]:
    """Return the targets of all rows. The targets of test rows are missing, so that the code cannot use them
    for training or model selection."""
    target = np.array(frame.target)
    target[frame.rows["test"]] = np.nan
    return target


def _run(spec: TrainingSpec, context: JobContext, code: Path, tell: "LogForwarder") -> None:
    script = str(spec.script)
    path, _, name = script.partition(":")
    if not _inside(code, path).is_file():
        raise InputError(f"there is no {path!r} in the project", place="training.script")
    python = context.python() if spec.container is None else "python3"
    argv = [python, *([str(RUNNER), "fit", f"{code / path}:{name}"] if name else [str(code / path)])]
    variables = _variables(spec, context)
    if spec.container is not None:
        argv = list(container_argv(_container_job(spec, context, code), argv, variables))
    with subprocess.Popen(
        argv, cwd=code, env=variables, pass_fds=_events(variables) if spec.container is not None else ()
    ) as process:
        try:
            while not _ended(process):
                tell()
            tell(last=True)
        except PrunedError:
            process.kill()
            raise
    if process.returncode == -signal.SIGKILL and context.order.gang is not None:
        # ends in the same way, because the pod distinguishes a killed rank from a failed rank
        os.kill(os.getpid(), signal.SIGKILL)
    if process.returncode != 0:
        raise JobError(
            f"{script} ended with exit code {process.returncode}", hint="The job's log has its output."
        )


def _container_job(spec: TrainingSpec, context: JobContext, code: Path) -> ContainerJob:
    login = fill_in(spec.registry_login, "training.registry_login") if spec.registry_login else ""
    return ContainerJob(
        attempt_id=context.order.attempt_id,
        folder=context.work.parent,
        image=str(spec.container),
        readable=(RUNNER, context.work / DATASET, context.work / "arrays", context.work / "training.json"),
        writable=tuple(filter(None, (context.work, context.output, context.checkpoints))),
        cwd=code,
        given=context.order.given,
        gpus=tuple(one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one),
        login=login,
    )


def _events(variables: Mapping[str, str]) -> tuple[int, ...]:
    """Return the file descriptor of the events of the job, which the runtime passes on."""
    return (int(variables[EVENTS]),) if EVENTS in variables else ()


def _ended(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _variables(spec: TrainingSpec, context: JobContext) -> dict[str, str]:
    own = {
        "GRIDMILL_DATASET": str(context.work / DATASET),
        "GRIDMILL_ARRAYS": str(context.work / "arrays"),
        "GRIDMILL_TRAINING": str(context.work / "training.json"),
        "GRIDMILL_METRICS": str(context.work / "metrics.jsonl"),
        "GRIDMILL_OUTPUT": str(context.output),
    }
    if context.checkpoints is not None:
        context.checkpoints.mkdir(parents=True, exist_ok=True)
        own["GRIDMILL_CHECKPOINTS"] = str(context.checkpoints)
    return {**os.environ, **own}


class LogForwarder(Protocol):
    """A function that reads the lines that the script has written to the metrics file, and forwards them to
    Gridmill."""

    def __call__(self, *, last: bool = False) -> None:
        """Forward the new complete lines. If `last` is true, also forward an incomplete last line."""


def _teller(
    context: JobContext, curve: list[tuple[float, float, float]], not_finite: dict[str, str]
) -> LogForwarder:
    """Return a function that forwards metrics.

    The function also builds the curve of the two usual losses, and records the metrics that are not finite.
    """
    file, read = context.work / "metrics.jsonl", 0
    losses: dict[float, dict[str, float]] = {}

    def tell(*, last: bool = False) -> None:
        nonlocal read
        with file.open("rb") as lines:
            lines.seek(read)
            content = lines.read()
        whole = len(content) if last else content.rfind(b"\n") + 1
        for line in content[:whole].splitlines():
            _log_metric(context, line, losses, not_finite)
        read += whole
        if last:
            both = [(step, one) for step, one in sorted(losses.items()) if len(one) == 2]
            curve[:] = [(step, one["train_loss"], one["validation_loss"]) for step, one in both]

    return tell


def _log_metric(
    context: JobContext,
    line: bytes,
    losses: dict[float, dict[str, float]],
    not_finite: dict[str, str],
) -> None:
    try:
        report = json.loads(line)
        name, value = str(report["name"]), float(report["value"])
        step = None if report.get("step") is None else float(report["step"])
    except (ValueError, KeyError, TypeError, AttributeError):
        print(f"a line of GRIDMILL_METRICS is not a metric: {line.decode(errors='replace')}", flush=True)
        return
    curved = step is not None and name in LOSSES
    name = name if curved else own_name(name)
    if not isfinite(value) or not isfinite(step or 0.0):
        not_finite[name] = str(value)
        print(f"metric {name} is {value}" + ("" if step is None else f" at step {step:g}"), flush=True)
        return
    context.metric(name, value, step=step)
    if step is not None and curved:
        losses.setdefault(step, {})[name] = value


def _take_file(spec: TrainingSpec, context: JobContext, code: Path) -> None:
    source = _inside(code, str(spec.file))
    if not source.is_file():
        raise InputError(f"there is no {spec.file!r} in the project", place="training.file")
    names = {".onnx": GRAPH, ".joblib": "model.joblib", ".pkl": "model.pkl", ".pickle": "model.pkl"}
    if source.suffix not in names:
        raise InputError(
            f"{spec.file!r} is not a model file that Gridmill can import",
            hint=f"Gridmill imports {', '.join(names)}. For other files, write a `script` with a "
            "`predict` function.",
            place="training.file",
        )
    shutil.copyfile(source, context.output / names[source.suffix])


def _graph(output: Path) -> bytes | None:
    path = output / GRAPH
    return load_graph(path) if path.exists() else None


def _blurred(frame: SortedFrame) -> str:
    """Return a text with the inputs that lose too much precision if they are converted to 32-bit floats.
    An input loses too much precision if at least a tenth of its training values become equal to other
    values."""
    rows = frame.inputs[frame.rows["train"][:BLUR_ROWS]]
    names = []
    for name, values in zip(frame.names, rows.T, strict=True):
        distinct = np.unique(values[np.isfinite(values)])
        with np.errstate(over="ignore"):
            if len(np.unique(distinct.astype(np.float32))) < 0.9 * len(distinct):
                names.append(name)
    return ", ".join(names)


def _predict(spec: TrainingSpec, context: JobContext, code: Path) -> str:
    """Return the name of the function or of the pickled file with which a model without a graph predicts."""
    if spec.predict is not None:
        path = spec.predict.partition(":")[0]
        if ":" not in spec.predict or not _inside(code, path).is_file():
            raise InputError(
                f"{spec.predict!r} is not a function of the project",
                hint="Write FILE:FUNCTION, for example `train.py:predict`.",
                place="training.predict",
            )
        shutil.copytree(code, context.output / CODE, symlinks=True)
        return f"{CODE}/{spec.predict}"
    result = next((name for name in PICKLED if (context.output / name).exists()), None)
    if result is None:
        names = ", ".join(sorted(path.name for path in context.output.iterdir())) or "nothing"
        raise InputError(
            f"the script wrote no model that can predict to $GRIDMILL_OUTPUT ({names})",
            hint="Write model.onnx to $GRIDMILL_OUTPUT, or name a function: `predict: train.py:predict`.",
            place="training.script",
        )
    if not spec.trust:
        raise InputError(
            f"{spec.file or result} is a pickled model: loading it can execute any code on this machine",
            hint="If you trust the author of the model, write `trust: true`. ONNX models need no trust.",
            place="training.trust",
        )
    # all files are copied, because a requirements file may include other files of the project
    if spec.environment:
        shutil.copytree(code, context.output / CODE, symlinks=True)
    return result


def _environment(spec: TrainingSpec, code: Path) -> str:
    """Return the text of the requirements that the model needs for predictions."""
    return (code / spec.environment).read_text("utf-8") if spec.environment else ""


def own_name(name: str) -> str:
    """Return the name under which a metric of the user's code is stored. The new name differs from all names
    of the metrics of Gridmill."""
    return name if name.startswith(OWN) else OWN + name


def _metrics(output: Path, not_finite: dict[str, str]) -> Mapping[str, float]:
    """Return the metrics that the code of the user wrote. Metrics that are not finite are only recorded by
    their names."""
    path = output / MEASURED
    if not path.exists():
        return {}
    try:
        reported: dict[str, Any] = json.loads(path.read_bytes())
        metrics_by_name = {own_name(str(name)): float(value) for name, value in reported.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"metrics.json is not a mapping of names to numbers: {error}", place="training.script"
        ) from error
    not_finite |= {name: str(value) for name, value in metrics_by_name.items() if not isfinite(value)}
    return {name: value for name, value in metrics_by_name.items() if isfinite(value)}


def _inside(code: Path, name: str) -> Path:
    path = code / name
    if not path.resolve().is_relative_to(code.resolve()):
        raise InputError(f"{name!r} is outside the project", place="training.script")
    return path
