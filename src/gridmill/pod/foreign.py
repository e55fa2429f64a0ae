"""Built-in jobs that run code of a project: custom trainings, and predictions by models that need their own
code.

The job itself is Gridmill's; beside it lies a private copy of the code, and an environment for each
requirements file, whose interpreters the job finds in GRIDMILL_PYTHONS.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from gridmill.jobs.context import CODE
from gridmill.model.artifact import Input
from gridmill.model.job import JobKind
from gridmill.model.message import Order
from gridmill.model.uri import below
from gridmill.pod.commands import (
    devices,
    inherited,
    markers,
    rank_variables,
    read_requirements,
    unpack_code,
)
from gridmill.pod.environments import Requirements, ready_environment


def runs_foreign_code(order: Order) -> bool:
    """Whether it is one of these jobs."""
    job = order.job
    return (job.runs_code and job.command is None) or (
        job.prediction is not None and job.prediction.trust and any(map(_needs_code, order.inputs))
    )


def _needs_code(entry: Input) -> bool:
    return bool(entry.artifact.output.details.get("predict"))


def foreign_environment(
    order: Order, *, base: Mapping[str, str], work: Path, pod_folder: Path
) -> dict[str, str]:
    """The environment of the job's process: as little of ours as a command gets, but all for Gridmill
    itself."""
    ours = {name: value for name, value in base.items() if name.startswith(("GRIDMILL_", "PYTHON"))}
    return {
        **inherited(base, pip=True),
        **ours,
        "TMPDIR": str(work),
        "PYTHONUNBUFFERED": "1",
        **devices(order, base),
        **rank_variables(order, base),
        **markers(order, pod_folder),
    }


def prepare_foreign(order: Order, home: Path, work: Path) -> None:
    """Make what the job's code needs, and tell this process's environment. Raises InputError,
    StorageError."""
    if not runs_foreign_code(order):
        return
    pythons: dict[str, str] = {}
    if order.job.kind == JobKind.TRAINING and order.job.training is not None:
        code = unpack_code(order, home, work)
        if order.job.training.environment:
            wanted = read_requirements(order.job.training.environment, code, order.bundle or "")
            pythons[""] = _python(home, wanted)
    for entry in order.inputs:
        if _needs_code(entry) and (text := str(entry.artifact.output.details.get("environment") or "")):
            pythons[entry.name] = _python(home, requirements_of(entry, text, order, work))
    os.environ["GRIDMILL_PYTHONS"] = json.dumps(pythons)


def requirements_of(entry: Input, text: str, order: Order, work: Path) -> Requirements:
    """Those that a model was trained with: in the copy of its code, as they may refer to other files."""
    output = entry.artifact.output
    name, bundle = output.details.get("requirements"), output.details.get("bundle")
    kept = below(order.root, output.uri) / CODE / str(name)
    if name and kept.is_file():
        return Requirements(file=kept, text=text, bundle=str(bundle or ""))
    file = work / f"requirements-{entry.name.replace('/', '.')}.txt"
    file.write_text(text)
    return Requirements(file=file, text=text, bundle="")


def _python(home: Path, requirements: Requirements) -> str:
    return str(ready_environment(home, requirements) / "bin" / "python")
