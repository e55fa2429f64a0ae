"""Python environments of commands: built once per content of a requirements file and Python version."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path

from gridmill.errors import InputError
from gridmill.pod.bundles import locked
from gridmill.pod.launch import EVENTS_FD

_READY = "gridmill-ready"
_LAST_LINES = 12
_NOISE = ("[notice]", "Looking in links", "Looking in indexes", "is ignored: either a non-existing path")


def key_of(requirements: str) -> str:
    """The name of the environment: the same text and Python give the same one."""
    text = f"{platform.python_implementation()} {platform.python_version()}\n{requirements}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def ready_environment(home: Path, requirements: str) -> Path:
    """The folder of the environment, built now if it was not yet; others who need it wait.

    A half-built one (no mark inside) is built afresh. Raises InputError with pip's last lines.
    """
    folder = home / "cache" / "environments" / key_of(requirements)
    mark = folder / _READY
    if not mark.exists():
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not mark.exists():
                _build(folder, requirements)
                mark.touch()
    return folder


def _build(folder: Path, requirements: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _say(f"building the environment {folder.name[:12]} (once; others will use it)\n")
    _run([sys.executable, "-m", "venv", str(folder)])
    listing = folder / "requirements.txt"
    listing.write_text(requirements, "utf-8")
    _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--no-input", "-r", str(listing)])
    _say(f"the environment {folder.name[:12]} is ready\n")


def _run(argv: list[str]) -> None:
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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
