"""The commands `plan`, `apply` and `schema` process pipelines before they run."""

import json as json_text
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from gridmill.cli.format import amounts, moment
from gridmill.cli.parameters import Adopt, File, Set, read_set
from gridmill.cli.session import Json, console, emit, print_error, session
from gridmill.cli.tables import FittedTable
from gridmill.domain.amounts import show_bytes, show_count, show_seconds
from gridmill.domain.job import REMARKS
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.rental_estimate import estimate_lines, show_moneys
from gridmill.domain.resource import Resource, ResourceAlternative, alternative_text, transfer_lines
from gridmill.domain.site import Site
from gridmill.domain.views import DryRun, PlannedJob, ScheduleView
from gridmill.errors import TABLE, ConflictError, InputError
from gridmill.sdk.runs import Kept

_FOLDED = ("needs", "resource", "")
_LEFT_OUT = ("kind", "from", "workers", "to", "needs")
"""The columns that are hidden on a narrow screen, the least important column first."""

FileOption = Annotated[
    str, typer.Option("--file", "-f", metavar="FILE", help="Pipeline file (YAML).", show_default=False)
]


def plan(context: typer.Context, file: File, set: Set = None, json: Json = False) -> None:
    """Show what a run would do: which jobs execute and why, their sizes, order, memory and time. Start
    nothing.
    """
    with session(context, reading=True) as client:
        made = client.plan(client.prepare(file, read_set(set or ()), note=print_error))
    emit(made) if json else show_plan(made)
    if made.conflict:
        raise typer.Exit(TABLE[ConflictError.code].exit_code)
    if any(job.problem for job in made.jobs):
        raise typer.Exit(TABLE[InputError.code].exit_code)


def show_plan(made: DryRun) -> None:
    """Print the plan as a table, then the reasons."""
    screen = console()
    head = ("step", "job", "kind", "needs", "resource", "size", "workers", "from", "to", "")
    rows = [_row(job) for job in made.jobs]
    screen.print(FittedTable(head, rows, folded=_FOLDED, left_out=_LEFT_OUT, comfort=0))
    for job in made.jobs:
        if job.reason:
            screen.print(f"{job.job}: {'unchanged' if job.unchanged else 'runs'}: {job.reason}", markup=False)
        for why in (*job.sizing.why, *place_lines(job)):
            screen.print(f"{job.job}: {why}", markup=False)
    for job in made.jobs:
        if job.waiting:
            screen.print(f"{job.job}: {job.waiting}", markup=False)
        if job.advice:
            screen.print(
                f"{job.job}: {job.advice} (`gridmill advise {made.pipeline}/{job.job}`)", markup=False
            )
    if made.conflict:
        screen.print(f"the run would be refused: {made.conflict}", markup=False)
    took = "unknown time" if made.expected_seconds is None else show_seconds(made.expected_seconds)
    for job in made.jobs:
        if job.problem:
            screen.print(f"{job.job} cannot run: {job.problem}", markup=False)
        elif job.doubt:
            screen.print(f"{job.job} may fail: {job.doubt}", markup=False)
        if job.request and not job.unchanged:
            screen.print(f"{job.job}: request to site {job.site}: {job.request}", markup=False)
        if job.unchecked:
            screen.print(f"{job.job}: not checked {job.unchecked}", markup=False)
        for line in job.inferred:
            screen.print(f"{job.job}: {line}", markup=False)
    for line in made.unchecked:
        screen.print(f"not checked against data: {line}", markup=False)
    money = _whole_cost(made)
    screen.print(f"expected: {took}, {show_bytes(made.peak_memory_bytes)} of memory at most{money}")


def _whole_cost(made: DryRun) -> str:
    """Return the expected cost of the machines that the run rents, as the end of a sentence. The result is
    empty if the run rents no machine."""
    rented = [job.rentals[job.resource] for job in made.jobs if job.resource in job.rentals]
    if not rented:
        return ""
    known: dict[str, int] = {}
    for one in rented:
        if one.total_micros is not None:
            known[one.currency] = known.get(one.currency, 0) + one.total_micros
    lacking = [one.total_micros for one in rented].count(None)
    if lacking == len(rented):
        return ", an unknown cost"
    more = f" and the unknown cost of {show_count(lacking, 'job')}" if lacking else ""
    return f", {show_moneys(known)}{more}"


def place_lines(job: PlannedJob) -> tuple[str, ...]:
    """Return the resource of a job with the reason for the choice, and the data to transfer."""
    if job.unchanged:
        return ()
    alone = ResourceAlternative(
        resource=job.resource,
        site=job.site,
        label=job.site,
        run_seconds=job.sizing.expected_seconds,
        transfer=job.transfer,
    )
    where = job.choice or (alternative_text(alone) if job.transfer is not None else "")
    carried = transfer_lines(job.transfer, job.site) if job.transfer else ()
    # the estimate of a rental repeats what is unknown about the transfers
    return tuple(dict.fromkeys(((where,) if where else ()) + carried + rental_lines(job)))


def rental_lines(job: PlannedJob) -> tuple[str, ...]:
    """Return the machine that would be rented for the job, with its time and cost. If the job may use
    several resources, each line begins with the name of its resource."""
    several = len(job.alternatives) > 1 or len(job.rentals) > 1
    return tuple(
        f"{name}: {line}" if several else line
        for name, rental in job.rentals.items()
        for line in estimate_lines(rental)
    )


def _row(job: PlannedJob) -> tuple[str, ...]:
    remark = (
        "cannot run" if job.problem else ("unchanged: is skipped" if job.unchanged else REMARKS[job.when])
    )
    return (
        str(job.wave),
        job.job,
        job.kind,
        ", ".join(job.needs),
        f"{job.resource} at {job.site}",
        amounts(job.sizing.amounts, job.most_cpus) if job.sizing.amounts.memory_bytes else "unknown",
        str(job.sizing.workers),
        "" if job.starts is None else show_seconds(job.starts),
        "" if job.ends is None else show_seconds(job.ends),
        remark,
    )


def apply(
    context: typer.Context, file: FileOption, set: Set = None, adopt: Adopt = False, json: Json = False
) -> None:
    """Store the pipelines, resources, sites and schedules of a file, without running anything."""
    with session(context) as client:
        kept = client.apply(file, set=read_set(set or ()), adopt=adopt)
        schedules = {view.name: view for view in client.list_schedules()}
    if json:
        return emit(kept)
    for noun in kept:
        print(_kept(noun))
        for line in _restored(noun) if isinstance(noun, Pipeline) else ():
            print(line)
        for name in noun.schedules if isinstance(noun, Pipeline) else ():
            print(_scheduled(schedules[name]))


def _restored(pipeline: Pipeline) -> Iterator[str]:
    """Yield lines about the jobs that are skipped if nothing changed, and about the jobs that execute in
    every run."""
    scheduled = bool(pipeline.schedules)
    why = {job.name: job.why_executed(scheduled=scheduled) for job in pipeline.jobs}
    may_be = [name for name, reason in why.items() if not reason]
    if may_be:
        yield f"skipped if nothing changed: {', '.join(may_be)}"
    for reason in dict.fromkeys(filter(None, why.values())):
        yield f"always executed: {', '.join(name for name in why if why[name] == reason)}: {reason}"


def _scheduled(view: ScheduleView) -> str:
    later = view.why or (f"next {moment(view.next[0])}" if view.next else "looks for new data")
    return f"schedule {view.name}: {view.schedule.spec.text}; {later}"


def _kept(noun: Kept) -> str:
    match noun:
        case Pipeline():
            return f"pipeline {noun.name}: {show_count(len(noun.jobs), 'job')}"
        case Site():
            return f"site {noun.name}: {len(noun.nodes)} nodes"
        case Resource():
            return f"resource {noun.name}"


def schema(json: Annotated[bool, typer.Option("--json", help="The output is always JSON.")] = True) -> None:
    """Print the JSON Schema of pipeline files, for editors."""
    # imported here, because it loads YAML and Pydantic, which most commands do not need
    from gridmill.declarations import json_schema

    made: Any = json_schema()
    print(json_text.dumps(made, indent=2))
