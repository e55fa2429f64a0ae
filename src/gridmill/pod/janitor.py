"""Removes folders: small ones at once, others aside and by a process of their own, so that no job waits."""

import os
import shutil
import subprocess
from pathlib import Path

from gridmill.pod.folders import has_few_files


class Janitor:
    """`pid` is that process's while it works (0: none); the pod's loop says when it has `ended`."""

    def __init__(self, trash: Path) -> None:
        self.pid = 0
        self._trash = trash
        self._child: subprocess.Popen[bytes] | None = None

    def remove(self, folder: Path) -> None:
        """Remove the folder; gone is fine."""
        if not folder.exists():
            return
        if has_few_files(folder):
            shutil.rmtree(folder, ignore_errors=True)
            return
        self._trash.mkdir(exist_ok=True)
        folder.rename(self._trash / os.urandom(8).hex())
        if not self.pid:
            self._work()

    def _work(self) -> None:
        self._child = subprocess.Popen(
            ["rm", "-rf", "--", *map(str, self._trash.iterdir())],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = self._child.pid

    def ended(self) -> None:
        """Its process was reaped: go on with what came in between."""
        if self._child is not None:
            self._child.returncode = 0
        self.pid = 0
        if any(self._trash.iterdir()):
            self._work()
