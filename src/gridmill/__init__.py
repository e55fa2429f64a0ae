"""Gridmill pools scattered compute into one grid and runs ML pipelines from raw data to predictions.

The public names are loaded when they are first used, so importing gridmill costs almost nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gridmill.telemetry import turn_off_telemetry
from gridmill.version import __version__

if TYPE_CHECKING:
    from gridmill.domain.amounts import Amounts
    from gridmill.domain.artifact import Artifact, ArtifactKind
    from gridmill.domain.dataset import Aggregate
    from gridmill.domain.job import JobKind, JobSize
    from gridmill.domain.pod_protocol import Event
    from gridmill.domain.project import Project, ProjectView
    from gridmill.domain.resource import Sizing
    from gridmill.domain.sink import ColumnType, OnMisfit
    from gridmill.domain.source import Format
    from gridmill.domain.states import JobState, RunState
    from gridmill.domain.training import ModelKind, Objective
    from gridmill.domain.views import DryRun, JobView, RunView
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
    from gridmill.sdk.client import Client, connect, load
    from gridmill.sdk.declared import (
        AsOfJoin,
        Basis,
        CommandSpec,
        Constraint,
        DatasetSpec,
        FeatureRule,
        FeatureSettings,
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
        ServiceSpec,
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

turn_off_telemetry()  # must run before the import of any library that has telemetry


_MODULES = {
    "gridmill.errors": (
        "CapacityError ConflictError DataError GridmillError HomeInUseError InputError InternalError "
        "InterruptedRunError JobError MemoryExceededError NotFoundError PipelineError StaleVersionError "
        "StorageError StoreInUseError StoreLostError TimeLimitError UnavailableError UnsafePathError"
    ),
    "gridmill.domain.amounts": "Amounts",
    "gridmill.domain.artifact": "Artifact ArtifactKind",
    "gridmill.domain.dataset": "Aggregate",
    "gridmill.domain.pod_protocol": "Event",
    "gridmill.domain.job": "JobKind JobSize",
    "gridmill.domain.project": "Project ProjectView",
    "gridmill.domain.resource": "Sizing",
    "gridmill.domain.sink": "ColumnType OnMisfit",
    "gridmill.domain.source": "Format",
    "gridmill.domain.states": "JobState RunState",
    "gridmill.domain.training": "ModelKind Objective",
    "gridmill.domain.views": "DryRun JobView RunView",
    "gridmill.sdk.client": "Client connect load",
    "gridmill.sdk.declared": (
        "Pipeline Job SinkSpec Source SqlSource StreamSource Constraint Outage Retain DatasetSpec Basis Join "
        "AsOfJoin Window Lag Label Split TrainingSpec PredictionSpec CommandSpec Resource Retention "
        "ScheduleSpec ServiceSpec FeatureSettings FeatureRule"
    ),
    "gridmill.sdk.loaded": "Version",
    "gridmill.sdk.runs": "Tick",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [  # noqa: RUF022  grouped for readers; a test compares it with the module
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
    "ServiceSpec",
    "FeatureSettings",
    "FeatureRule",
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


def __getattr__(name: str) -> Any:  # noqa: ANN401  the type of the name, see TYPE_CHECKING above
    if name not in _HOME:
        raise AttributeError(f"module 'gridmill' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
