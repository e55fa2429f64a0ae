"""The command `advise` shows how much time a job would save with more workers."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gridmill.cli.session import Json, emit, print_error, session, show
from gridmill.cli.tables import table
from gridmill.domain.advice import Advice, ScalingLawKind, ScalingMeasurement, WorkerForecast
from gridmill.domain.amounts import show_factor, show_seconds

_LAWS = {
    ScalingLawKind.AMDAHL: "Amdahl's law",
    ScalingLawKind.USL: "the Universal Scalability Law",
    ScalingLawKind.QUEUE: "workers that wait for a resource that only one worker can use at a time",
}


def advise(
    context: typer.Context,
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="Name of a job with workers: PIPELINE/JOB.", show_default=False),
    ],
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="First run the job on parts of its data, at most three times. No result is stored.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show how the time of a job depends on the number of its workers, and recommend a number."""
    with session(context, reading=not probe) as client:
        advice = client.advise(job, probe=probe, on_probe=None if json else _print_probe)
    emit(advice) if json else show(Group(*_advice_lines(advice)))


def _print_probe(workers: int, share: float) -> None:
    print_error(f"probe: {_workers(workers)} on {share:.0%} of the data")


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


def _advice_lines(found: Advice) -> Iterator[RenderableType]:
    yield Text(f"{found.job}  {found.summary}", style="bold")
    yield table(
        *("workers", "time", "speed-up", "90 %", "cost", ""),
        rows=[_row(line, found) for line in found.forecasts],
    )
    for sentence in found.why:
        yield Text(sentence)
    yield Text(f"law: {law_text(found)}")
    yield Text(f"workers or CPUs: {found.vertical}")
    yield Text(f"recommended: {_workers(found.worth)}: {found.rule}", style="dim")
    for sentence in found.unknown:
        yield Text(f"unknown: {sentence}")
    for probe in found.probes:
        took = f", about {show_seconds(probe.expected_seconds)}" if probe.expected_seconds else ""
        yield Text(f"probe to run: {_workers(probe.workers)} on {probe.share:.0%} of the data{took}")
    if found.probes:
        yield Text(f"`gridmill advise {found.job} --probe` runs these probes")


def law_text(found: Advice) -> str:
    """Return the name of the fitted scaling law with its parameters."""
    coherence = f", each pair of workers costs {found.law.coherence:.2%}" if found.law.coherence else ""
    return (
        f"{_LAWS[found.law.kind]}, serial share {found.law.serial:.1%}{coherence}"
        f" ({show_seconds(found.serial_seconds)} around the shards,"
        f" {show_seconds(found.opening_seconds)} to load, {show_seconds(found.work_seconds)} of work;"
        f" attempts differ by {found.law.noise:.1%})"
    )


def _row(line: WorkerForecast, found: Advice) -> tuple[str, ...]:
    measured = [one for one in found.measured if one.workers == line.workers]
    notes = ["recommended"] if line.workers == found.worth else []
    notes += [_measured(measured)] if measured else []
    between = "" if line.workers == 1 else f"{line.low:.1f}-{line.high:.1f}"
    return (
        str(line.workers),
        show_seconds(line.seconds),
        f"{line.speedup:.1f} x",
        between,
        f"{show_factor(line.cost)} x",
        "; ".join(notes),
    )


def _measured(some: list[ScalingMeasurement]) -> str:
    probed = sum(one.probe for one in some)
    counts = {"measured": len(some) - probed, "probed": probed}
    return ", ".join(f"{count} {how}" for how, count in counts.items() if count)
