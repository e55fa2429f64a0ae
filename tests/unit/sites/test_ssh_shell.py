"""Faults of this machine while it opens SSH connections."""

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gridmill.errors import UnavailableError
from gridmill.sites.ssh import SshShell


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """This process cannot open a further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_command_without_a_free_file_descriptor_can_be_repeated():
    shell = SshShell("host.invalid")
    with no_free_descriptor(), pytest.raises(UnavailableError, match="cannot be managed here"):
        shell.run("true")
    shell.close()
    shell.close()


def test_a_missing_folder_for_temporary_files_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(UnavailableError, match="No such file"):
        SshShell("host.invalid")
