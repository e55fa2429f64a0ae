"""The port that housekeeping uses to list the files on the disk, with sizes, and to delete them."""

from enum import StrEnum
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.usage import DiskSpace

GOING = ".going-"
"""The prefix of the name of an item in the trash."""


class DiskArea(StrEnum):
    """The kinds of folders that use space."""

    OUTPUT = "output"  # below the storage root: KIND/PIPELINE/JOB/FOLDER
    CHECKPOINTS = "checkpoints"  # below the storage root: checkpoints/PIPELINE/JOB/FOLDER
    MANIFEST = "manifest"  # below the storage root: manifests/PIPELINE/JOB/FILE
    HANDED = "handed"  # below the storage root: inputs/ATTEMPT, if the pods use another disk
    IMPORT = "import"  # below the storage root: an unpacked archive
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
"""The areas below the storage root. The other areas are in the home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskItem:
    """A folder or file. `name` is unique within its area; the name of an output is its URI below the root.
    `changed` is Unix time in seconds. `ended` is whether the pod or import of the item has ended."""

    area: DiskArea
    name: str
    size_bytes: int
    changed: float
    ended: bool = False


class HomeFolders(Protocol):
    """The folders of one home and its storage root."""

    def items(self) -> tuple[DiskItem, ...]:
        """All items, in the order of area and name. An item that disappears during the listing is left
        out."""

    def spaces(self) -> tuple[DiskSpace, ...]:
        """The free space of the home and of the root, in this order. There is one entry if both are on the
        same file system. A file system that does not answer is left out."""

    def move_to_trash(self, thing: DiskItem) -> None:
        """Move the item to the trash at once, unless the item has changed since it was listed."""

    def delete(self, thing: DiskItem) -> None:
        """Delete the items in the trash, including items of an interrupted deletion. Raises StorageError."""


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
