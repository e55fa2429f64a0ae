"""The command `python -m gridmill.jobs.main FOLDER` is the process of an attempt of a built-in job.

FOLDER contains `order.json` and `work/`. The process of the attempt writes its outcome to a temporary file
in FOLDER and renames the file to `outcome.json`, so that the outcome is complete or missing. The pod adds
its own measurements to the outcome. The list of files of the version is written before the job is reported
as succeeded.
"""

import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from math import isfinite
from pathlib import Path
from types import FrameType, ModuleType
from typing import NoReturn

from gridmill.codec import decode, encode
from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome
from gridmill.domain.states import AttemptState, Cause
from gridmill.domain.storage_uri import below
from gridmill.domain.version_manifest import StoredFile, VersionContents
from gridmill.errors import (
    GridmillError,
    InputError,
    InstallError,
    MemoryExceededError,
    NotFoundError,
    StorageError,
)
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.secret_values import masked, receive_values
from gridmill.plugins import find
from gridmill.transfer.contents import NOTHING, list_contents, read_manifest, write_contents
from gridmill.transfer.verify import check_order, seal


def list_made(order: AttemptOrder, outputs: Sequence[Output]) -> None:
    """Write the list of the files of the version to the path in the order. If the order has no path for the
    list, this function writes nothing.

    Files that the previous version also has (data files of the table of a sink) are not read again. Raises
    StorageError.
    """
    root, made = Path(order.root), next((output for output in outputs if output.uri), None)
    if not order.contents_uri or made is None or (order.gang is not None and order.gang.rank):
        return
    names = import_module("gridmill.jobs.inspect_versions").files_of(root, made) if _is_table(made) else None
    previous = _previous_contents(order)
    contents = list_contents(below(root, made.uri), contents=previous, names=names)
    seal(below(root, made.uri), contents)
    if _is_table(made):
        contents = replace(contents, rejects=_rejects(root, made, previous))
    write_contents(below(root, order.contents_uri), contents)


def _rejects(root: Path, made: Output, previous: VersionContents) -> tuple[StoredFile, ...]:
    """Return the files with the rejected rows of this version."""
    told = made.details.get("rejects") or {}
    if not told.get("uri") or told.get("table_version") is None:
        return ()
    table = replace(made, uri=told["uri"], table_version=told["table_version"])
    folder, names = (
        below(root, table.uri),
        import_module("gridmill.jobs.inspect_versions").files_of(root, table),
    )
    contents = list_contents(folder, contents=VersionContents(files=previous.rejects), names=names)
    seal(folder, contents)
    return contents.files


def _is_table(output: Output) -> bool:
    return output.kind == ArtifactKind.SINK


def _previous_contents(order: AttemptOrder) -> VersionContents:
    for entry in order.earlier:
        try:
            return read_manifest(order.root, entry.artifact).contents or NOTHING
        except NotFoundError:
            break
    return NOTHING


_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")
# duckdb's exception, compared by its name because an import of duckdb is slow
_MEMORY_CLASSES = frozenset({"OutOfMemoryException"})

EXTRAS = (
    {"obstore": "objects", "redis": "streams", "PIL": "images"}
    | dict.fromkeys(("pyarrow", "deltalake", "duckdb", "httpx"), "data")
    | dict.fromkeys(
        ("numpy", "torch", "optuna", "sklearn", "safetensors", "onnx", "onnxruntime", "threadpoolctl"),
        "learning",
    )
)
"""For each package that a built-in job needs, the extra of Gridmill that installs the package."""


class StoppedError(BaseException):
    """The process received SIGTERM.

    This class is not a subclass of Exception, so that no job catches it by accident.
    """


def run(folder: Path) -> int:
    """Run the attempt in this folder and write its outcome. Returns 0 if the attempt succeeded, otherwise
    1."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        outcome = _outcome(folder)
    except StoppedError:
        outcome = stopped_outcome()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write_outcome(folder, outcome)
    return 0 if outcome.state == AttemptState.SUCCEEDED else 1


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise StoppedError


def stopped_outcome() -> AttemptOutcome:
    """Return the outcome of an attempt that was stopped."""
    return AttemptOutcome(state=AttemptState.STOPPED, cause=Cause.STOPPED, message="stopped")


def _outcome(folder: Path) -> AttemptOutcome:
    try:
        result = _result(folder)
    except Exception as error:  # noqa: BLE001  the outermost frame of a job: whatever it raised is its outcome
        return failed_outcome(error)
    outputs = tuple(replace(output, metrics=_finite(output.metrics)) for output in result.outputs)
    metrics = _finite(result.metrics)
    return AttemptOutcome(
        state=AttemptState.SUCCEEDED,
        outputs=outputs,
        metrics=metrics,
        size=result.size,
        parallel=result.parallel,
    )


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that JSON can represent, without NaN and infinity."""
    return {name: float(value) for name, value in metrics.items() if isfinite(value)}


def _result(folder: Path) -> JobResult:
    receive_values()
    order = decode((folder / "order.json").read_bytes(), AttemptOrder)
    descriptor = os.environ.get("GRIDMILL_EVENTS_FD")
    context = JobContext(
        order=order,
        work=folder / "work",
        events_fd=int(descriptor) if descriptor else None,
        pythons=json.loads(os.environ.get("GRIDMILL_PYTHONS", "{}")),
    )
    limit_threads(context.threads)
    keep_pandas_out()
    job: Callable[[JobContext], JobResult] = find("jobs", order.job.kind)
    limit_threads(context.threads)
    result = job(replace(context, order=check_order(order, order.root, print)))
    list_made(order, result.outputs)
    return result


def keep_pandas_out() -> None:
    """Prevent pyarrow from importing pandas (see `gridmill.jobs.arrow`).

    Call this function before any import of `pyarrow.dataset`, because that import checks for pandas.
    """
    keep: Callable[[], None] = import_module("gridmill.jobs.arrow").keep_pandas_out
    keep()


def failed_outcome(error: Exception) -> AttemptOutcome:
    """Return the outcome of an attempt that raised an exception. This function writes an unexpected
    exception to the log with its traceback."""
    cause = _cause(error)
    if isinstance(error, GridmillError):
        return AttemptOutcome(state=AttemptState.FAILED, cause=cause, message=str(error), hint=error.hint)
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        message = f"the package {error.name!r} is not installed here"
        hint = f"pip install 'gridmill[{EXTRAS[error.name]}]'"
        return AttemptOutcome(state=AttemptState.FAILED, cause=Cause.INPUT, message=message, hint=hint)
    traceback.print_exception(error)
    hint = "" if cause != Cause.INTERNAL else "The job's log has the traceback."
    return AttemptOutcome(state=AttemptState.FAILED, cause=cause, message=_explain(error, cause), hint=hint)


def _cause(error: Exception) -> Cause:
    match error:
        case InputError():
            return Cause.INPUT
        case InstallError():
            return Cause.ENVIRONMENT
        case StorageError():
            return Cause.STORAGE
        case MemoryError() | MemoryExceededError():
            return Cause.MEMORY
        case OSError() if error.errno in _DISK_FULL:
            return Cause.STORAGE
    if any(kind.__name__ in _MEMORY_CLASSES for kind in type(error).__mro__):
        return Cause.MEMORY
    return Cause.STORAGE if any(text in str(error) for text in _FULL_TEXTS) else Cause.INTERNAL


def _explain(error: Exception, cause: Cause) -> str:
    if cause == Cause.MEMORY:
        return f"ran out of memory: {error}" if str(error) else "ran out of memory"
    if cause == Cause.STORAGE:
        return f"the disk is full: {error}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def write_outcome(folder: Path, outcome: AttemptOutcome) -> None:
    """Write the outcome to `outcome.json` atomically."""
    partial = folder / "outcome.json.partial"
    partial.write_bytes(encode(masked(outcome)))
    partial.replace(folder / "outcome.json")


def limit_threads(threads: int) -> None:
    """Set the number of threads in the numerical libraries that are already loaded.

    Libraries that are loaded later read OMP_NUM_THREADS and similar environment variables, which the pod has
    set. A forked job inherits loaded libraries together with the numbers of threads that its parent process
    set.
    """
    for name, limit in _LIMITS.items():
        module = sys.modules.get(name)
        if module is not None:
            limit(module, threads)


def _limit_pyarrow(module: ModuleType, threads: int) -> None:
    module.set_cpu_count(threads)
    module.set_io_thread_count(max(2, threads))


def _limit_torch(module: ModuleType, threads: int) -> None:
    module.set_num_threads(threads)


def _limit_blas(module: ModuleType, threads: int) -> None:
    module.threadpool_limits(threads)


_LIMITS: dict[str, Callable[[ModuleType, int], None]] = {
    "pyarrow": _limit_pyarrow,
    "torch": _limit_torch,
    "threadpoolctl": _limit_blas,
}


def main() -> int:
    """Run an attempt, and return the exit code. The folder of the attempt is the only argument of the
    program."""
    return run(Path(sys.argv[1]))


if __name__ == "__main__":
    raise SystemExit(main())
