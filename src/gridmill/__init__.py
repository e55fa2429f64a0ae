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
    from gridmill.model.dataset import (
        Aggregate,
    )
    from gridmill.model.event import Event
    from gridmill.model.job import JobKind, JobSize
    from gridmill.model.project import Project, ProjectView
    from gridmill.model.resource import Sizing
    from gridmill.model.sink import ColumnType, OnMisfit
    from gridmill.model.source import Format
    from gridmill.model.state import JobState, RunState
    from gridmill.model.training import ModelKind, Objective
    from gridmill.model.view import DryRun, JobView, RunView
    from gridmill.sdk.client import Client, connect, load
    from gridmill.sdk.declared import (
        AsOfJoin,
        Basis,
        CommandSpec,
        Constraint,
        DatasetSpec,
        Job,
        Join,
        Label,
        Lag,
        Outage,
        Pipeline,
        PredictionSpec,
        Resource,
        Retain,
        Retention,
        ScheduleSpec,
        SinkSpec,
        Source,
        Split,
        SqlSource,
        StreamSource,
        TrainingSpec,
        Window,
    )
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
    "gridmill.model.dataset": "Aggregate",
    "gridmill.model.event": "Event",
    "gridmill.model.job": "JobKind JobSize",
    "gridmill.model.project": "Project ProjectView",
    "gridmill.model.resource": "Sizing",
    "gridmill.model.sink": "ColumnType OnMisfit",
    "gridmill.model.source": "Format",
    "gridmill.model.state": "JobState RunState",
    "gridmill.model.training": "ModelKind Objective",
    "gridmill.model.view": "DryRun JobView RunView",
    "gridmill.sdk.client": "Client connect load",
    "gridmill.sdk.declared": (
        "Pipeline Job SinkSpec Source SqlSource StreamSource Constraint Outage Retain DatasetSpec Basis Join "
        "AsOfJoin Window Lag Label Split TrainingSpec PredictionSpec CommandSpec Resource Retention "
        "ScheduleSpec"
    ),
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
    "Retention",
    "ScheduleSpec",
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
