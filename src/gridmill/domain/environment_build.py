"""This module finds the state and the duration of the build of a job's Python environment, from the job's
progress and its log lines.

The environment is built before the job's code runs.
"""

from collections.abc import Iterable, Mapping

from gridmill.domain.pod_protocol import Event
from gridmill.domain.states import JobState
from gridmill.domain.views import JobView

ENVIRONMENT = "environment"
"""The value of `phase` in progress events during the build of an environment. The events of the start and
the end of the build are stored with this type."""
BUILDING = "building"
"""The state of a job that is shown instead of `running` while its environment is built."""
BEGUN, ENDED = "building the environment", "the environment is ready:"
"""Prefixes of the lines in the job's log, of stream `pod`, that report the start and the end of the
build."""


def is_building(view: JobView) -> bool:
    """Return whether the environment of the job is being built."""
    return view.job.state == JobState.RUNNING and view.progress.get("phase") == ENVIRONMENT


def state_of(view: JobView) -> str:
    """Return the state of the job for display. A running job that waits for its environment has the state
    `building`."""
    return BUILDING if is_building(view) else view.job.state.value


def is_about_building(log: Mapping[str, object]) -> bool:
    """Return whether the body of a LOG event reports the start or the end of the build of an environment."""
    return log.get("stream") == "pod" and str(log.get("text", "")).startswith((BEGUN, ENDED))


def build_seconds(events: Iterable[Event]) -> Mapping[str, float]:
    """Return the time that the environments of each job took to build, by the name of the job."""
    begun: dict[str, float] = {}
    result: dict[str, float] = {}
    for event in events:
        if event.type != ENVIRONMENT:
            continue
        for line in str(event.body.get("text", "")).split("\n"):
            if line.startswith(BEGUN):
                begun[event.attempt_id] = event.time
            elif line.startswith(ENDED) and event.attempt_id in begun:
                took = max(0.0, event.time - begun.pop(event.attempt_id))
                result[event.job] = result.get(event.job, 0.0) + took
    return result
