"""Which waiting runs get an event about a used budget."""

from gridmill.control.ticks.budgets import NO_COSTS, BudgetCosts, WaitingRun, decide_budgets
from gridmill.domain.frozen import replace
from gridmill.domain.lease_cost import PROJECT, RESOURCE
from gridmill.scheduler.rental_budgets import Budget

NOTHING = Budget(owner=(PROJECT, "vision"), micros=0, currency="USD")
WAITING = WaitingRun(run_id="cats-1", job="train", project="vision", resource="burst")
OTHER = WaitingRun(run_id="dogs-1", job="train", project="sound", resource="burst")


def test_each_run_of_the_project_gets_one_event():
    owner = (PROJECT, "vision")
    elsewhere = replace(WAITING, resource="other")
    first = decide_budgets([NOTHING], NO_COSTS, "2026-11", [WAITING, elsewhere, OTHER])
    assert first.events == ((WAITING, owner),)
    told = replace(WAITING, reported=(first.used[owner],))
    again = decide_budgets([NOTHING], NO_COSTS, "2026-11", [told])
    assert (set(again.used), again.events) == ({owner}, ())
    later = decide_budgets([NOTHING], NO_COSTS, "2026-12", [told])
    assert later.events == ((told, owner),)


def test_all_runs_of_a_resource_get_an_event():
    nothing = Budget(owner=(RESOURCE, "burst"), micros=0, currency="USD")
    made = decide_budgets([nothing], NO_COSTS, "2026-11", [WAITING, OTHER])
    assert [run.run_id for run, _ in made.events] == ["cats-1", "dogs-1"]
    assert not decide_budgets([], NO_COSTS, "2026-11", [WAITING]).events


def test_leases_of_a_site_that_has_not_listed_its_machines_stop_rentals_without_an_event():
    budget, owner = replace(NOTHING, micros=10), (PROJECT, "vision")
    spent = {(PROJECT, "vision", "USD"): 6}
    known = BudgetCosts(spent=(spent,), unlisted={"aws": {}})
    assert not decide_budgets([budget], known, "2026-11", [WAITING]).doubtful
    open_there = replace(known, unlisted={"aws": spent, "gcp": {}})
    made = decide_budgets([budget], open_there, "2026-11", [WAITING])
    assert (made.used, made.events) == ({}, ())
    assert made.doubtful == {
        owner: "the budget of project vision for 2026-11 may be used up: which machines of aws have ended is"
        " not known until the provider lists them"
    }
    listed = decide_budgets([budget], BudgetCosts(spent=(spent, spent)), "2026-11", [WAITING])
    assert (set(listed.used), listed.doubtful) == ({owner}, {})
