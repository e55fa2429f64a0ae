"""Which waiting runs get an event about a used budget."""

from gridmill.control.ticks.budgets import WaitingRun, decide_budgets
from gridmill.domain.lease_cost import PROJECT, RESOURCE
from gridmill.scheduler.rental_budgets import Budget

NOTHING = Budget(owner=(PROJECT, "vision"), micros=0, currency="USD")
WAITING = WaitingRun(run_id="cats-1", job="train", project="vision", resource="burst")
OTHER = WaitingRun(run_id="dogs-1", job="train", project="sound", resource="burst")


def test_each_run_of_the_project_gets_one_event():
    first = decide_budgets([NOTHING], [], "2026-11", [WAITING, OTHER], frozenset())
    assert first.events == ((WAITING, (PROJECT, "vision")),)
    again = decide_budgets([NOTHING], [], "2026-11", [WAITING], {("cats-1", (PROJECT, "vision"))})
    assert (set(again.used), again.events) == ({(PROJECT, "vision")}, ())


def test_all_runs_of_a_resource_get_an_event():
    nothing = Budget(owner=(RESOURCE, "burst"), micros=0, currency="USD")
    made = decide_budgets([nothing], [], "2026-11", [WAITING, OTHER], frozenset())
    assert [run.run_id for run, _ in made.events] == ["cats-1", "dogs-1"]
    assert not decide_budgets([], [], "2026-11", [WAITING], frozenset()).events
