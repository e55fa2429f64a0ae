"""Models side by side."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedModel:
    """A version of a model: what stands for it, what it was made from and with, what it took.

    `dataset` is the version it learned from. `bundle` is the hash of the code it was made with (empty:
    Gridmill's own, of version `gridmill`). `seconds` is how long its attempt took, None where no record of it
    is kept. `created` is in Unix seconds.
    """

    id: str
    names: tuple[str, ...] = ()
    created: float = 0.0
    run_id: str = ""
    removed: bool = False
    dataset: str = ""
    bundle: str = ""
    gridmill: str = ""
    seconds: float | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMetric:
    """A metric as the versions have it (`validation_rmse`), in the order of the models; None where one was
    not measured. `best` are the ids of those with the best value; there is none where all are equal."""

    name: str
    values: tuple[float | None, ...]
    best: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSetting:
    """A setting that is not alike in all, in the order of the models; None where one does not have it."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """Versions of models side by side. `same` are the settings that all share; `warnings` say why their
    metrics may not be comparable."""

    models: tuple[ComparedModel, ...]
    metrics: tuple[ComparedMetric, ...] = ()
    settings: tuple[ComparedSetting, ...] = ()
    same: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
