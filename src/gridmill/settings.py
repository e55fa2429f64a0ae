"""The only module that reads the environment. The settings are the fields of one frozen dataclass, and the
docstring of each field has its unit and its purpose."""

import os
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from urllib.parse import quote

from gridmill.domain.amounts import KIB, parse_bytes, parse_number, parse_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.job_log import HOME_LOG_BYTES, JOB_LOG_BYTES
from gridmill.domain.retention import DAY_SECONDS
from gridmill.domain.usage import HISTORY_DAYS
from gridmill.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process, which `read_settings` reads once at an entry point."""

    home: Path
    """GRIDMILL_HOME: The folder with the records, pods and caches of one grid. Default: `~/.gridmill`, one
    grid for each user. Example: `GRIDMILL_HOME=/srv/gridmill`"""
    root: Path
    """GRIDMILL_ROOT: The storage root, the folder with tables, models and other results. Default:
    `HOME/storage`. Example: `GRIDMILL_ROOT=/data/gridmill`"""
    store: str = ""
    """GRIDMILL_STORE: The database of the records. The password comes from PGPASSWORD or `~/.pgpass`.
    Default: the SQLite file `HOME/store.db`, which needs no server. Example:
    `GRIDMILL_STORE=postgresql://USER@HOST/DATABASE`"""
    orphan_seconds: float = 3600.0
    """GRIDMILL_ORPHAN: Time after which a pod without a control node and without a running job ends.
    Example: `GRIDMILL_ORPHAN=10m`"""
    grace_seconds: float = 5.0
    """GRIDMILL_GRACE: The time between SIGTERM and SIGKILL when a job is stopped or exceeds its `timeout`.
    Example: `GRIDMILL_GRACE=30s`"""
    observe_seconds: float = 1.0
    """GRIDMILL_OBSERVE: The time between two queries of a site about its pods. Each query covers all pods of
    the site. Example: `GRIDMILL_OBSERVE=5s`"""
    memory_bytes: int | None = None
    """GRIDMILL_MEMORY: The memory that the local site can use. Default: 80 % of the memory of the machine or
    of the cgroup. Example: `GRIDMILL_MEMORY=16GiB`"""
    cpus: float | None = None
    """GRIDMILL_CPUS: The number of CPU cores that the local site can use. Default: all CPUs that this
    process can use. Example: `GRIDMILL_CPUS=4`"""
    gpu_shares: int = 1
    """GRIDMILL_GPU_SHARES: The number of jobs that can share each GPU of the local site. Each GPU counts as
    this number of GPUs. Default: `1`. Example: `GRIDMILL_GPU_SHARES=2`"""
    bucket_hosts: tuple[str, ...] = ()
    """GRIDMILL_BUCKET_HOSTS: Hosts, separated by commas, whose bucket servers run on the own machine of a
    farm. The farm may open the buckets of these servers. Default: none. Example:
    `GRIDMILL_BUCKET_HOSTS=minio,10.0.0.5`"""
    farm_folders: tuple[str, ...] = ()
    """GRIDMILL_FARM_FOLDERS: Further folders to which jobs of a farm's tenants may write, separated by `:`.
    Default: only the folders of the tenant. Example: `GRIDMILL_FARM_FOLDERS=/scratch`"""
    cgroups: bool = True
    """GRIDMILL_CGROUPS: Whether jobs run in cgroups where the machine permits it. With `0`, a guard process
    measures the memory of jobs instead. Default: `1`. Example: `GRIDMILL_CGROUPS=0`"""
    zygote: bool = True
    """GRIDMILL_ZYGOTE: Whether jobs of the built-in kinds are forked from a process that is already running.
    With `0`, each job starts a new process. Default: `1`. Example: `GRIDMILL_ZYGOTE=0`"""
    history_seconds: float = HISTORY_DAYS * DAY_SECONDS
    """GRIDMILL_HISTORY: The age up to which finished runs, logs and reports are kept. `gridmill clean`
    deletes older runs, logs and reports. Example: `GRIDMILL_HISTORY=30d`"""
    disk_reserve_bytes: int | None = None
    """GRIDMILL_DISK_RESERVE: Space that Gridmill keeps free on the disks of the home and the storage root.
    While less space is free, no attempt starts. `0` reserves nothing. Default: 5 % of the file system, at
    most 1 GiB. Example: `GRIDMILL_DISK_RESERVE=10GiB`"""
    job_disk_bytes: int = 0
    """GRIDMILL_JOB_DISK: The disk space that the files of one running attempt may use. The field `disk` of a
    job can only lower this limit. Default: no limit. Example: `GRIDMILL_JOB_DISK=50GiB`"""
    job_files: int = 0
    """GRIDMILL_JOB_FILES: Number of files and folders that one attempt may create. The field `disk_files` of
    a job can only lower this limit. Default: no limit. Example: `GRIDMILL_JOB_FILES=100000`"""
    log_job_bytes: int = JOB_LOG_BYTES
    """GRIDMILL_LOG_JOB: Maximum size of a job's log in one run. If a log is longer, Gridmill keeps its
    beginning and its end, each with half of this size. Default: 256 MiB. Example:
    `GRIDMILL_LOG_JOB=64MiB`"""
    log_home_bytes: int = HOME_LOG_BYTES
    """GRIDMILL_LOG_HOME: The disk space for all logs of a home. If the logs need more space, Gridmill first
    deletes the logs of those runs that have written no line for the longest time. Default: 8 GiB. Example:
    `GRIDMILL_LOG_HOME=2GiB`"""
    secret_key_file: Path | None = None
    """GRIDMILL_SECRET_KEY_FILE: The file with the key that encrypts secrets, which only its owner may read.
    Gridmill creates the file for the first secret. Default: `HOME/secrets.key`. Example:
    `GRIDMILL_SECRET_KEY_FILE=/etc/gridmill/secrets.key`"""
    token: str = field(default="", repr=False)
    """GRIDMILL_TOKEN: Token of the grid to which `gridmill join` adds this machine as a node. Default: none.
    Example: `GRIDMILL_TOKEN=TOKEN`"""
    fault: str = ""
    """GRIDMILL_FAULT: For tests only: Gridmill kills the control node before or after the commit with the
    number N. Default: none. Example: `GRIDMILL_FAULT=before-commit:3`"""


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Returns the settings from `environment` (default: the environment of the process). Raises InputError
    if a value is invalid."""
    env = os.environ if environment is None else environment
    home = Path(env.get("GRIDMILL_HOME") or Path.home() / ".gridmill").expanduser().absolute()
    memory, cpus = env.get("GRIDMILL_MEMORY"), env.get("GRIDMILL_CPUS")
    return Settings(
        home=home,
        root=Path(env.get("GRIDMILL_ROOT") or home / "storage").expanduser().absolute(),
        store=env.get("GRIDMILL_STORE", ""),
        orphan_seconds=parse_seconds(env.get("GRIDMILL_ORPHAN", "3600")),
        grace_seconds=parse_seconds(env.get("GRIDMILL_GRACE", "5")),
        observe_seconds=parse_seconds(env.get("GRIDMILL_OBSERVE", "1")),
        memory_bytes=parse_bytes(memory) if memory else None,
        cpus=parse_number(cpus) if cpus else None,
        gpu_shares=_shares(env.get("GRIDMILL_GPU_SHARES", "1")),
        bucket_hosts=tuple(filter(None, env.get("GRIDMILL_BUCKET_HOSTS", "").replace(" ", "").split(","))),
        farm_folders=tuple(filter(None, env.get("GRIDMILL_FARM_FOLDERS", "").split(":"))),
        cgroups=env.get("GRIDMILL_CGROUPS", "1") != "0",
        zygote=env.get("GRIDMILL_ZYGOTE", "1") != "0",
        history_seconds=_history(env.get("GRIDMILL_HISTORY", f"{HISTORY_DAYS:g}d")),
        disk_reserve_bytes=_reserve(env.get("GRIDMILL_DISK_RESERVE", "")),
        job_disk_bytes=_reserve(env.get("GRIDMILL_JOB_DISK", "")) or 0,
        job_files=_files(env.get("GRIDMILL_JOB_FILES", "0")),
        log_job_bytes=_log_bytes("GRIDMILL_LOG_JOB", env, JOB_LOG_BYTES),
        log_home_bytes=_log_bytes("GRIDMILL_LOG_HOME", env, HOME_LOG_BYTES),
        secret_key_file=_path(env.get("GRIDMILL_SECRET_KEY_FILE", "")),
        token=env.get("GRIDMILL_TOKEN", ""),
        fault=env.get("GRIDMILL_FAULT", ""),
    )


_PRIVATE = frozenset({"GRIDMILL_HOME", "GRIDMILL_TOKEN", "GRIDMILL_FAULT"})


def as_variables(settings: Settings) -> dict[str, str]:
    """Returns the settings of a grid that other processes of the same home need, as environment variables.
    Paths are absolute, so that they are valid in any working folder."""
    return {
        "GRIDMILL_ROOT": str(settings.root),
        "GRIDMILL_STORE": settings.store,
        "GRIDMILL_ORPHAN": _plain(settings.orphan_seconds),
        "GRIDMILL_GRACE": _plain(settings.grace_seconds),
        "GRIDMILL_OBSERVE": _plain(settings.observe_seconds),
        "GRIDMILL_MEMORY": str(settings.memory_bytes or ""),
        "GRIDMILL_CPUS": _plain(settings.cpus) if settings.cpus else "",
        "GRIDMILL_GPU_SHARES": str(settings.gpu_shares),
        "GRIDMILL_BUCKET_HOSTS": ",".join(settings.bucket_hosts),
        "GRIDMILL_FARM_FOLDERS": ":".join(settings.farm_folders),
        "GRIDMILL_CGROUPS": str(int(settings.cgroups)),
        "GRIDMILL_ZYGOTE": str(int(settings.zygote)),
        "GRIDMILL_HISTORY": _plain(settings.history_seconds),
        "GRIDMILL_JOB_DISK": str(settings.job_disk_bytes or ""),
        "GRIDMILL_JOB_FILES": str(settings.job_files),
        "GRIDMILL_LOG_JOB": str(settings.log_job_bytes),
        "GRIDMILL_LOG_HOME": str(settings.log_home_bytes),
        "GRIDMILL_DISK_RESERVE": ""
        if settings.disk_reserve_bytes is None
        else str(settings.disk_reserve_bytes),
    }


def _plain(number: float) -> str:
    """Returns the number as text without an exponent."""
    return f"{number:.9f}".rstrip("0").rstrip(".")


def chosen_variables(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Returns the names of the grid settings that the environment sets."""
    env = os.environ if environment is None else environment
    return tuple(name for name in env if name.startswith("GRIDMILL_") and env[name] and name not in _PRIVATE)


def whole_environment() -> dict[str, str]:
    """Returns all environment variables of this process, for the jobs that it starts."""
    return dict(os.environ)


def is_farm(home: Path) -> bool:
    """Returns whether the home belongs to a farm (`gridmill up --light`) and to no other grid."""
    return (home / "farm" / "records.db").exists() and not (home / "store.db").exists()


def _path(written: str) -> Path | None:
    return Path(written).expanduser().absolute() if written else None


def _shares(written: str) -> int:
    if not written.isdecimal() or int(written) < 1:
        raise InputError(
            f"{written!r} is not a whole number of at least 1",
            place="GRIDMILL_GPU_SHARES",
            hint="For example, with GRIDMILL_GPU_SHARES=4 up to four jobs share a GPU.",
        )
    return int(written)


def _reserve(written: str) -> int | None:
    if not written:
        return None
    return 0 if written == "0" else parse_bytes(written)


def _files(written: str) -> int:
    if not written.isdecimal():
        raise InputError(
            f"{written!r} is not a whole number",
            place="GRIDMILL_JOB_FILES",
            hint="Example: GRIDMILL_JOB_FILES=1000000",
        )
    return int(written)


def _history(written: str) -> float:
    seconds = parse_seconds(written)
    if seconds <= 0:
        raise InputError(
            f"{written!r} is not longer than 0 s",
            place="GRIDMILL_HISTORY",
            hint="Example: GRIDMILL_HISTORY=90d",
        )
    return seconds


_LEAST_LOG_BYTES = 64 * KIB


def _log_bytes(name: str, env: Mapping[str, str], default: int) -> int:
    size = parse_bytes(env[name]) if env.get(name) else default
    if size < _LEAST_LOG_BYTES:
        raise InputError(f"{env[name]} is less than 64KiB", place=name, hint=f"Example: {name}=256MiB")
    return size


_VARIABLE = re.compile(r"\$\{env:([^}]+)\}")


def fill_in_environment(
    text: str, place: str, *, in_url: bool = False, environment: Mapping[str, str] | None = None
) -> str:
    """Returns the text, with each `${env:NAME}` replaced by the value of this environment variable. The
    function is for secrets, which must not be stored anywhere.

    With `in_url`, the values are quoted so that they are valid inside a URL. Raises InputError at `place` if
    a variable is not set.
    """
    env = os.environ if environment is None else environment
    alone = _VARIABLE.fullmatch(text) is not None

    def value(match: re.Match[str]) -> str:
        found = env.get(match[1])
        if found is None:
            raise InputError(
                f"the environment variable {match[1]!r} is not set on the machine where the job runs",
                hint="Set it before `gridmill run`, or if a control node runs, before `gridmill up`.",
                place=place,
            )
        return quote(found, safe="") if in_url and not alone else found

    return _VARIABLE.sub(value, text)
