"""The port that housekeeping uses to list the files on the disk, with sizes, and to delete them."""

from enum import StrEnum
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.usage import DiskSpace

GOING = ".going-"
"""Prefix of the name of an item that was moved to the trash."""


class DiskArea(StrEnum):
    """The kinds of folders that use space."""

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


IN_ROOT = (
    DiskArea.OUTPUT,
    DiskArea.HANDED,
    DiskArea.MANIFEST,
    DiskArea.CHECKPOINTS,
    DiskArea.SHARED_BUNDLE,
    DiskArea.IMPORT,
)
"""Those below the storage root; the others are in the home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskItem:
    """A folder or file. `name` is unique within its place (outputs: the URI below the root); `changed` is
    Unix time in seconds; `ended` is whether the pod or import of the item has ended."""

    area: DiskArea
    name: str
    size_bytes: int
    changed: float
    ended: bool = False


class HomeFolders(Protocol):
    """The folders of one home and its storage root."""

    def items(self) -> tuple[DiskItem, ...]:
        """All items, by place and name. Items that disappear meanwhile are left out."""

    def spaces(self) -> tuple[DiskSpace, ...]:
        """The free space of the home and of the root, in this order; one entry if both share a file
        system. A file system that does not answer is left out."""

    def move_to_trash(self, thing: DiskItem) -> None:
        """Move the item to the trash at once, unless it changed since it was listed."""

    def delete(self, thing: DiskItem) -> None:
        """Delete the items in the trash, also those of an interrupted deletion. Raises StorageError."""


class NoHomeFolders:
    """No folders: for simulations without a disk."""

    def items(self) -> tuple[DiskItem, ...]:
        """No items."""
        return ()

    def spaces(self) -> tuple[DiskSpace, ...]:
        """No file systems."""
        return ()

    def move_to_trash(self, thing: DiskItem) -> None:
        """Do nothing: there are no items."""

    def delete(self, thing: DiskItem) -> None:
        """Do nothing: there are no items."""
