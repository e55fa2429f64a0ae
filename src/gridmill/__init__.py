"""Gridmill pools scattered compute into one grid and takes pipelines from raw data to predictions.

The public names load on first use: importing gridmill costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gridmill.quiet import turn_off_telemetry

if TYPE_CHECKING:
    from gridmill.errors import (
        CapacityError,
        ConflictError,
        DataError,
        GridmillError,
        HomeInUseError,
        InputError,
        InternalError,
        InterruptedRunError,
        JobError,
        MemoryExceededError,
        NotFoundError,
        PipelineError,
        StaleVersionError,
        StorageError,
        StoreInUseError,
        StoreLostError,
        TimeLimitError,
        UnavailableError,
        UnsafePathError,
    )
    from gridmill.model.amounts import Amounts
    from gridmill.model.artifact import Artifact, ArtifactKind
    from gridmill.model.command import CommandSpec
    from gridmill.model.constraint import Constraint
    from gridmill.model.dataset import (
        Aggregate,
        AsOfJoin,
        Basis,
        DatasetSpec,
        Join,
        Label,
        Lag,
        Split,
        Window,
    )
    from gridmill.model.event import Event
    from gridmill.model.job import Job, JobKind, JobSize
    from gridmill.model.outage import Outage
    from gridmill.model.pipeline import Pipeline
    from gridmill.model.prediction import PredictionSpec
    from gridmill.model.project import Project, ProjectView
    from gridmill.model.resource import Resource, Sizing
    from gridmill.model.sink import ColumnType, OnMisfit, Retain, SinkSpec
    from gridmill.model.source import Format, Source, SqlSource, StreamSource
    from gridmill.model.state import JobState, RunState
    from gridmill.model.training import ModelKind, Objective, TrainingSpec
    from gridmill.model.view import DryRun, JobView, RunView
    from gridmill.sdk.client import Client, connect, load
    from gridmill.sdk.loaded import Version
    from gridmill.sdk.runs import Tick

turn_off_telemetry()  # before any library that has some can be imported

__version__ = "0.1.0"

_MODULES = {
    "gridmill.errors": (
        "CapacityError ConflictError DataError GridmillError HomeInUseError InputError InternalError "
        "InterruptedRunError JobError MemoryExceededError NotFoundError PipelineError StaleVersionError "
        "StorageError StoreInUseError StoreLostError TimeLimitError UnavailableError UnsafePathError"
    ),
    "gridmill.model.amounts": "Amounts",
    "gridmill.model.artifact": "Artifact ArtifactKind",
    "gridmill.model.constraint": "Constraint",
    "gridmill.model.dataset": "Aggregate AsOfJoin Basis DatasetSpec Join Label Lag Split Window",
    "gridmill.model.event": "Event",
    "gridmill.model.job": "CommandSpec Job JobKind JobSize",
    "gridmill.model.outage": "Outage",
    "gridmill.model.pipeline": "Pipeline",
    "gridmill.model.prediction": "PredictionSpec",
    "gridmill.model.project": "Project ProjectView",
    "gridmill.model.resource": "Resource Sizing",
    "gridmill.model.sink": "ColumnType OnMisfit Retain SinkSpec",
    "gridmill.model.source": "Format Source SqlSource StreamSource",
    "gridmill.model.state": "JobState RunState",
    "gridmill.model.training": "ModelKind Objective TrainingSpec",
    "gridmill.model.view": "DryRun JobView RunView",
    "gridmill.sdk.client": "Client connect load",
    "gridmill.sdk.loaded": "Version",
    "gridmill.sdk.runs": "Tick",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [  # noqa: RUF022  grouped as a reader looks for them; a test compares it with what there is
    "connect",
    "load",
    "Client",
    "Version",
    "Tick",
    "Pipeline",
    "Job",
    "JobKind",
    "JobSize",
    "SinkSpec",
    "Source",
    "SqlSource",
    "StreamSource",
    "Format",
    "ColumnType",
    "Constraint",
    "OnMisfit",
    "Outage",
    "Retain",
    "DatasetSpec",
    "Basis",
    "Join",
    "AsOfJoin",
    "Window",
    "Aggregate",
    "Lag",
    "Label",
    "Split",
    "TrainingSpec",
    "ModelKind",
    "Objective",
    "PredictionSpec",
    "CommandSpec",
    "Resource",
    "Sizing",
    "Amounts",
    "Project",
    "ProjectView",
    "RunView",
    "JobView",
    "RunState",
    "JobState",
    "DryRun",
    "Artifact",
    "ArtifactKind",
    "Event",
    "GridmillError",
    "InputError",
    "PipelineError",
    "DataError",
    "UnsafePathError",
    "NotFoundError",
    "ConflictError",
    "StaleVersionError",
    "HomeInUseError",
    "StoreInUseError",
    "CapacityError",
    "JobError",
    "MemoryExceededError",
    "TimeLimitError",
    "InterruptedRunError",
    "UnavailableError",
    "StorageError",
    "StoreLostError",
    "InternalError",
    "__version__",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  the name's own type, see TYPE_CHECKING above
    if name not in _HOME:
        raise AttributeError(f"module 'gridmill' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
