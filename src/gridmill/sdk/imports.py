"""The client method that makes a version of a model from an ONNX file."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gridmill.domain.amounts import MIB, show_bytes
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.naming import check_name
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run_failures import BY_EDIT, at_fault, failed_jobs
from gridmill.domain.states import JobState, RunState
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.domain.views import RunView
from gridmill.errors import ConflictError, InputError, JobError, NotFoundError
from gridmill.sdk.artifacts import VersionVerbs
from gridmill.sdk.loaded import Version
from gridmill.sdk.runs import LINES, RunVerbs, Tick, run_error

JOB = "model"
"""The name of the only job of the pipeline of an imported model."""
_FIELD = re.compile(r"^training\.(file|signature|samples): ")
_MOST_BYTES = 90 * MIB
"""The largest size of the files of an import, which are sent as a code bundle of at most 100 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModel:
    """An imported version. `is_new` is false if the same files were imported before as this version."""

    version: Version
    is_new: bool


class ImportVerbs(RunVerbs, VersionVerbs):
    """The client method for imports."""

    def import_model(
        self,
        name: str,
        file: str | Path,
        *,
        signature: str | Path | None = None,
        samples: str | Path | None = None,
        on_tick: Callable[[Tick], None] | None = None,
    ) -> ImportedModel:
        """Make a version `NAME/model@N` of a model from an ONNX file, and return it after it was checked.

        `signature` is a YAML or JSON file that describes the features and the predictions. Without it, they
        follow from the inputs and outputs of the file. `samples` is a CSV or JSON file with rows, of which up
        to 20 are stored with their predictions; a service verifies these when it loads the version. If the
        same files were imported before, the method returns their version. Raises InputError, ConflictError
        if a pipeline has this name, JobError if the file cannot be a model.
        """
        check_name("model", name)
        self._check_not_a_pipeline(name)
        with TemporaryDirectory(prefix="gridmill-import-") as folder:
            names = [_copied(one, Path(folder)) for one in (file, signature, samples)]
            spec = TrainingSpec(
                model=ModelKind.CUSTOM, file=names[0], signature=names[1], samples=names[2], inputs=()
            )
            pipeline = Pipeline(name=name, jobs=(Job(name=JOB, training=spec),), folder=folder)
            # without the folder, because it exists only for this call
            prepared = replace(self.prepare(pipeline), folder="", host="", commit="")
        ended = self.wait(self.attend(lambda grid: grid.start_run(prepared)).run.id, on_tick=on_tick)
        if ended.run.state is not RunState.SUCCEEDED:
            raise _refusal(ended) or run_error(ended, lambda job: self.last_lines(ended, job, LINES))
        is_new = all(one.job.state is not JobState.UNCHANGED for one in ended.jobs)
        return ImportedModel(version=self.load(f"{name}/{JOB}"), is_new=is_new)

    def _check_not_a_pipeline(self, name: str) -> None:
        """Raise ConflictError if a pipeline of this name was not made by an import."""
        try:
            known = self.grid.pipeline(name)
        except NotFoundError:
            return
        spec = known.jobs[0].training if len(known.jobs) == 1 else None
        if spec is None or spec.dataset or known.jobs[0].name != JOB:
            raise ConflictError(
                f"there is a pipeline {name!r}, so a model of this name cannot be imported",
                hint="Choose another name.",
            )


def _refusal(view: RunView) -> JobError | None:
    """Return the error for files that cannot be a model, or None if the run failed for another reason. It
    names no job and no pipeline, because the user of an import has declared none."""
    attempt = next((at_fault(job) for job in failed_jobs(view)), None)
    if attempt is None or attempt.cause not in BY_EDIT:
        return None
    return JobError(
        _FIELD.sub("", attempt.message),
        hint=attempt.hint or f"To see the log: gridmill logs {view.run.id} {JOB}",
        run=view.run.id,
        job=JOB,
        exit_code=attempt.exit_code,
    )


def _copied(source: str | Path | None, folder: Path) -> str | None:
    """Copy a file into a folder, and return its name. Raises InputError if there is no such file, or if it is
    too large."""
    if source is None:
        return None
    path = Path(source)
    if not path.is_file():
        raise InputError(f"there is no file {str(source)!r}")
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(
            f"{path} has {show_bytes(path.stat().st_size)}, but an imported file has at most "
            f"{show_bytes(_MOST_BYTES)}",
            hint="Store the weights as 16-bit floats, or train the model in a pipeline.",
        )
    if (folder / path.name).exists():
        raise InputError(f"two of the files are called {path.name!r}", hint="Rename one of them.")
    shutil.copyfile(path, folder / path.name)
    return path.name
