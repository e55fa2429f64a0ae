"""Services of versions with their own code, and the events of drift, on a simulated grid."""

import pytest
from test_services import a_model, cases, grid, is_running, started, until
from test_settings_of_services import order_now
from test_versions import alias

from gridmill.codec import to_builtins
from gridmill.control.steps.services import ENVIRONMENT_SECONDS, note_report
from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.drift import FeatureDrift, VersionDrift
from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import EventType, PodEvent
from gridmill.domain.run import JobRun
from gridmill.domain.service import JOB
from gridmill.domain.service_settings import ServiceSettings
from gridmill.errors import ConflictError, InputError
from gridmill.ports.store import Put
from gridmill.testing.simulation import Simulation

__all__ = ["cases", "grid"]
TRUSTED = ServiceSettings(trust=True)


def test_a_version_with_its_own_code_is_served_only_with_trust(grid: Simulation, cases: Cases) -> None:
    code = [a_model(8, predict="code/m.py:predict"), a_model(9, predict="model.pkl", environment="numpy\n")]
    grid.store.commit([Put(noun=one, expected=0) for one in code])
    with pytest.raises(InputError, match="w/m@8 predicts with its own code") as caught:
        cases.start_service("rain", model="w/m@8")
    assert "--trust" in caught.value.hint
    started(grid, cases)
    assert [one.trust for one in order_now(grid).versions] == [False]
    with pytest.raises(InputError, match="own code"):
        cases.update_service("rain", model="w/m@8")
    cases.update_service("rain", model="w/m@8", settings=TRUSTED)
    until(grid, cases, is_running)
    assert [one.trust for one in order_now(grid).versions] == [True]
    usual = order_now(grid).start_seconds
    cases.update_service("rain", model="w/m@9")
    until(grid, cases, is_running)
    assert order_now(grid).start_seconds == ENVIRONMENT_SECONDS > usual


def test_a_followed_version_with_its_own_code_is_not_served_without_trust(
    grid: Simulation, cases: Cases
) -> None:
    grid.store.commit([Put(noun=a_model(8, predict="code/m.py:predict"), expected=0)])
    cases.set_alias(alias("champion", 1))
    before = started(grid, cases, "w/m@champion")
    cases.set_alias(alias("champion", 8))
    view = until(grid, cases, lambda view: view.service.refusal != "")
    assert (view.service.version, view.service.generation) == ("w/m@1", before.service.generation)
    assert "gridmill update service rain --model w/m@champion --trust" in view.message
    cases.update_service("rain", model="w/m@champion", settings=TRUSTED)
    view = until(grid, cases, is_running)
    assert (view.service.version, view.service.refusal) == ("w/m@8", "")


def test_trust_is_not_withdrawn_from_code_that_is_served(grid: Simulation, cases: Cases) -> None:
    grid.store.commit([Put(noun=a_model(8, predict="code/m.py:predict"), expected=0)])
    started(grid, cases, "w/m@8", settings=TRUSTED)
    with pytest.raises(InputError, match="w/m@8 predicts with its own code"):
        cases.update_service("rain", settings=ServiceSettings(trust=False))
    cases.update_service("rain", model="w/m@1", settings=ServiceSettings(trust=False))
    until(grid, cases, is_running)
    with pytest.raises(InputError, match="w/m@8 predicts with its own code"):
        cases.update_service("rain", canary="w/m@8")


def test_a_rollback_to_code_that_is_no_longer_trusted_is_refused_and_the_version_still_serves(
    grid: Simulation, cases: Cases
) -> None:
    grid.store.commit([Put(noun=a_model(8, predict="code/m.py:predict"), expected=0)])
    started(grid, cases, "w/m@8", settings=TRUSTED)
    cases.update_service("rain", model="w/m@1", settings=ServiceSettings(trust=False))
    until(grid, cases, is_running)
    with pytest.raises(ConflictError, match="w/m@8, predicts with its own code") as caught:
        cases.rollback_service("rain")
    assert "gridmill update service rain --model w/m@8 --trust" in caught.value.hint
    assert is_running(cases.service("rain"))
    cases.update_service("rain", model="w/m@8", settings=TRUSTED)
    assert until(grid, cases, is_running).service.version == "w/m@8"


def test_a_rate_or_a_range_for_a_version_with_its_own_code_needs_a_measurement_as_any_other(
    grid: Simulation, cases: Cases
) -> None:
    grid.store.commit([Put(noun=a_model(8, predict="code/m.py:predict"), expected=0)])
    with pytest.raises(InputError, match="w/m@8 predicts with its own code"):
        cases.start_service("rain", model="w/m@8", rate=10.0)
    with pytest.raises(ConflictError, match="w/m@8 was not measured"):
        cases.start_service("rain", model="w/m@8", rate=10.0, settings=TRUSTED)
    started(grid, cases, "w/m@8", settings=TRUSTED)
    with pytest.raises(ConflictError, match="w/m@8 was not measured"):
        cases.update_service("rain", replicas=3, least_replicas=1)


def test_a_drift_that_begins_or_ends_is_an_event_once(grid: Simulation, cases: Cases) -> None:
    view = started(grid, cases)
    assert view.service.report is not None
    calm = VersionDrift(label="w/m@1", rows=900, features=(FeatureDrift(name="temp", psi=0.01),))
    drifting = replace(calm, features=(FeatureDrift(name="temp", psi=0.4),), drifting=("temp",))
    messages: list[str] = []
    for drift in (calm, drifting, drifting, calm, calm):
        report = to_builtins(replace(view.service.report, drift=(drift,)))
        with cases._node.changing() as transaction:
            job_run = transaction.get(JobRun, f"{view.service.run_id}/{JOB}")
            event = PodEvent(
                number=1,
                attempt_id=view.service.reported_by,
                token="",
                type=EventType.REPORT,
                time=0.0,
                body={"report": report},
            )
            note_report(transaction, job_run, event)
            messages += [str(one.body["message"]) for one in transaction.events]
    assert messages == [
        "drift of w/m@1 begins: yes: temp 0.40 (PSI of 900 rows; limit 0.25)",
        "drift of w/m@1 ends: no: temp 0.01 (PSI of 900 rows; limit 0.25)",
    ]
    shown = cases.service("rain").service.report
    assert shown is not None
    assert shown.drift == (calm,)
