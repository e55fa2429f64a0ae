"""`doctor` and `version`: this machine, as Gridmill finds it."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

import typer

from gridmill import __version__
from gridmill.cli.cluster_checks import look_at_clusters
from gridmill.cli.farm_checks import look_at_farm, look_at_gpus
from gridmill.cli.session import Json, emit, settings_of, show
from gridmill.cli.tables import table
from gridmill.errors import GridmillError, StorageError
from gridmill.model.amounts import GIB, show_bytes
from gridmill.sdk.dial import dial_home
from gridmill.settings import Settings, is_farm
from gridmill.storage.filesystem import check_root, find_mount

_PACKAGES = {
    "sinks and datasets": ("pyarrow", "deltalake", "duckdb"),
    "training": ("numpy", "torch", "scikit-learn", "safetensors", "onnx"),
    "predictions": ("numpy", "onnxruntime"),
}
_LEAST_FREE_BYTES = GIB

Check = tuple[str, bool, str]
"""What was looked at, whether it is well, what was found."""


def version(json: Json = False) -> None:
    """Print the version."""
    if json:
        return emit({"gridmill": __version__, "python": platform.python_version()})
    return print(f"gridmill {__version__}")


def doctor(context: typer.Context, json: Json = False) -> None:
    """Check this machine: Python, folders, disk, memory, cgroups, packages. Exits 1 if one is amiss."""
    settings = settings_of(context)
    checks = list(look(settings))
    if json:
        emit([{"what": what, "well": well, "found": found} for what, well, found in checks])
    else:
        show(table("", "", "", rows=[("ok" if well else "NOT", what, found) for what, well, found in checks]))
    if not all(well for _, well, _ in checks):
        raise typer.Exit(1)


def look(settings: Settings) -> Iterator[Check]:
    """All checks."""
    found = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.platform(terse=True)}"
    )
    yield "python", sys.version_info >= (3, 11), found
    yield _folder("home", settings.home)
    yield _folder("storage root", settings.root)
    yield (
        "cpus",
        True,
        f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield "memory", memory >= GIB, show_bytes(memory)
    yield look_at_gpus()
    yield "cgroups", True, _cgroups() if settings.cgroups else "not used (GRIDMILL_CGROUPS=0)"
    yield "slurm", True, _slurm()
    for purpose, packages in _PACKAGES.items():
        yield _packages(purpose, packages, needed=not is_farm(settings.home))
    farm = list(look_at_farm(settings))
    yield from farm or [("control node", True, _control(settings))]
    yield from look_at_clusters(settings)


def _folder(what: str, path: Path) -> Check:
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return what, False, f"{path}: {there} cannot be written"
    free = shutil.disk_usage(there).free
    mount = find_mount(there)
    kind = f" on {mount.type}" if mount is not None else ""
    if what == "home" and mount is not None and mount.shared:
        return what, False, f"{path}{kind}: the home must be on a local disk (the storage root need not)"
    try:
        check_root(there)
    except StorageError as error:
        return what, False, f"{path}{kind}: {error.message}"
    return what, free >= _LEAST_FREE_BYTES, f"{path}{kind}, {show_bytes(free)} free"


def _cgroups() -> str:
    root = Path("/sys/fs/cgroup")
    version = "v2" if (root / "cgroup.controllers").exists() else "v1" if (root / "memory").exists() else ""
    if not version:
        return "none: memory is guarded by sampling"
    folder = root if version == "v2" else root / "memory"
    writable = os.access(folder, os.W_OK)
    return f"{version}, " + ("writable" if writable else "not writable at the top: sampling guards memory")


def _slurm() -> str:
    if shutil.which("sbatch") is None:
        return "not on this machine; a site of kind slurm needs --address ssh://USER@HOST"
    try:
        asked = subprocess.run(["sinfo", "--version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "sbatch is here, but sinfo cannot be run"
    if asked.returncode != 0:
        said = asked.stderr.strip().splitlines()
        return f"sbatch is here, but no cluster: {said[-1] if said else 'sinfo says nothing'}"
    return f"{asked.stdout.strip()}: `gridmill add site NAME --kind slurm` uses it"


def _packages(purpose: str, packages: tuple[str, ...], *, needed: bool) -> Check:
    """A farm may have those of commands alone: what it needs is up to its sources."""
    there, missing = [], []
    for package in packages:
        try:
            there.append(f"{package} {version_of(package)}")
        except PackageNotFoundError:
            missing.append(package)
    found = ", ".join(there) + (f"; missing: {', '.join(missing)}" if missing else "")
    return purpose, not missing or not needed, found


def _control(settings: Settings) -> str:
    try:
        dialled = dial_home(settings, embed=False)
    except GridmillError:
        return "none is up (`gridmill run` embeds one)"
    control = dialled.grid.control()
    dialled.close()
    return f"up, version {control.version}, process {control.pid}"
