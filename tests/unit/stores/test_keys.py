"""Each class of noun has a key, a parent and a liveness; and what a noun uses up of numbers."""

from dataclasses import replace
from typing import get_args

import pytest

from gridmill.domain.lease import LeaseState
from gridmill.domain.states import AttemptState, DeploymentState, JobState, RunState
from gridmill.ports.store import Delete, Noun, Put, is_live, key_of, parent_of
from gridmill.stores.compare_and_set import numbers_used, rounds
from gridmill.testing.store_samples import (
    a_deployment,
    a_job_run,
    a_lease,
    a_resource,
    a_run,
    an_artifact,
    an_attempt,
    one_of_each,
)


def test_the_samples_have_every_class_of_noun():
    assert {type(noun) for noun in one_of_each()} == set(get_args(Noun))


def test_keys_and_parents():
    assert {type(n).__name__: (key_of(n), parent_of(n)) for n in one_of_each()} == {
        "Site": ("local", ""),
        "Resource": ("trainers", ""),
        "Pipeline": ("weather", ""),
        "Project": ("vision", ""),
        "Schedule": ("weather", ""),
        "Backfill": ("weather", ""),
        "Chunk": ("weather/2013-01-01..2013-01-08", "weather"),
        "Run": ("weather-1", "weather"),
        "JobRun": ("weather-1/work", "weather-1"),
        "Attempt": ("weather-1.work.1", "weather-1"),
        "Deployment": ("trainers-1", "trainers"),
        "Artifact": ("weather/model@1", "weather/model"),
        "Alias": ("weather/model@prod", "weather/model"),
        "Alterations": ("weather/hourly", ""),
        "Latest": ("weather/model", ""),
        "CodeList": ("c" * 64, ""),
        "Provenance": (f"weather/model#{'f' * 64}", "weather/model"),
        "Origin": ("weather", ""),
        "Measurement": ("weather-1.work.1", "training/lstm"),
        "Lease": ("lease-1", "aws"),
        "Secret": ("db-password", ""),
        "Service": ("rain", ""),
        "Calibration": ("weather/lstm@2 on CPU, 4 CPUs", "weather/lstm@2"),
    }


def test_what_is_live_by_its_class():
    assert {type(noun).__name__ for noun in one_of_each() if not is_live(noun)} == {
        "Alias",
        "Alterations",
        "Artifact",
        "Latest",
        "Origin",
        "Measurement",
        "Pipeline",
        "Provenance",
        "CodeList",
        "Secret",
        "Calibration",
    }
    assert all(is_live(a_job_run(state=state)) for state in JobState)


@pytest.mark.parametrize(
    ("make", "live"),
    [
        (lambda state: a_run(state=state), {RunState.ACTIVE, RunState.STOPPING}),
        (lambda state: an_attempt(state=state), {AttemptState.PLACED, AttemptState.RUNNING}),
        (lambda state: a_deployment(state=state), {*DeploymentState} - {DeploymentState.GONE}),
        (lambda state: a_lease(state=state), {*LeaseState} - {LeaseState.CLOSED}),
    ],
    ids=["run", "attempt", "deployment", "lease"],
)
def test_what_is_live_by_its_state(make, live):
    states = type(next(iter(live)))
    assert {state for state in states if is_live(make(state))} == live


def test_only_new_runs_deployments_and_leases_use_up_numbers():
    nouns = (a_run(4), a_run(2), a_deployment(7), an_artifact(9), a_lease(3))
    new = [Put(noun=noun, expected=0) for noun in nouns]
    old = [Put(noun=a_run(11), expected=3), Delete(noun=type(a_run()), key="weather-12", expected=1)]
    assert numbers_used([*new, *old]) == {"weather": 4, "order": 4, "trainers": 7, "lease": 3}
    assert numbers_used([Put(noun=replace(a_run(1), id="odd"), expected=0)]) == {"order": 1}


def test_rounds_never_hold_a_record_twice_and_keep_the_order():
    a, b = a_resource("a"), a_resource("b")
    changes = [
        Put(noun=a, expected=0),
        Put(noun=b, expected=0),
        Put(noun=a, expected=1),
        Put(noun=a, expected=2),
    ]
    assert [len(some) for some in rounds(changes)] == [2, 1, 1]
    assert [change for some in rounds(changes) for change in some] == changes
    assert [*rounds([])] == []
