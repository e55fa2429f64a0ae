"""Random sinks and datasets whose plan must have no error where they can be run.

The cases are those of other subjects. Before each of their jobs runs, a preflight looks at the same
declaration and the same data, in half of the cases at a few rows of each file alone. What it is sure of must
make the job fail.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from gridmill.domain.artifact import Artifact, Output
from gridmill.domain.preflight import PreflightRequest, PreflightResult
from gridmill.jobs.context import JobContext, JobResult
from gridmill.jobs.preflight import results, sinks
from gridmill.jobs.preflight.run import check
from tests.kit import dataset_case, sink_case
from tests.oracles import dataset_cases, file_cases, form_cases

Run = Callable[[JobContext], JobResult]
_KITS: tuple[ModuleType, ...] = (sink_case, dataset_case, file_cases, dataset_cases)
"""Where jobs are run by the name `run`."""
_CASES = (form_cases.case, file_cases.case, dataset_cases.case, None)
"""None: datasets of columns that are hard to describe."""


class FalseError(AssertionError):
    """A plan has an error for a job that can be run."""


def case(seed: int, folder: Path) -> None:
    """One case of another subject, with a preflight before each of its jobs."""
    random = Random(seed)
    drawn = random.choice(_CASES) or import_module("tests.fuzz.nasty_columns").case
    with pytest.MonkeyPatch.context() as patch, jobs_checked(patch):
        if random.random() < 0.5:
            patch.setattr(sinks, "WHOLE_BYTES", 0)
            patch.setattr(sinks, "SAMPLE_ROWS", random.randint(1, 4))
            patch.setattr(results, "WHOLE_ROWS", random.choice((0, 1, 50_000)))
        drawn(seed, folder)


@contextmanager
def jobs_checked(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Jobs of the kits have a preflight before they run. Raises FalseError where that is wrong."""
    earlier: dict[str, Output] = {}
    for kit in _KITS:
        patch.setattr(kit, "run", _with_check(kit.run, earlier))
    yield


def _with_check(run: Run, earlier: dict[str, Output]) -> Run:
    def run_checked(context: JobContext) -> JobResult:
        order = context.order
        if order.part is not None or order.parts:
            return run(context)
        table = f"{order.root}/{order.table_uri or order.output_uri}"
        checked = preflight(context, earlier.get(table))
        result = run(context)
        earlier[table] = result.outputs[0]
        complain(context, checked)
        return result

    return run_checked


def preflight(context: JobContext, earlier: Output | None) -> PreflightResult:
    """What a plan of this job alone finds. `earlier` is the newest version of its table."""
    order = context.order
    question = PreflightRequest(
        folder=order.folder,
        jobs=(order.job,),
        root=order.root,
        versions={one.name: one.artifact for one in order.inputs},
        earlier={order.job.name: _version(order.job.name, earlier)} if earlier else {},
    )
    with tempfile.TemporaryDirectory() as work:
        return check(question, Path(work))


def complain(context: JobContext, checked: PreflightResult) -> None:
    """Raises FalseError for what a plan found in a job that was run."""
    certain = [one for one in checked.findings if one.certain]
    failed = [one for one in checked.unchecked if "the check itself failed" in one.why]
    if certain or failed:
        raise FalseError(f"{context.order.job.spec}: {certain or failed}")


def _version(name: str, output: Output) -> Artifact:
    return Artifact(id=f"p/{name}@1", name=f"p/{name}", number=1, output=output, fingerprint="")
