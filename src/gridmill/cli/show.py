"""The commands `show` and `list`, and the lists of records that they print.

A list can be limited to some states and to the newest N records. `show model NAME --trials` shows the trials
of the hyperparameter search. Pipelines are listed by name, with their file and their last run.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Annotated, Any

import typer

from gridmill.cli.cloud_providers import HEAD as PROVIDERS
from gridmill.cli.cloud_providers import provider_row
from gridmill.cli.completion import complete_names, complete_nouns, complete_pipelines, complete_states
from gridmill.cli.configure import alias_target
from gridmill.cli.describe import HEAD, backfill_row, describe, show_rejects
from gridmill.cli.format import (
    JOBS,
    amounts,
    budget_use,
    in_use,
    job_row,
    moment,
    node_count,
    scalar,
    whose,
)
from gridmill.cli.images import list_images
from gridmill.cli.leases import HEAD as LEASES
from gridmill.cli.leases import lease_row
from gridmill.cli.render import run_table
from gridmill.cli.service_texts import HEAD as SERVICES
from gridmill.cli.service_texts import promotion_text, service_row
from gridmill.cli.session import Json, console, emit, session, show_table
from gridmill.cli.session import show as show_text
from gridmill.cli.tables import FittedTable, table
from gridmill.codec import to_builtins
from gridmill.domain.amounts import show_bytes, show_count, show_number, show_seconds
from gridmill.domain.artifact import BEST, LATEST, Alias, Artifact, ArtifactKind, best_of
from gridmill.domain.frozen import dataclass
from gridmill.domain.lease_cost import CostBy, CostRow
from gridmill.domain.metrics import HIGHER_IS_BETTER, headline
from gridmill.domain.naming import did_you_mean, similar_name
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.project import ProjectView
from gridmill.domain.resource import Resource
from gridmill.domain.run import Run
from gridmill.domain.run_costs import run_costs
from gridmill.domain.service import gpu_lines_on
from gridmill.domain.site import Site
from gridmill.domain.states import DeploymentState, JobState, RunState
from gridmill.domain.views import RunView, ScheduleView
from gridmill.errors import InputError
from gridmill.ports.grid import Grid
from gridmill.sdk.listing import Listing
from gridmill.sdk.lookup import (
    ARTIFACTS,
    LISTED,
    Noun,
    find_noun,
    find_run,
    list_nouns,
    plural,
    read_noun,
)

RECENT = 50
"""The number of runs and versions that a table shows by default."""
_MOST_COUNTED = 1000
"""The largest number of omitted records that is counted exactly."""

STATES: dict[Noun, type[StrEnum]] = {
    Noun.RUN: RunState,
    Noun.DEPLOYMENT: DeploymentState,
    Noun.JOB: JobState,
}
"""The kinds of records that have states, with the enum of their states."""

_MEANT = {
    "running": RunState.ACTIVE,
    "done": RunState.SUCCEEDED,
    "success": RunState.SUCCEEDED,
    "completed": RunState.SUCCEEDED,
    "ok": RunState.SUCCEEDED,
    "error": RunState.FAILED,
    "cancelled": RunState.STOPPED,
    "canceled": RunState.STOPPED,
    "killed": RunState.STOPPED,
}
"""The names that other tools use for the states of runs, with the state that each name means."""


def count(grid: Grid, noun: Noun) -> int:
    """Return the number of records of a kind."""
    return len(list_nouns(grid, noun))


def read_states(noun: Noun | None, words: Sequence[str]) -> tuple[Any, ...]:
    """Parse the states of a kind of record. A word may contain several states, separated by commas. Raises
    InputError."""
    if not words:
        return ()
    kind = STATES.get(noun) if noun is not None else None
    if kind is None:
        raise InputError(f"--state works only with {' and '.join(map(plural, STATES))}")
    return tuple(_read(kind, word.strip().lower()) for one in words for word in one.split(","))


def _similar_state(word: str, names: Iterable[str]) -> str:
    meant = _MEANT.get(word, "")
    return str(meant) if meant in names else similar_name(word, names)


def _read(kind: type[StrEnum], word: str) -> StrEnum:
    state_names = [state.value for state in kind]
    if word in state_names:
        return kind(word)
    meant = did_you_mean(word, state_names, find=_similar_state)
    raise InputError(f"{word!r} is not a state{meant}", hint=f"The states are {', '.join(state_names)}.")


def listed(
    grid: Grid,
    noun: Noun,
    states: tuple[Any, ...],
    pipeline: str | None,
    limit: int | None,
    run: str | None = None,
) -> tuple[tuple[Any, ...], str]:
    """Return the records to show, and a line about the omitted records. Raises InputError."""
    records: Iterator[Any]
    if noun == Noun.RUN:
        records = iter(Listing(partial(grid.runs, pipeline=pipeline, states=states)))
    elif pipeline is not None:
        raise InputError("--pipeline works only with runs")
    elif run is not None:
        records = iter(Listing(partial(grid.jobs, find_run(grid, run).run.id, states=states)))
    else:
        records = (one for one in list_nouns(grid, noun) if not states or one.state in states)
    shown = tuple(islice(records, limit))
    more = sum(1 for _ in islice(records, _MOST_COUNTED + 1))
    return shown, _left_out(noun, len(shown), more) if more else ""


def _left_out(noun: Noun, shown: int, more: int) -> str:
    total = f"more than {shown + _MOST_COUNTED:,}" if more > _MOST_COUNTED else f"{shown + more:,}"
    which = "newest" if noun == Noun.RUN or noun in ARTIFACTS else "first"
    return f"showing the {which} {shown:,} of {total} {plural(noun)}; `--all` shows all"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineWithRun:
    """A pipeline with its newest run. The run is None if the pipeline was never run, or if its runs were
    deleted."""

    pipeline: Pipeline
    last: Run | None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the JSON output: the fields of the pipeline, its file and the id of its last
        run."""
        path = self.pipeline.path
        more = {"file": None if path is None else str(path), "last_run": self.last and self.last.id}
        return {**to_builtins(self.pipeline), **more}


def last_run(grid: Grid, pipeline: str) -> Run | None:
    """Return the newest run of a pipeline."""
    return next(iter(grid.runs(limit=1, pipeline=pipeline).items), None)


def pipeline_row(known: PipelineWithRun) -> tuple[object, ...]:
    """Return the table cells of a pipeline."""
    one, last = known.pipeline, known.last
    ran = "" if last is None else f"{last.id} {last.state}, {moment(last.created)}"
    return (
        one.name,
        len(one.jobs),
        "apply" if one.applied else "its last run",
        ran,
        one.folder if one.path is None else one.path,
        one.description,
    )


Trial = Mapping[str, Any]


def show_trials(found: object, *, as_json: bool) -> None:
    """Print the trials of a search, the best trial first. Raises InputError if the version was not made by a
    search."""
    if not isinstance(found, Artifact) or found.kind != ArtifactKind.MODEL:
        raise InputError("--trials works only with models", hint="gridmill show model PIPELINE/JOB --trials")
    search = found.output.details.get("search")
    if not search:
        raise InputError(
            f"{found.id} was trained without a search", hint="Trainings with `search` have trials."
        )
    trials = ranked(search["trials"], higher=search["metric"] in HIGHER_IS_BETTER)
    if as_json:
        return emit({**search, "trials": trials})
    names = list(dict.fromkeys(name for trial in trials for name in trial["parameters"]))
    head = ("trial", "state", f"validation {search['metric']}", *names, "took", "")
    show_table(head, [_row(trial, names, search["best"]) for trial in trials])


def ranked(trials: Sequence[Trial], *, higher: bool) -> list[Trial]:
    """Return the trials, the best trial first. Trials without a value come last, in the order of their
    numbers."""

    def place(trial: Trial) -> tuple[bool, float, int]:
        value = trial["value"]
        return value is None, 0.0 if value is None else -value if higher else value, trial["number"]

    return sorted(trials, key=place)


def _row(trial: Trial, names: Sequence[str], best: int) -> tuple[str, ...]:
    value, seconds, state = trial["value"], trial.get("seconds"), str(trial["state"])
    return (
        f"{trial['number']}{' *' if trial['number'] == best else ''}",
        _STATES.get(state, state),
        "" if value is None else show_number(value),
        *(scalar(trial["parameters"].get(name)) for name in names),
        "" if seconds is None else show_seconds(seconds),
        trial.get("message") or "",
    )


_STATES = {"complete": "succeeded", "pruned": "ended early", "fail": "failed"}
"""The states of trials, with the states of jobs that are printed for them."""


NounName = Annotated[
    str,
    typer.Argument(metavar="NOUN", help=f"One of {', '.join(Noun)}.", autocompletion=complete_nouns),
]


def show(
    context: typer.Context,
    noun: NounName,
    name: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]",
            help="Name or id of the noun. For a job: PIPELINE/JOB, or RUN JOB.",
            autocompletion=complete_names,
        ),
    ] = None,
    rejects: Annotated[bool, typer.Option("--rejects", help="Show the rows that a sink rejected.")] = False,
    trials: Annotated[
        bool,
        typer.Option("--trials", help="Show the trials of the search that chose the settings of a model."),
    ] = False,
    json: Json = False,
) -> None:
    """Show the details of a record."""
    kind = read_noun(noun)
    if not name and kind != Noun.CONTROL:
        raise InputError(f"the name of the {kind} is missing", hint=f"To list them: gridmill list {kind}")
    # a running service needs a control node, which knows the present state of its replicas
    reading = kind != Noun.SERVICE
    with session(context, embed=kind != Noun.CONTROL, reading=reading) as client:
        found = find_noun(client.grid, kind, "/".join(name or ()))
        described = client.version(found.id) if isinstance(found, Artifact) else found
        alterations = client.list_alterations(found.name) if isinstance(found, Artifact) else ()
        altered = [change for one in alterations for change in one.changes]
        gpu_lines: tuple[str, ...] = ()
        if isinstance(found, Resource):
            gpu_lines = gpu_lines_on(found.name, [one.service for one in Listing(client.grid.services)])
        spent: tuple[CostRow, ...] = ()
        if isinstance(found, RunView) and not json:
            spent = client.costs(CostBy.RUN, run=found.run.id)
    if rejects:
        show_rejects(found, as_json=json)
    elif trials:
        show_trials(found, as_json=json)
    elif json:
        emit(found)
    elif isinstance(found, RunView):
        show_text(run_table(found, time.time()))
        for line in run_costs(found.run, spent):
            print(line)
    else:
        show_text(describe(described))
        for change in altered:
            print(f"altered: {change}")
        for line in gpu_lines:
            print(line)


def list_all(
    context: typer.Context,
    noun: Annotated[
        str | None,
        typer.Argument(
            metavar="[NOUN]", help=f"One of {', '.join(LISTED)}, job.", autocompletion=complete_nouns
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="For `list jobs`: a run, or a pipeline (its newest run)."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Show only entries in this state. Repeatable.",
            autocompletion=complete_states,
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Show only runs of this pipeline.", autocompletion=complete_pipelines
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            metavar="N",
            help="Largest number of entries. Default: 50 runs, leases or versions.",
        ),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Show all entries.")] = False,
    json: Json = False,
) -> None:
    """List runs, versions or other records, the newest first. Without an argument, show the number of
    records of each kind.

    A table shows at most 50 runs, versions, jobs or leases; --json prints all of them.
    """
    if all and limit is not None:
        raise InputError("--all and --limit exclude each other")
    if (run is not None) != (noun is not None and read_noun(noun) == Noun.JOB):
        raise InputError("the run whose jobs to list is missing", hint="gridmill list jobs RUN")
    if noun is not None and read_noun(noun) == Noun.IMAGE:
        return list_images(context, json)
    states = read_states(None if noun is None else read_noun(noun), state or ())
    with session(context, reading=True) as client:
        if noun is None:
            counts = {kind.value: count(client.grid, kind) for kind in LISTED}
            emit(counts) if json else show_text(table("noun", "there are", rows=list(counts.items())))
            return
        kind = read_noun(noun)
        if (
            limit is None
            and not (all or json)
            and (kind in (Noun.RUN, Noun.JOB, Noun.LEASE) or kind in ARTIFACTS)
        ):
            limit = RECENT
        nouns, left_out = listed(client.grid, kind, states, pipeline, limit, run)
        if kind == Noun.PIPELINE:
            nouns = tuple(
                PipelineWithRun(pipeline=one, last=last_run(client.grid, one.name)) for one in nouns
            )
        names = {} if json or kind not in ARTIFACTS else _names(client.grid, nouns)
    if json:
        emit([one.fields() for one in nouns] if kind == Noun.PIPELINE else nouns)
    else:
        _tabulate(kind, nouns, names)
    if left_out:
        console(error=True).print(left_out, markup=False)


def _tabulate(kind: Noun, found: Sequence[Any], names: Mapping[str, str]) -> None:
    if not found:
        console(error=True).print(f"there are no {plural(kind)}", markup=False)
        return
    if kind in _TABLES:
        head, row = _TABLES[kind]
        show_text(list_table(head, [row(one) for one in found]))
    elif kind == Noun.JOB:
        now = time.time()
        show_text(list_table(JOBS, [job_row(one, now) for one in found]))
    elif kind in ARTIFACTS:
        show_text(list_table(_ARTIFACTS, [_artifact_row(one, names) for one in found]))
    else:
        head = tuple(to_builtins(found[0]))
        show_text(list_table(head, [tuple(getattr(one, name) for name in head) for one in found]))


def list_table(head: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> FittedTable:
    """Return a table for a terminal, which shows a list of records. All columns of the table except the
    first column are wrapped between words. On a narrow screen, the least important columns are hidden."""
    return FittedTable(head, rows, folded=head[1:], left_out=_LEFT_OUT)


def _names(grid: Grid, versions: Sequence[Artifact]) -> Mapping[str, str]:
    counts = Counter(one.name for one in versions)
    latest = frozenset(
        one.id if counts[one.name] == 1 else grid.artifact(one.name).id
        for one in {one.name: one for one in versions}.values()
    )
    return names_of(versions, list_nouns(grid, Noun.ALIAS), latest)


def names_of(
    versions: Sequence[Artifact], aliases: Sequence[Alias], latest: frozenset[str]
) -> Mapping[str, str]:
    """Return the aliases of each version by its id, such as `latest, prod`. The argument `latest` contains
    the ids of the latest versions."""
    names: dict[str, list[str]] = {}
    by_name: dict[str, list[Artifact]] = {}
    for one in versions:
        by_name.setdefault(one.name, []).append(one)
    for name, some in by_name.items():
        for one in some:
            if one.id in latest:
                names.setdefault(one.id, []).append(LATEST)
        metric = next((alias.metric for alias in aliases if alias.id == f"{name}@{BEST}"), "")
        best = best_of(some, metric)
        if best is not None and len(some) > 1:
            names.setdefault(best.id, []).append(BEST)
    for alias in aliases:
        if alias.number is not None:
            names.setdefault(f"{alias.name}@{alias.number}", []).append(alias.alias)
    return {id: ", ".join(some) for id, some in names.items()}


def run_list(runs: Sequence[Run]) -> FittedTable:
    """Return a table of runs."""
    head, row = _TABLES[Noun.RUN]
    return list_table(head, [row(run) for run in runs])


def _run_row(run: Run) -> tuple[object, ...]:
    ended = run.ended or time.time()
    wall = show_seconds(ended - run.started) if run.started else ""
    probe = f"probe of {run.probe}" if run.probe else ""
    what = "; ".join(part for part in (whose(run), probe, run.message) if part)
    return run.id, run.state, moment(run.created), wall, what


def _resource_row(resource: Resource) -> tuple[object, ...]:
    size = resource.size
    requested = [f"{size.rows} rows"] if size and size.rows else []
    requested += [f"{resource.cpus:g} CPU{'' if resource.cpus == 1 else 's'}"] if resource.cpus else []
    requested += [show_bytes(resource.memory_bytes)] if resource.memory_bytes else []
    requested += [show_count(resource.gpus, "GPU")] if resource.gpus else []
    wanted = ", ".join(requested) or "sized by its jobs"
    keep = "" if resource.keep_seconds is None else show_seconds(resource.keep_seconds)
    return resource.name, resource.type, resource.site, wanted, keep, ", ".join(resource.jobs)


def _project_row(view: ProjectView) -> tuple[object, ...]:
    return view.name, f"{view.project.share:g}", f"{view.used_share:.0%}", *in_use(view), budget_use(view)


def schedule_row(view: ScheduleView) -> tuple[object, ...]:
    """Return the table cells of a schedule."""
    kept = view.schedule
    following = moment(view.next[0]) if view.next else ""
    counts = (kept.runs, kept.unchanged, kept.skipped)
    return view.name, kept.spec.text, following, *counts, kept.last_run, view.why


def schedule_list(schedules: Sequence[ScheduleView]) -> FittedTable:
    """Return a table of schedules."""
    head, row = _TABLES[Noun.SCHEDULE]
    return list_table(head, [row(view) for view in schedules])


def _artifact_row(one: Artifact, names: Mapping[str, str]) -> tuple[object, ...]:
    made = moment(one.created or None)
    return (
        one.id,
        names.get(one.id),
        one.kind,
        one.output.rows,
        show_bytes(one.output.size_bytes),
        headline(one.output.metrics),
        made,
    )


def _site_row(site: Site) -> tuple[object, ...]:
    count = len(site.nodes) if site.most_machines is None else node_count(site)
    return site.name, site.kind, count, amounts(site.largest)


_LEFT_OUT = ("kind", "size", "description", "folder")
_Table = tuple[tuple[str, ...], Callable[[Any], tuple[object, ...]]]
_ARTIFACTS = ("id", "named", "kind", "rows", "size", "metrics", "made")
_TABLES: Mapping[Noun, _Table] = {
    Noun.RUN: (("run", "state", "created", "time", ""), _run_row),
    Noun.RESOURCE: (("resource", "type", "site", "asked for", "keep", "jobs"), _resource_row),
    Noun.PROJECT: (("project", "share", "used", "CPUs", "memory", "GPUs", "rented this month"), _project_row),
    Noun.CLOUDPROVIDER: (PROVIDERS, provider_row),
    Noun.SERVICE: (SERVICES, service_row),
    Noun.SITE: (
        ("site", "kind", "nodes", "largest node"),
        _site_row,
    ),
    Noun.DEPLOYMENT: (
        ("deployment", "state", "resource", "site", "pods", "size", ""),
        lambda one: (
            one.id,
            one.state,
            one.resource,
            one.site,
            len(one.pods),
            amounts(one.sizing.amounts),
            one.message,
        ),
    ),
    Noun.LEASE: (LEASES, lease_row),
    Noun.ALIAS: (
        ("alias", "stands for", "set", "last comparison"),
        lambda one: (one.id, alias_target(one), moment(one.changed), promotion_text(one.id, one.promotion)),
    ),
    Noun.SECRET: (
        ("secret", "version", "created", "changed", "used by", ""),
        lambda one: (
            one.name,
            one.version,
            moment(one.created),
            moment(one.changed),
            ", ".join(one.used_by),
            one.problem,
        ),
    ),
    Noun.SCHEDULE: (
        ("schedule", "when", "next", "runs", "unchanged", "skipped", "last run", ""),
        schedule_row,
    ),
    Noun.BACKFILL: (HEAD, backfill_row),
    Noun.PIPELINE: (
        ("pipeline", "jobs", "known from", "last run", "file", "description"),
        pipeline_row,
    ),
}
