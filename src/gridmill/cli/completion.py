"""Shell completion of names, which are read from the running control node, or otherwise from the records of
the home.

Completion runs when a key is pressed. Completion stops after a fraction of a second, starts and creates
nothing, and shows no error.
"""

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

import typer

from gridmill.cli.invocation import Invocation
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.run import JobRun
from gridmill.domain.states import RunState
from gridmill.ports.grid import Grid
from gridmill.ports.store import Noun as Stored
from gridmill.ports.store import Store
from gridmill.sdk.discovery import home_settings, open_home, open_url
from gridmill.sdk.lookup import ARTIFACTS, Noun, list_nouns, read_noun
from gridmill.settings import Settings

if TYPE_CHECKING:
    from gridmill.ports.host import Host

_SECONDS = 1.0
"""The longest time in seconds that completion waits for a control node or a database."""
_RECENT = 50


class NameLookup(Protocol):
    """An object from which completion reads names."""

    def listed(self, noun: Noun) -> Iterable[Any]:
        """Return the names of all records of a kind. Runs are sorted newest first."""

    def jobs(self, run: str) -> Iterable[str]:
        """Return the names of the jobs of a run."""


class GridNames:
    """Reads names from a running control node."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def listed(self, noun: Noun) -> Iterable[Any]:
        """See NameLookup."""
        return list_nouns(self._grid, noun, limit=_RECENT if noun == Noun.RUN else None)

    def jobs(self, run: str) -> Iterable[str]:
        """See NameLookup."""
        return [view.job.job.name for view in self._grid.run(run).jobs]


class StoreNames:
    """Reads names from the records of a home. Names are read from the records because the import of a
    control node, even of a control node that only reads, would take too long."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def listed(self, noun: Noun) -> Iterable[Any]:
        """See NameLookup."""
        kind = Artifact if noun in ARTIFACTS else _CLASSES[noun.value]
        limit = _RECENT if noun == Noun.RUN else None
        for record in self._store.list(kind, limit=limit, newest_first=noun == Noun.RUN):
            if not isinstance(record.noun, Artifact) or _is_of(record.noun, noun):
                yield record.noun

    def jobs(self, run: str) -> Iterable[str]:
        """See NameLookup."""
        for record in self._store.list(JobRun, parent=run):
            if isinstance(record.noun, JobRun) and record.noun.part is None:
                yield record.noun.job.name


_CLASSES: Mapping[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Stored)}
"""The record class of each kind of record that is not a version."""


def _is_of(version: Artifact, noun: Noun) -> bool:
    return not version.removed and (noun == Noun.ARTIFACT or version.kind == ArtifactKind(noun.value))


def complete_runs(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the ids of runs, newest first."""
    return _starting(incomplete, _ask(context, _runs))


def complete_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the ids of runs. If a run was given, complete the names of its jobs."""
    given = [word for word in (context.params.get("words") or ()) if word != "run"]
    run = context.params.get("run") or (given[0] if given else None)
    return _starting(incomplete, _ask(context, lambda known: known.jobs(run) if run else _runs(known)))


def complete_run_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of the jobs of the run that the command line already names."""
    run = context.params.get("run")
    return _starting(incomplete, _ask(context, lambda known: known.jobs(run))) if run else []


def complete_nouns(incomplete: str) -> list[str]:
    """Nouns."""
    return _starting(incomplete, (noun.value for noun in Noun))


def complete_states(incomplete: str) -> list[str]:
    """States of runs."""
    return _starting(incomplete, (state.value for state in RunState))


def complete_pipelines(context: typer.Context, incomplete: str) -> list[str]:
    """Names of pipelines."""
    return _starting(incomplete, _ask(context, _pipelines))


def complete_services(context: typer.Context, incomplete: str) -> list[str]:
    """Names of services."""
    return _starting(incomplete, _ask(context, _services))


def complete_files(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of pipeline files, folders and pipelines."""
    return _starting(incomplete, [*_files(incomplete), *_ask(context, _pipelines)])


def complete_versions(context: typer.Context, incomplete: str) -> list[str]:
    """Complete versions: first `PIPELINE/JOB`, and after an `@` the numbers and aliases of its versions."""
    return _starting(incomplete, _ask(context, lambda known: _versions(known, Noun.ARTIFACT, incomplete)))


def complete_models(context: typer.Context, incomplete: str) -> list[str]:
    """Models."""
    return _starting(incomplete, _ask(context, lambda known: _versions(known, Noun.MODEL, incomplete)))


def complete_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of records of the given kind. For jobs, complete a run first and then the names of
    its jobs."""
    noun, words = context.params.get("noun") or context.params.get("what"), context.params.get("name")
    given = [words] if isinstance(words, str) else list(words or ())
    with contextlib.suppress(Exception):
        kind = read_noun(str(noun))
        return _starting(incomplete, _ask(context, lambda known: _names(known, kind, given, incomplete)))
    return []


def _names(known: NameLookup, noun: Noun, given: list[str], incomplete: str) -> Iterable[str]:
    if noun == Noun.JOB:
        return known.jobs(given[0]) if given else _runs(known)
    if given:
        return []
    if noun in ARTIFACTS:
        return _versions(known, noun, incomplete)
    return [getattr(listing, "id", None) or listing.name for listing in known.listed(noun)]


def _runs(known: NameLookup) -> list[str]:
    return [run.id for run in known.listed(Noun.RUN)]


def _pipelines(known: NameLookup) -> list[str]:
    return [pipeline.name for pipeline in known.listed(Noun.PIPELINE)]


def _services(known: NameLookup) -> list[str]:
    return [service.name for service in known.listed(Noun.SERVICE)]


def _versions(known: NameLookup, noun: Noun, incomplete: str) -> Iterable[str]:
    """Return the names that can complete the incomplete name of a version.

    Versions of a job are returned only after its complete name and an `@`, because there may be thousands of
    versions.
    """
    listings = known.listed(noun)
    return (one.id for one in listings) if "@" in incomplete else dict.fromkeys(one.name for one in listings)


def _files(incomplete: str) -> Iterator[str]:
    folder, _, start = incomplete.rpartition("/")
    path = Path(folder or ("/" if incomplete.startswith("/") else "."))
    with contextlib.suppress(OSError):
        for one in sorted(path.iterdir()):
            if one.name.startswith(start) and (start or not one.name.startswith(".")):
                written = incomplete[: len(incomplete) - len(start)] + one.name
                if one.is_dir():
                    yield f"{written}/"
                elif one.suffix in (".yaml", ".yml"):
                    yield written


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _ask(context: typer.Context, question: Callable[[NameLookup], Iterable[str]]) -> list[str]:
    """Return the names that the function `question` finds. Return no names if there is no grid or if the
    search takes too long."""
    root = context.find_root()
    with contextlib.suppress(Exception), _for_a_moment():
        given: Invocation = root.obj
        if given.client is not None:
            return list(question(GridNames(given.client.grid)))
        lookup = _name_lookup(given.host, home_settings(root.params.get("home")), root.params.get("url"))
        return [] if lookup is None else list(question(lookup))
    return []


def _name_lookup(host: "Host", settings: Settings, url: str | None) -> NameLookup | None:
    if url is not None:
        return GridNames(open_url(url, None, settings).grid)
    if (settings.home / "control.sock").exists():
        with contextlib.suppress(Exception):
            return GridNames(open_home(settings, embed=False).grid)
    if not settings.store and (settings.home / "store.db").exists():
        return StoreNames(host.records(settings))
    return None


@contextlib.contextmanager
def _for_a_moment() -> Iterator[None]:
    """Return a context that raises TimeoutError if its body takes longer than `_SECONDS`."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
