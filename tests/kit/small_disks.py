"""Real file systems of a few megabytes, and of few inodes, for tests of full disks."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BLOCK_BYTES = 2**16


@contextmanager
def small_disk(size_bytes: int, *, inodes: int = 0) -> Iterator[Path]:
    """A new file system, which everybody may pass, gone at the end; skips where none can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    options = f"size={size_bytes},mode=711" + (f",nr_inodes={inodes}" if inodes else "")
    with tempfile.TemporaryDirectory(prefix="gridmill-disk-") as made:
        Path(made).chmod(0o711)
        place = Path(made) / "disk"
        place.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
        )
        if mounted.returncode != 0:
            pytest.skip("this machine cannot mount a tmpfs; run as root with CAP_SYS_ADMIN")
        try:
            yield place
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, *, left_bytes: int) -> Path:
    """A file that leaves so many bytes of its file system free."""
    ballast = place / "ballast"
    with ballast.open("wb") as file:
        while (free := free_bytes(place)) - left_bytes >= _BLOCK_BYTES:
            file.write(b"\1" * min(_BLOCK_BYTES * 16, free - left_bytes))
            file.flush()
    return ballast


def free_bytes(place: Path) -> int:
    """What is free there."""
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize
