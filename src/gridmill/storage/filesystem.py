"""Finds the type of a folder's file system, and checks that this file system gives the guarantees that
Gridmill needs."""

import fcntl
import os
import re
from pathlib import Path
from uuid import uuid4

from gridmill.domain.frozen import dataclass
from gridmill.errors import StorageError

SHARED = frozenset(
    {
        "nfs", "nfs4", "lustre", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "gpfs", "beegfs",
        "pvfs2", "orangefs", "virtiofs", "ocfs2", "gfs2", "wekafs", "fuse.glusterfs",
        "fuse.ceph-fuse", "fuse.juicefs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse",
        "fuse.blobfuse2", "fuse.rclone",
    }
)  # fmt: skip
"""The types of file systems to which other machines may write at the same time."""

ALONE = frozenset({"nolock", "local_lock=all", "local_lock=flock", "nobrl"})
"""Mount options with which locks are not visible to other machines. With such an option, a lock is always
granted and does not protect against other machines."""

_ESCAPED = re.compile(r"\\([0-7]{3})")
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mounted file system: its mount point, its type (such as `ext4`, `nfs4` or `fuse.sshfs`) and its
    options."""

    point: str
    type: str
    options: frozenset[str] = frozenset()

    @property
    def shared(self) -> bool:
        """Returns whether other machines can write to this file system."""
        return self.type in SHARED


def mount_of(path: Path, mountinfo: str) -> Mount | None:
    """Returns the mount of an absolute path without links, from the text of /proc/self/mountinfo.

    If several file systems are mounted at the same point, the function returns the last one, because it
    hides the others. Returns None if the text lists no mount of the path.
    """
    best: Mount | None = None
    for line in mountinfo.splitlines():
        mount = _mount(line)
        inside = mount is not None and path.is_relative_to(mount.point)
        if mount is not None and inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _mount(line: str) -> Mount | None:
    """Parses a line of the form `36 35 98:0 /root /mount/point options [tags] - type source options`."""
    before, dash, after = line.partition(" - ")
    fields, kinds = before.split(" "), after.split(" ")
    if not dash or len(fields) < 5 or not kinds[0]:
        return None
    point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4])
    options = kinds[2].split(",") if len(kinds) > 2 else ()
    return Mount(point=point, type=kinds[0], options=frozenset(options))


def find_mount(path: Path) -> Mount | None:
    """Returns the current mount of a path, or None if the system does not list mounts (macOS)."""
    try:
        return mount_of(Path(os.path.realpath(path)), _MOUNTS.read_text())
    except OSError:
        return None


def check_home(home: Path) -> None:
    """Raises StorageError if the home is on a shared file system. SQLite and the lock of the control node
    need a local file system."""
    mount = find_mount(home)
    if mount is not None and mount.shared:
        raise StorageError(
            f"the home is on a shared file system ({mount.type} at {mount.point})",
            hint="The store and its lock need a local disk: set GRIDMILL_HOME to a folder on one, and "
            f"GRIDMILL_ROOT to a folder below {mount.point} for tables and models.",
            place=str(home),
        )


def check_root(root: Path) -> None:
    """Tests the operations that the storage root needs: an exclusive lock, exclusive creation of a file, and
    a rename that replaces a file. The function cannot test whether other machines respect the lock, so it
    checks the mount options instead.

    Raises StorageError, which names the operation that does not work.
    """
    mount = find_mount(root)
    if mount is None or not mount.shared:
        return  # local file systems have these guarantees, so no start of the grid tests them
    if alone := sorted(mount.options & ALONE):
        raise StorageError(
            f"the storage root's file system ({mount.type} at {mount.point}) hides locks from other machines",
            hint=f"Mount it without {alone[-1]!r}. NFS needs vers=4 or a lock daemon; SMB needs locks.",
            place=str(root),
        )
    probe = root / f".probe-{uuid4().hex}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _try(probe)
    except OSError as error:
        raise StorageError(
            f"the storage root's file system ({mount.type}) lacks what tables need: {error}",
            hint="Tables need locks, exclusive creation and atomic renames. Mount NFS with "
            "vers=4, or with a lock daemon and without nolock. Mount Lustre with flock.",
            place=str(root),
        ) from error
    finally:
        for path in (probe, _other(probe)):
            path.unlink(missing_ok=True)


def _try(probe: Path) -> None:
    descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, b"1")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _other(probe).write_bytes(b"2")
    os.replace(_other(probe), probe)
    if probe.read_bytes() != b"2":
        raise OSError("a renamed file has the content of the replaced file")
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    raise OSError("exclusive creation succeeds for a file that exists")


def _other(probe: Path) -> Path:
    return probe.with_name(f"{probe.name}.new")
