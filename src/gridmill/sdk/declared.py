"""Classes with which Python programs declare the records of pipeline files.

Each class takes the fields of pipeline files by name. A call of the class returns the record with the same
name in `gridmill.domain`. `docs/generate.py` writes `declared.pyi`, which contains the fields with their
types.
"""

from gridmill.domain.command import CommandSpec
from gridmill.domain.dataset import AsOfJoin, Basis, DatasetSpec, Join, Label, Lag, Split, Window
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.resource import Resource
from gridmill.domain.retention import Retention
from gridmill.domain.schedule import ScheduleSpec
from gridmill.domain.service_features import FeatureRule, FeatureSettings
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.sink import Constraint, Outage, Retain, SinkSpec
from gridmill.domain.source import Source, SqlSource, StreamSource
from gridmill.domain.training import TrainingSpec
from gridmill.sdk.declare import Declaring

NOUNS = (
    *(Pipeline, Job, SinkSpec, Source, SqlSource, StreamSource, Constraint, Outage, Retain, DatasetSpec),
    *(Basis, Join, AsOfJoin, Window, Lag, Label, Split, TrainingSpec, PredictionSpec, CommandSpec),
    *(Resource, Retention, ScheduleSpec, ServiceSpec, FeatureSettings, FeatureRule),
)

globals().update(
    {
        noun.__name__: Declaring(noun.__name__, (noun,), {"__doc__": noun.__doc__, "__module__": __name__})
        for noun in NOUNS
    }
)
