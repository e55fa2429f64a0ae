"""What a farm says of its pods."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.model.event import PodEvent
from gridmill.model.noun import dataclass
from gridmill.ports.site import PodSight


@dataclass(frozen=True, slots=True, kw_only=True)
class Sights:
    """How pods look, by id; of those that are gone what they had journalled and may not have delivered."""

    sights: Mapping[str, PodSight]
    words: Mapping[str, tuple[PodEvent, ...]] = field(default_factory=dict)
