"""Who runs the chain of no-op steps, how, and where: a command and an environment for each."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench import chains
from bench.environments import programs

GRIDMILL = Path(sys.executable).parent / "gridmill"
METAFLOW, PREFECT, DAGSTER = "Metaflow", "Prefect", "Dagster"
RIVALS = (METAFLOW, PREFECT, DAGSTER)
"""Whom the target speaks of; the others are shown beside."""
FRESH, AGAIN, UP = "Gridmill, fresh home", "Gridmill, same home", "Gridmill, `gridmill up`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """`write` puts a chain of that many steps into `folder` and gives the command that runs it."""

    name: str
    folder: Path
    write: Callable[[Path, int], list[str]]
    env: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] = lambda: None  # before every run, not timed
    many: int = 200
    """The length of the chain that a further step's time is taken from: shorter where steps are slow."""


def everyone(work: Path) -> list[Contestant]:
    """All that take part, each with a folder of its own below `work`; peers are installed when missing."""
    return [*_gridmills(work), _metaflow(work), _prefect(work), *_dagsters(work), _luigi(work)]


def environment(home: Path, *paths: Path, **more: str) -> dict[str, str]:
    """The same few variables for all: nothing of the user's own configuration comes in."""
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    path = os.pathsep.join([*map(str, paths), os.environ.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "HOME": str(home), "USER": "bench", "DO_NOT_TRACK": "1", **more}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _gridmills(work: Path) -> list[Contestant]:
    fresh, again, up = (_made(work / name) for name in ("gridmill-fresh", "gridmill-again", "gridmill-up"))
    return [
        Contestant(
            name=FRESH,
            folder=fresh,
            write=_write_gridmill,
            env=environment(fresh, GRIDMILL_HOME=str(fresh / "home")),
            prepare=lambda: shutil.rmtree(fresh / "home", ignore_errors=True),
        ),
        Contestant(name=AGAIN, folder=again, write=_write_gridmill, env=gridmill_environment(again)),
        Contestant(name=UP, folder=up, write=_write_gridmill, env=gridmill_environment(up)),
    ]


def gridmill_environment(folder: Path) -> dict[str, str]:
    """Gridmill with its home in that folder."""
    return environment(folder, GRIDMILL_HOME=str(folder / "home"))


def _write_gridmill(folder: Path, steps: int) -> list[str]:
    project = _made(folder / f"chain{steps}")
    (project / "pipeline.yaml").write_text(chains.gridmill(steps))
    return [str(GRIDMILL), "run", str(project / "pipeline.yaml"), "--force"]


def _metaflow(work: Path) -> Contestant:
    folder, programs_ = _made(work / "metaflow"), programs("metaflow")
    return Contestant(
        name=METAFLOW,
        folder=folder,
        write=lambda at, steps: [
            str(programs_ / "python"),
            _written(at, "metaflow", steps, chains.metaflow(steps)),
            "run",
        ],
        many=20,
        env=environment(
            folder, programs_, METAFLOW_DEFAULT_METADATA="local", METAFLOW_DEFAULT_DATASTORE="local"
        ),
    )


def _prefect(work: Path) -> Contestant:
    folder, programs_ = _made(work / "prefect"), programs("prefect")
    return Contestant(
        name=PREFECT,
        folder=folder,
        write=lambda at, steps: [
            str(programs_ / "python"),
            _written(at, "prefect", steps, chains.prefect(steps)),
        ],
        env=environment(
            folder,
            programs_,
            PREFECT_HOME=str(folder / "home"),
            PREFECT_SERVER_ANALYTICS_ENABLED="false",
            PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="120",  # a busy machine is no reason to give up
        ),
    )


def _dagsters(work: Path) -> list[Contestant]:
    folder, programs_ = _made(work / "dagster"), programs("dagster")
    (_made(folder / "home") / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    (folder / "in_process.yaml").write_text("execution: {config: {in_process: {}}}\n")

    def write(at: Path, steps: int, *more: str) -> list[str]:
        file = _written(at, "dagster", steps, chains.dagster(steps))
        return [str(programs_ / "dagster"), "job", "execute", "-f", file, "-j", "chain", *more]

    env = environment(folder, programs_, DAGSTER_HOME=str(folder / "home"), DAGSTER_DISABLE_TELEMETRY="1")
    return [
        Contestant(name=DAGSTER, folder=folder, write=write, env=env, many=20),
        Contestant(
            name="Dagster, all ops in one process",
            folder=folder,
            write=lambda at, steps: write(at, steps, "-c", str(folder / "in_process.yaml")),
            env=env,
        ),
    ]


def _luigi(work: Path) -> Contestant:
    folder, programs_ = _made(work / "luigi"), programs("luigi")
    return Contestant(
        name="Luigi, all tasks in one process",
        folder=folder,
        write=lambda at, steps: [
            str(programs_ / "python"),
            _written(at, "luigi", steps, chains.luigi(steps)),
        ],
        env=environment(folder, programs_),
    )


def _written(folder: Path, tool: str, steps: int, text: str) -> str:
    file = folder / f"{tool}_chain{steps}.py"
    file.write_text(text)
    return str(file)


def short_folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder; short, since paths of Unix sockets end at 108 characters."""
    return tempfile.TemporaryDirectory(prefix="gm-bench-", ignore_cleanup_errors=True)
