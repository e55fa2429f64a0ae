"""This module has the terms of a service: its version, its settings and its size, to which a rollback returns
after an update that does not take effect."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.domain.frozen import dataclass
from gridmill.domain.service_features import FeatureDefinition
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.service_size import ServiceSize
from gridmill.domain.serving import Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTerms:
    """What a service had when all its replicas served the generation `generation`. The fields are those of
    the service."""

    generation: int
    version: str
    settings: ServiceSettings
    port: int
    replicas: int
    rate: float = 0.0
    scaling: Scaling | None = None
    size: ServiceSize | None = None
    features: Mapping[str, FeatureDefinition] = field(default_factory=dict)
