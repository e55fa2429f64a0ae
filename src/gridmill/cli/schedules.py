"""Schedules for people."""

from collections.abc import Sequence

from gridmill.cli.words import moment
from gridmill.model.view import ScheduleView


def schedule_facts(view: ScheduleView) -> Sequence[tuple[str, object]]:
    """When a pipeline runs by itself, and what came of it."""
    one = view.schedule
    return [
        ("when", one.spec.text),
        ("next", ", ".join(map(moment, view.next))),
        ("counts from", moment(one.since)),
        ("catch up", one.spec.catch_up),
        ("overlap", one.spec.overlap),
        ("runs", f"{one.runs}, unchanged {one.unchanged}, skipped {one.skipped}"),
        ("last run", one.last_run),
        ("why", view.why or one.message),
    ]
