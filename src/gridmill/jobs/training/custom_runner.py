"""Runs a function of the user in the environment of the user. The runner imports only the standard library
and numpy.

`custom_runner.py fit FILE:FUNCTION` calls the function once with the data of the training. `custom_runner.py
predict DESCRIPTOR FOLDER FILE:FUNCTION` (or FILE, a pickled model) reads lines [INPUTS, OUTPUTS], which are
paths of npy files in JSON. `custom_runner.py predict` answers each line with a line on the file descriptor
DESCRIPTOR. The first line on this descriptor reports that the code is loaded. An empty list is answered
with the packages of the process, in JSON. `custom_runner.py serve` is
the same for a service whose process has the id PARENT, the last argument: an exception of the code is
answered by a line, and the runner goes on; the runner ends when the process PARENT ends.
"""

import ctypes
import importlib
import importlib.util
import json
import os
import pickle
import platform
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def fit(target: str) -> None:
    """Call the function of the user with the data of the training. If the function returns a mapping, the
    mapping is stored as metrics."""
    data = training_data()
    model = function(target)(data)
    if model is not None:
        (data.output / "metrics.json").write_text(json.dumps(as_metrics(model, target)))


def as_metrics(found: Any, target: str) -> dict[str, float]:  # noqa: ANN401  whatever a user returns
    """Return the value as a mapping of names to numbers. Ends the process if the value is not such a
    mapping."""
    try:
        return {str(name): float(value) for name, value in dict(found).items()}
    except (TypeError, ValueError) as error:
        kind = type(found).__name__
        raise SystemExit(
            f"{target} returned a {kind}, but metrics must be names with numbers ({error})"
        ) from None


def numpy() -> Any:  # noqa: ANN401  a module of the user's environment
    """Import numpy in the environment of the user. Ends the process if numpy is not installed."""
    try:
        return importlib.import_module("numpy")
    except ModuleNotFoundError:
        raise SystemExit(
            f"numpy is not installed in the environment {sys.prefix}, but the data is passed as numpy "
            "arrays: add numpy to the requirements file"
        ) from None


def training_data() -> SimpleNamespace:
    """Return the data of the training in the form that the function of the user receives: arrays, row
    numbers of the splits, and the declared settings."""
    np = numpy()
    arrays = Path(os.environ["GRIDMILL_ARRAYS"])
    facts = json.loads(Path(os.environ["GRIDMILL_TRAINING"]).read_text())
    loaded = {
        name: np.load(arrays / f"{name}.npy", mmap_mode="r")
        for name in ("inputs", "target", "split", "starts")
    }
    weights = arrays / "weights.npy"
    loaded["weights"] = np.load(weights, mmap_mode="r") if weights.exists() else None
    rows = {
        name: np.flatnonzero(loaded["split"] == number)
        for number, name in enumerate(("train", "validation", "test"))
    }
    output = Path(os.environ["GRIDMILL_OUTPUT"])
    return SimpleNamespace(
        **loaded, **rows, **facts, dataset=Path(os.environ["GRIDMILL_DATASET"]), output=output, metric=metric
    )


def metric(name: str, value: float, step: float | None = None) -> None:
    """Report the value of a metric while the function of the user runs."""
    with open(os.environ["GRIDMILL_METRICS"], "a") as file:
        file.write(json.dumps({"name": name, "value": float(value), "step": step}) + "\n")


def function(target: str) -> Callable[..., Any]:
    """Import the function in `folder/file.py:name`. The folder of the file becomes the first folder of the
    Python path."""
    path, _, name = target.rpartition(":")
    sys.path.insert(0, str(Path(path).resolve().parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    result: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(result):
        available = [
            key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
        ]
        raise SystemExit(f"{path} has no function {name!r}; it has: {', '.join(available) or 'none'}")
    return result


def predict(descriptor: str, folder: str, target: str) -> None:
    """Answer the lines on standard input until the input ends."""
    np = numpy()
    answer = function(target) if ":" in Path(target).name else pickled(Path(target))
    with os.fdopen(int(descriptor), "w") as replies:
        replies.write("loaded\n")
        replies.flush()
        for line in sys.stdin:
            question, reply = json.loads(line), "done"
            if question:
                source, result = question
                answers = np.asarray(answer(Path(folder), np.load(source)))
                np.save(result, answers.astype(float), allow_pickle=False)
            else:
                reply = packages()
            replies.write(reply + "\n")
            replies.flush()


def serve(descriptor: str, folder: str, target: str, parent: str) -> None:
    """Answer the lines on standard input like `predict`. An exception of the code is printed, and its class
    is answered, because other rows may be predicted without an error."""
    end_with(int(parent))
    np = numpy()
    answer = function(target) if ":" in Path(target).name else pickled(Path(target))
    with os.fdopen(int(descriptor), "w") as replies:
        replies.write("loaded\n")
        replies.flush()
        for line in sys.stdin:
            question, reply = json.loads(line), "done"
            try:
                if not question:
                    replies.write(packages() + "\n")
                    replies.flush()
                    continue
                source, result = question
                answers = np.asarray(answer(Path(folder), np.load(source)))
                with open(result, "wb") as file:
                    np.save(file, answers.astype(float), allow_pickle=False)
            except Exception as error:  # noqa: BLE001  whatever the code of a user raises
                traceback.print_exc()
                reply = f"failed {type(error).__name__}"
            replies.write(reply + "\n")
            replies.flush()


def packages() -> str:
    """Return the versions of the packages of this process as JSON: of those whose modules are imported, and
    of all that are installed in its environment."""
    names = metadata.packages_distributions()
    imported = {module.partition(".")[0] for module in sys.modules} - {"__main__"}
    loaded = {
        distribution.lower(): metadata.version(distribution)
        for module in sorted(imported & names.keys())
        for distribution in sorted(filter(None, set(names[module])))
    }
    own = [folder for folder in sys.path if folder.startswith(sys.prefix + os.sep)]
    installed: dict[str, str] = {}
    for one in metadata.distributions(path=own):
        if name := one.metadata["Name"]:
            installed.setdefault(name.lower(), one.version)
    found = {"loaded": {"python": platform.python_version(), **loaded}, "installed": installed}
    return json.dumps(found, sort_keys=True)


def end_with(parent: int) -> None:
    """Make Linux kill this process when its parent process ends, because the code may not read the end of its
    input."""
    try:
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        sys.exit(1)


def pickled(path: Path) -> Callable[..., Any]:
    """Return the prediction method of a pickled object, which is `predict_proba` (classes) or `predict`.
    Loading a pickled object can execute any code."""
    if path.suffix == ".joblib":
        import joblib

        model = joblib.load(path)
    else:
        with path.open("rb") as file:
            model = pickle.load(file)
    ask = getattr(model, "predict_proba", None) or model.predict
    return lambda folder, inputs: ask(inputs)


if __name__ == "__main__":
    modes: dict[str, Callable[..., None]] = {"fit": fit, "predict": predict, "serve": serve}
    modes[sys.argv[1]](*sys.argv[2:])
