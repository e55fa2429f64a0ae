"""The jobs of a pipeline in an order in which each comes after what it needs."""

from collections.abc import Mapping
from difflib import get_close_matches
from heapq import heapify, heappop, heappush

from gridmill.errors import PipelineError
from gridmill.model.job import Job
from gridmill.model.pipeline import Pipeline

NAMED_WHERE_READ = (
    "Only commands name it in `needs`. Other jobs name it where they read it: `dataset`, `models`."
)


def order(pipeline: Pipeline) -> tuple[str, ...]:
    """Job names, each after its needs, otherwise as declared.

    Raises PipelineError for a need that is no job and for a cycle, naming it (`a -> b -> a`).
    """
    places = {job.name: place for place, job in enumerate(pipeline.jobs)}
    needs = {job.name: _known_needs(job, pipeline, places) for job in pipeline.jobs}
    users: dict[str, list[str]] = {name: [] for name in needs}
    for name, needed in needs.items():
        for need in needed:
            users[need].append(name)
    missing = {name: len(needed) for name, needed in needs.items()}
    ready = [places[name] for name, count in missing.items() if count == 0]
    heapify(ready)
    ordered: list[str] = []
    while ready:
        name = pipeline.jobs[heappop(ready)].name
        ordered.append(name)
        for user in users[name]:
            missing[user] -= 1
            if missing[user] == 0:
                heappush(ready, places[user])
    if len(ordered) < len(pipeline.jobs):
        raise _cycle_error(pipeline, needs, missing)
    return tuple(ordered)


def _known_needs(job: Job, pipeline: Pipeline, names: Mapping[str, int]) -> tuple[str, ...]:
    needs = job.all_needs
    if job.misplaced_need:
        raise PipelineError(
            f"job {job.name!r} needs {job.misplaced_need!r}, a result of another pipeline",
            place=f"{pipeline.name}: jobs.{job.name}.needs",
            hint=NAMED_WHERE_READ,
        )
    for need in needs:
        if need not in names:
            close = get_close_matches(need, names, n=1)
            raise PipelineError(
                f"job {job.name!r} needs {need!r}, which is no job of this pipeline",
                place=f"{pipeline.name}: jobs.{job.name}",
                hint=f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(sorted(names))}.",
            )
    return needs


def _cycle_error(
    pipeline: Pipeline, needs: dict[str, tuple[str, ...]], missing: dict[str, int]
) -> PipelineError:
    stuck = {name for name, count in missing.items() if count > 0}
    path = [next(job.name for job in pipeline.jobs if job.name in stuck)]
    while path.count(path[-1]) < 2:
        path.append(next(need for need in needs[path[-1]] if need in stuck))
    cycle = path[path.index(path[-1]) :]
    return PipelineError(
        f"the jobs need each other in a circle: {' -> '.join(cycle)}",
        place=f"{pipeline.name}: jobs.{cycle[0]}",
        hint="Take one of these needs away.",
    )
