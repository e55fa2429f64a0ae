"""The port that housekeeping uses to list what is on the disk, with sizes, and to delete it."""

from enum import StrEnum
from typing import Protocol

from gridmill.domain.frozen import dataclass

GOING = ".going-"
"""Prefix of the name of a thing that was set aside for deletion."""


class Place(StrEnum):
    """Sorts of things that take space."""

    OUTPUT = "output"  # below the storage root: KIND/PIPELINE/JOB/FOLDER
    CHECKPOINTS = "checkpoints"  # below the storage root: checkpoints/PIPELINE/JOB/FOLDER
    MANIFEST = "manifest"  # below the storage root: manifests/PIPELINE/JOB/FILE
    HANDED = "handed"  # below the storage root: inputs/ATTEMPT, where pods have another disk
    IMPORT = "import"  # below the storage root: an archive, unpacked
    STORE = "store"
    POD = "pod"
    ATTEMPT = "attempt"
    REPORT = "report"
    BUNDLE = "bundle"
    SHARED_BUNDLE = "shared bundle"  # below the storage root, for other machines
    CODE = "code"  # unpacked bundles
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A folder or file. `name` is unique within its place (outputs: the URI below the root); `changed` is
    Unix time in seconds; `ended` says of a pod or an import that it has."""

    place: Place
    name: str
    size_bytes: int
    changed: float
    ended: bool = False


class House(Protocol):
    """The folders of one home and its storage root."""

    def things(self) -> tuple[Thing, ...]:
        """Everything there is, by place and name. What vanishes meanwhile is left out."""

    def set_aside(self, thing: Thing) -> None:
        """Put it out of everybody's way at once, unless it changed since it was looked at."""

    def take_away(self, thing: Thing) -> None:
        """Remove what was set aside, now or by one that was cut short. Raises StorageError."""


class NoHouse:
    """Nothing on any disk."""

    def things(self) -> tuple[Thing, ...]:
        """Nothing."""
        return ()

    def set_aside(self, thing: Thing) -> None:
        """There is nothing to set aside."""

    def take_away(self, thing: Thing) -> None:
        """There is nothing to take away."""
