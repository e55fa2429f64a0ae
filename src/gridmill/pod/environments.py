"""Python environments of commands: built once per content of a requirements file and Python version."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import deque
from importlib.util import find_spec
from pathlib import Path

from gridmill.errors import InputError
from gridmill.model.noun import dataclass
from gridmill.pod.bundles import locked
from gridmill.pod.launch import EVENTS_FD

_READY = "gridmill-ready"
_LAST_LINES = 12
_NOISE = ("[notice]", "Looking in links", "Looking in indexes", "is ignored: either a non-existing path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """A requirements file, its text, and the bundle it is part of."""

    file: Path
    text: str
    bundle: str

    @property
    def key(self) -> str:
        """The name of the environment: the same text and Python give the same one. Where the text refers to
        other files of the project, so must the bundle be the same."""
        made_of = [platform.python_implementation(), platform.python_version(), self.text]
        if _REFERS_TO_FILES.search(self.text):
            made_of.append(self.bundle)
        return hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:32]


_REFERS_TO_FILES = re.compile(
    r"^\s*(-[rce]\b|--(requirement|constraint|editable)\b|[./]|\S+/|.*@\s*file:)", re.M
)


def ready_environment(home: Path, requirements: Requirements) -> Path:
    """The folder of the environment, built now if it was not yet; others who need it wait.

    A half-built one (no mark inside) is built afresh. Raises InputError with pip's last lines.
    """
    folder = home / "cache" / "environments" / requirements.key
    mark = folder / _READY
    if not mark.exists():
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not mark.exists():
                _build(folder, requirements)
                mark.touch()
    return folder


def _build(folder: Path, requirements: Requirements) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _say(f"building the environment {folder.name[:12]} (once; others will use it)\n")
    pip = _make_empty(folder)
    _run([*pip, "install", "--no-input", "-r", str(requirements.file)], cwd=requirements.file.parent)
    _say(f"the environment {folder.name[:12]} is ready\n")


def _make_empty(folder: Path) -> list[str]:
    """An environment without packages; returns the pip that installs into it. Ours, where we have one: giving
    the environment its own takes seconds."""
    if find_spec("pip") is None:
        _run([sys.executable, "-m", "venv", str(folder)])
        return [str(folder / "bin" / "python"), "-m", "pip"]
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    return [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]


def _run(argv: list[str], cwd: Path | None = None) -> None:
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            if not any(noise in line for noise in _NOISE):
                last.append(line)
                _say(line)
    if process.returncode != 0:
        raise InputError(
            f"the environment could not be built:\n{''.join(last).rstrip()}",
            hint="Correct the requirements file; the job's log has all that pip said.",
        )


def _say(text: str) -> None:
    report = json.dumps({"type": "log", "text": text}) + "\n"
    os.write(EVENTS_FD, report.encode())
