"""The only reader of the environment: one frozen dataclass, each setting with its unit and reason."""

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
    """Read once, at an entry point, by `read_settings`."""

    home: Path
    """GRIDMILL_HOME: where the store, pods and caches live. Default ~/.gridmill: one grid per user."""
    root: Path
    """GRIDMILL_ROOT: the storage root for tables and models. Default HOME/storage."""
    store: str = ""
    """GRIDMILL_STORE: the database of the records, `postgresql://USER@HOST/DATABASE`; the password comes from
    PGPASSWORD or ~/.pgpass. Default: the file HOME/store.db (SQLite), which needs no server."""
    orphan_seconds: float = 3600.0
    """GRIDMILL_ORPHAN: a pod without control node and without a running job ends after this."""
    grace_seconds: float = 5.0
    """GRIDMILL_GRACE: from SIGTERM to SIGKILL when a job is stopped, or runs longer than its `timeout`."""
    observe_seconds: float = 1.0
    """GRIDMILL_OBSERVE: how often sites are asked for their pods. One call for all pods."""
    memory_bytes: int | None = None
    """GRIDMILL_MEMORY: how much memory the local site gives. Default: 80 % of the machine's (or cgroup's)."""
    cpus: float | None = None
    """GRIDMILL_CPUS: how many CPUs the local site gives. Default: all this process may use."""
    gpu_shares: int = 1
    """GRIDMILL_GPU_SHARES: as how many GPUs each of the local site's counts, for jobs that share one."""
    bucket_hosts: tuple[str, ...] = ()
    """GRIDMILL_BUCKET_HOSTS: hosts (with commas) of buckets on its own machine that a farm opens."""
    farm_folders: tuple[str, ...] = ()
    """GRIDMILL_FARM_FOLDERS: further folders (with `:`) that jobs of a farm's tenants may write, such
    as /scratch. Default: those of the tenant alone."""
    cgroups: bool = True
    """GRIDMILL_CGROUPS=0: do not use cgroups even where permitted (the guard on sampled memory acts)."""
    zygote: bool = True
    """GRIDMILL_ZYGOTE=0: exec every job instead of forking built-in kinds from a warm process."""
    history_seconds: float = HISTORY_DAYS * DAY_SECONDS
    """GRIDMILL_HISTORY: how long what is only history is kept: runs, logs, reports (see `gridmill clean`)."""
    disk_reserve_bytes: int | None = None
    """GRIDMILL_DISK_RESERVE: how much stays free on the disks of home and root. While less is free, no
    attempt starts. Default: 5 % of the file system, at most 1 GiB; 0 is no reserve."""
    job_disk_bytes: int = 0
    """GRIDMILL_JOB_DISK: how much of the disk the files of one attempt may use while it runs (0: no limit). A
    job's own `disk` can only be smaller."""
    job_files: int = 0
    """GRIDMILL_JOB_FILES: how many files and folders one attempt may make (0: no limit). A job's own
    `disk_files` can only be smaller."""
    log_job_bytes: int = JOB_LOG_BYTES
    """GRIDMILL_LOG_JOB: how much text of a job's log is kept in a run, the first half and the last. Default:
    256MiB."""
    log_home_bytes: int = HOME_LOG_BYTES
    """GRIDMILL_LOG_HOME: how large all logs of a home may be on the disk; those of the runs that wrote the
    longest time ago are dropped first. Default: 8GiB."""
    token: str = field(default="", repr=False)
    """GRIDMILL_TOKEN: the token of the grid that `gridmill join` makes this machine a node of."""
    fault: str = ""
    """GRIDMILL_FAULT: for tests: `before-commit:N` or `after-commit:N` kills the control node there."""


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from `environment` (default: the process's). Raises InputError for a bad value."""
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
        token=env.get("GRIDMILL_TOKEN", ""),
        fault=env.get("GRIDMILL_FAULT", ""),
    )


_PRIVATE = frozenset({"GRIDMILL_HOME", "GRIDMILL_TOKEN", "GRIDMILL_FAULT"})


def as_variables(settings: Settings) -> dict[str, str]:
    """The settings of a grid as variables of an environment: those that a process of the same home should
    share. Paths are whole, so that they mean the same in any folder."""
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
    """Without an exponent."""
    return f"{number:.9f}".rstrip("0").rstrip(".")


def chosen_variables(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Settings of a grid that the environment sets."""
    env = os.environ if environment is None else environment
    return tuple(name for name in env if name.startswith("GRIDMILL_") and env[name] and name not in _PRIVATE)


def whole_environment() -> dict[str, str]:
    """All variables of this process: those of the jobs that it starts."""
    return dict(os.environ)


def is_farm(home: Path) -> bool:
    """Whether a light Gridmill (`gridmill up --light`) lives there, and no other."""
    return (home / "farm" / "records.db").exists() and not (home / "store.db").exists()


def _shares(written: str) -> int:
    if not written.isdecimal() or int(written) < 1:
        raise InputError(
            f"a GPU is no {written!r} GPUs",
            place="GRIDMILL_GPU_SHARES",
            hint="Write 4 for a quarter of a GPU as the least that a job can have.",
        )
    return int(written)


def _reserve(written: str) -> int | None:
    if not written:
        return None
    return 0 if written == "0" else parse_bytes(written)


def _files(written: str) -> int:
    if not written.isdecimal():
        raise InputError(
            f"{written!r} is no number of files", place="GRIDMILL_JOB_FILES", hint="Write 1000000."
        )
    return int(written)


def _history(written: str) -> float:
    seconds = parse_seconds(written)
    if seconds <= 0:
        raise InputError("history is kept for more than no time", place="GRIDMILL_HISTORY", hint="Write 90d.")
    return seconds


_LEAST_LOG_BYTES = 64 * KIB


def _log_bytes(name: str, env: Mapping[str, str], default: int) -> int:
    size = parse_bytes(env[name]) if env.get(name) else default
    if size < _LEAST_LOG_BYTES:
        raise InputError(f"{env[name]} is less than 64KiB", place=name, hint="Write 256MiB.")
    return size


_VARIABLE = re.compile(r"\$\{env:([^}]+)\}")


def fill_in_environment(
    text: str, place: str, *, in_url: bool = False, environment: Mapping[str, str] | None = None
) -> str:
    """The text with each `${env:NAME}` as this process's environment has it: for secrets, kept nowhere.

    `in_url`: what stands within a URL is quoted for it. Raises InputError, at `place`, for one not set.
    """
    env = os.environ if environment is None else environment
    alone = _VARIABLE.fullmatch(text) is not None

    def value(match: re.Match[str]) -> str:
        found = env.get(match[1])
        if found is None:
            raise InputError(
                f"the environment variable {match[1]!r} is not set where the job runs",
                hint="Set it before `gridmill run`, or before `gridmill up` where that is running.",
                place=place,
            )
        return quote(found, safe="") if in_url and not alone else found

    return _VARIABLE.sub(value, text)
