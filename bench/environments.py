"""Each peer in a virtual environment of its own, made when missing, with its version pinned."""

import subprocess
import sys
from pathlib import Path

from bench.measure import REPOSITORY

FOLDER = REPOSITORY / ".venv-peers"


def pinned(name: str) -> str:
    """The requirement of the peer, e.g. `luigi==3.8.1`."""
    lines = (REPOSITORY / "bench" / f"peers-{name}.txt").read_text().splitlines()
    return next(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def programs(name: str) -> Path:
    """The environment's bin folder; made first where it is missing or pins something else."""
    folder = FOLDER / name
    stamp = folder / "installed.txt"
    if not stamp.exists() or stamp.read_text() != pinned(name):
        _make(name, folder)
        stamp.write_text(pinned(name))
    return folder / "bin"


def _make(name: str, folder: Path) -> None:
    print(f"making {folder.relative_to(REPOSITORY)} ({pinned(name)})", flush=True)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    subprocess.run((sys.executable, "-m", "venv", "--clear", str(folder)), check=True)
    requirements = str(REPOSITORY / "bench" / f"peers-{name}.txt")
    subprocess.run((str(folder / "bin" / "pip"), "install", "--quiet", "-r", requirements), check=True)
