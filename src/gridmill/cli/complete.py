"""Names for the shell's completion: asked of the control node that is up, and of nothing else."""

from collections.abc import Callable

import typer

from gridmill.errors import GridmillError
from gridmill.ports.grid import Grid
from gridmill.sdk.dial import dial_home
from gridmill.sdk.lookup import Noun
from gridmill.settings import read_settings


def complete_runs(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of runs, newest first."""
    return [name for name in _ask(_runs) if name.startswith(incomplete)]


def complete_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of runs, then names of the jobs of the run that was given."""
    given = [word for word in (context.params.get("words") or ()) if word != "run"]
    run = context.params.get("run") or (given[0] if given else None)
    names = _ask(lambda grid: _jobs(grid, run)) if run else _ask(_runs)
    return [name for name in names if name.startswith(incomplete)]


def complete_run_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the jobs of the run that was given."""
    run = context.params.get("run")
    return (
        [name for name in _ask(lambda grid: _jobs(grid, run)) if name.startswith(incomplete)] if run else []
    )


def complete_nouns(incomplete: str) -> list[str]:
    """Nouns."""
    return [noun.value for noun in Noun if noun.value.startswith(incomplete)]


def _runs(grid: Grid) -> list[str]:
    return [run.id for run in grid.runs(limit=50)]


def _jobs(grid: Grid, run: str) -> list[str]:
    return [view.job.job.name for view in grid.run(run).jobs]


def _ask(question: Callable[[Grid], list[str]]) -> list[str]:
    try:
        dialled = dial_home(read_settings(), embed=False)
        return question(dialled.grid)
    except GridmillError:
        return []
