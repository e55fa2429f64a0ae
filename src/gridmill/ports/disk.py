"""The interface that housekeeping uses to list the files on the disk, with sizes, and to delete them."""

from enum import StrEnum
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.usage import DiskSpace

GOING = ".going-"
"""The prefix that the name of each item in the trash begins with."""


class DiskArea(StrEnum):
    """The kinds of folders that use disk space in a home or a storage root."""

    OUTPUT = "output"
    """An output, at KIND/PIPELINE/JOB/FOLDER below the storage root."""
    CHECKPOINTS = "checkpoints"
    """The checkpoints of a job, at checkpoints/PIPELINE/JOB/FOLDER below the storage root."""
    MANIFEST = "manifest"
    """A manifest, at manifests/PIPELINE/JOB/FILE below the storage root."""
    HANDED = "handed"
    """The inputs of an attempt, at inputs/ATTEMPT below the storage root. They exist only if the pods use
    another disk."""
    IMPORT = "import"
    """An unpacked archive below the storage root."""
    STORE = "store"
    POD = "pod"
    ATTEMPT = "attempt"
    REPORT = "report"
    BUNDLE = "bundle"
    SHARED_BUNDLE = "shared bundle"
    """A code bundle below the storage root, for other machines."""
    CODE = "code"
    """The unpacked files of a code bundle."""
    ENVIRONMENT = "environment"


IN_ROOT = (
    DiskArea.OUTPUT,
    DiskArea.HANDED,
    DiskArea.MANIFEST,
    DiskArea.CHECKPOINTS,
    DiskArea.SHARED_BUNDLE,
    DiskArea.IMPORT,
)
"""The areas of the disk that are below the storage root. All areas that are not below the storage root are
in the home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskItem:
    """A folder or file that uses disk space. The field `name` is unique within the area of the item; the
    name of an output is its URI below the storage root. `changed` is the Unix time in seconds of the last
    change of the item. `ended` is true if the pod or the import to which the item belongs has ended."""

    area: DiskArea
    name: str
    size_bytes: int
    changed: float
    ended: bool = False


class HomeFolders(Protocol):
    """The listing and the deletion of the folders of one home and its storage root."""

    def items(self) -> tuple[DiskItem, ...]:
        """Return all items on the disk, ordered by area and then by name. An item that disappears while this
        method lists the items is left out."""

    def spaces(self) -> tuple[DiskSpace, ...]:
        """Return the free disk space of the home and of the storage root, in this order. If both are on the
        same file system, the result has one entry. A file system that does not respond is left out of the
        result."""

    def move_to_trash(self, thing: DiskItem) -> None:
        """Move the item to the trash immediately, unless the item has changed since it was listed."""

    def delete(self, thing: DiskItem) -> None:
        """Delete the items in the trash, including the items of a deletion that was interrupted. Raises
        StorageError."""


class NoHomeFolders:
    """An implementation without folders, for simulations that have no disk."""

    def items(self) -> tuple[DiskItem, ...]:
        """No items."""
        return ()

    def spaces(self) -> tuple[DiskSpace, ...]:
        """No file systems."""
        return ()

    def move_to_trash(self, thing: DiskItem) -> None:
        """Do nothing, because this implementation has no items."""

    def delete(self, thing: DiskItem) -> None:
        """Do nothing, because this implementation has no items."""
