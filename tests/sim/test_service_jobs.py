"""Jobs of pipelines that start and update services, on a simulated grid."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from test_races import job_of, run_of, simulation
from test_races import service as cases_of
from test_services import a_model, is_running
from test_versions import alias

from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.job import Job, JobKind
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun, Run
from gridmill.domain.service import Service, ServiceState
from gridmill.domain.service_features import FeatureRule, FeatureSettings
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.states import FINISHED_RUNS, JobState, RunState
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.errors import InputError
from gridmill.ports.store import Put
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

FOREVER = 1e9
FEATURES = ["temp", "wind"]


def behave(order: AttemptOrder) -> Behaviour:
    if order.job.service is not None:
        return Behaviour(seconds=FOREVER)
    if order.job.training is None:
        return Behaviour(seconds=1.0)
    details = {"features": FEATURES, "labels": ["rain"], "objective": "regression"}
    return Behaviour(
        seconds=1.0, outputs=(Output(kind=ArtifactKind.MODEL, uri=order.output_uri, details=details),)
    )


@pytest.fixture
def grid() -> Simulation:
    made = simulation(behave)
    versions = [a_model(1), a_model(2), a_model(3), a_model(4, ("temp", "cloud"))]
    made.store.commit([Put(noun=one, expected=0) for one in versions])
    return made


@pytest.fixture
def cases(grid: Simulation) -> Cases:
    return cases_of(grid)


def serve(model: str, *more: Job, pipeline: str = "p", **fields: object) -> Pipeline:
    spec = ServiceSpec(model=model, **fields)  # type: ignore[arg-type]
    return Pipeline(name=pipeline, jobs=(*more, Job(name="rain", service=spec)))


TRAIN = Job(name="train", training=TrainingSpec(dataset="w/data", model=ModelKind.LINEAR), memory_bytes=2**30)


def until(grid: Simulation, holds: Callable[[], bool]) -> None:
    assert grid.run_until(holds, at_most_steps=3000)


def ended(grid: Simulation, pipeline: Pipeline) -> tuple[Run, JobRun]:
    run = grid.submit(pipeline, force=False)
    until(grid, lambda: run_of(grid, run).state in FINISHED_RUNS)
    return run_of(grid, run), job_of(grid, run, "rain")


def test_a_run_starts_the_service_and_ends_when_it_answers(grid: Simulation, cases: Cases) -> None:
    run, job = ended(grid, serve("w/m@1", count="2"))
    view = cases.service("rain")
    assert (run.state, job.state, job.attempts) == (RunState.SUCCEEDED, JobState.SUCCEEDED, 0)
    assert view.state is ServiceState.RUNNING
    assert (view.service.version, view.service.replicas) == ("w/m@1", 2)
    assert view.service.declared_by == "p-1/rain"
    assert job.message == f"service rain serves w/m@1 at {view.url}"
    reports: list[tuple[object, ...]] = []
    cases._render = lambda *parts: str(reports.append(parts))
    cases.start_service("other", model="w/m@2")
    cases.report(run.id)
    assert reports[0][-1] == (cases.service("rain"),)


def test_a_second_run_without_a_change_changes_nothing(grid: Simulation, cases: Cases) -> None:
    ended(grid, serve("w/m@1"))
    before = cases.service("rain").service
    run, job = ended(grid, serve("w/m@1"))
    after = cases.service("rain").service
    assert (run.state, job.state) == (RunState.SUCCEEDED, JobState.UNCHANGED)
    assert replace(after, declared_by="", report=None) == replace(before, declared_by="", report=None)
    assert after.declared_by == "p-2/rain"


def test_another_version_and_other_settings_reach_the_service_by_a_rolling_update(
    grid: Simulation, cases: Cases
) -> None:
    ended(grid, serve("w/m@1"))
    before = cases.service("rain").service
    _, job = ended(grid, serve("w/m@2", settings=ServiceSettings(max_batch=7)))
    after = cases.service("rain").service
    assert job.state is JobState.SUCCEEDED
    assert (after.version, after.previous, after.settings.max_batch) == ("w/m@2", "w/m@1", 7)
    assert (after.run_id, after.port) == (before.run_id, before.port)
    assert after.generation > before.generation


def test_an_alias_is_followed(grid: Simulation, cases: Cases) -> None:
    cases.set_alias(alias("champion", 1))
    ended(grid, serve("w/m@champion"))
    assert cases.service("rain").service.follows == "w/m@champion"
    cases.set_alias(alias("champion", 2))
    until(
        grid, lambda: is_running(cases.service("rain")) and cases.service("rain").service.version == "w/m@2"
    )
    _, job = ended(grid, serve("w/m@champion"))
    assert job.state is JobState.UNCHANGED


def test_the_version_of_a_training_of_the_same_run_is_served(grid: Simulation, cases: Cases) -> None:
    output = Output(kind=ArtifactKind.DATASET, uri="datasets/w/data/1")
    data = Artifact(id="w/data@1", name="w/data", number=1, output=output, fingerprint="1")
    grid.store.commit([Put(noun=data, expected=0)])
    run, job = ended(grid, serve("train", TRAIN))
    assert (run.state, job.state) == (RunState.SUCCEEDED, JobState.SUCCEEDED), (run.message, job.message)
    assert cases.service("rain").service.version == "p/train@1"
    assert cases.service("rain").service.follows == ""


def test_another_signature_fails_the_job_and_the_service_goes_on(grid: Simulation, cases: Cases) -> None:
    ended(grid, serve("w/m@1"))
    run, job = ended(grid, serve("w/m@4"))
    assert (run.state, job.state) == (RunState.FAILED, JobState.FAILED)
    assert "service.model: w/m@4 cannot be served: it differs from w/m@1: the features `wind`" in job.message
    assert is_running(cases.service("rain"))
    with pytest.raises(
        InputError, match=r"service 'rain' cannot serve w/m@4: .*`wind` are missing"
    ) as refused:
        cases.start_run(serve("w/m@4"))
    assert refused.value.place.endswith("jobs.rain.service.model")


def test_a_version_that_cannot_be_loaded_fails_the_job_and_the_next_run_may_replace_it(
    grid: Simulation, cases: Cases
) -> None:
    ended(grid, serve("w/m@1"))
    grid.world.broken.add("w/m@2")
    _, job = ended(grid, serve("w/m@2"))
    assert job.state is JobState.FAILED
    assert "service rain cannot serve w/m@2" in job.message
    _, job = ended(grid, serve("w/m@3"))
    assert (job.state, cases.service("rain").service.version) == (JobState.SUCCEEDED, "w/m@3")


def test_a_service_of_another_pipeline_is_refused(grid: Simulation, cases: Cases) -> None:
    ended(grid, serve("w/m@1"))
    other = serve("w/m@2", pipeline="q")
    with pytest.raises(InputError, match=r"service 'rain' belongs to pipeline 'p' \(p-1/rain\)"):
        cases.start_run(other)
    _, job = ended(grid, other)
    assert job.state is JobState.FAILED
    assert "belongs to pipeline 'p'" in job.message
    assert cases.service("rain").service.version == "w/m@1"


def test_a_service_that_a_person_has_started_is_updated(grid: Simulation, cases: Cases) -> None:
    cases.start_service("rain", model="w/m@1")
    until(grid, lambda: is_running(cases.service("rain")))
    _, job = ended(grid, serve("w/m@2"))
    assert job.state is JobState.SUCCEEDED
    assert cases.service("rain").service.declared_by == "p-1/rain"


def test_two_runs_change_the_service_one_after_the_other(grid: Simulation, cases: Cases) -> None:
    first, second = (grid.submit(serve(model), force=False) for model in ("w/m@1", "w/m@2"))
    until(grid, lambda: run_of(grid, second).state in FINISHED_RUNS)
    assert run_of(grid, first).state is run_of(grid, second).state is RunState.SUCCEEDED
    assert cases.service("rain").service.version == "w/m@2"
    assert cases.service("rain").service.previous == "w/m@1"


def test_a_stopped_run_ends_its_job_and_leaves_the_service(grid: Simulation, cases: Cases) -> None:
    grid.world.broken.add("w/m@1")
    run = grid.submit(serve("w/m@1"), force=False)
    until(grid, lambda: grid.store.get(Service, "rain") is not None)
    grid.stop(run.id)
    until(grid, lambda: run_of(grid, run).state in FINISHED_RUNS)
    assert job_of(grid, run, "rain").state is JobState.STOPPED
    assert cases.service("rain").service.is_meant_to_run


def test_a_service_that_fits_on_no_machine_fails_the_job_with_the_reason(
    grid: Simulation, cases: Cases
) -> None:
    with grid.node.changing() as transaction:
        transaction.put(Resource(name="none", type=JobKind.SERVICE, memory_bytes=10**15))
    pipeline = serve("w/m@1")
    _, job = ended(grid, replace(pipeline, jobs=(replace(pipeline.jobs[0], resource="none"),)))
    assert job.state is JobState.FAILED
    assert "service rain does not run" in job.message


def test_a_job_whose_service_does_not_answer_in_its_time_fails(grid: Simulation, cases: Cases) -> None:
    pipeline = serve("w/m@1")
    slow = replace(pipeline, jobs=(replace(pipeline.jobs[0], timeout_seconds=1e-6),))
    _, job = ended(grid, slow)
    assert job.state is JobState.FAILED
    assert "the service did not answer within" in job.message


def test_a_port_of_another_service_is_refused_before_the_run(grid: Simulation, cases: Cases) -> None:
    cases.start_service("other", model="w/m@1", port=4000)
    with pytest.raises(InputError, match="port 4000 belongs to service 'other'") as refused:
        cases.start_run(serve("w/m@1", port=4000))
    assert refused.value.place.endswith("jobs.rain.service.port")
    assert "port 4000 belongs to service 'other'" in cases.plan_run(serve("w/m@1", port=4000)).jobs[0].problem


UNKNOWN = ServiceSettings(features=FeatureSettings(rules={"tmep": FeatureRule(max_age_seconds=3600.0)}))


def test_a_rule_for_an_unknown_feature_is_refused_before_the_run_and_by_the_job(
    grid: Simulation, cases: Cases
) -> None:
    pipeline = serve("w/m@1", settings=UNKNOWN)
    with pytest.raises(InputError, match="'tmep' is not a feature of w/m@1; did you mean `temp`") as refused:
        cases.start_run(pipeline)
    assert refused.value.place.endswith("jobs.rain.service.features.rules.tmep")
    assert "did you mean `temp`" in cases.plan_run(pipeline).jobs[0].problem
    # the check before the run does not know the version that a run makes
    _, job = ended(grid, pipeline)
    assert job.state is JobState.FAILED
    assert "service.features.rules.tmep: 'tmep' is not a feature of w/m@1" in job.message
    assert grid.store.get(Service, "rain") is None


def test_a_plan_states_what_a_run_does_with_the_service(grid: Simulation, cases: Cases) -> None:
    assert cases.plan_run(serve("w/m@1")).jobs[0].reason == "starts service rain"
    ended(grid, serve("w/m@1"))
    assert cases.plan_run(serve("w/m@2")).jobs[0].reason == "updates service rain, which serves w/m@1"
    same = cases.plan_run(serve("w/m@1")).jobs[0]
    assert (same.unchanged, same.reason) == (True, "service rain is as declared")
    with pytest.raises(InputError, match="reads 'w/unknown@3', which does not exist") as refused:
        cases.start_run(serve("w/unknown@3"))
    assert refused.value.place.endswith("jobs.rain.service.model")


def test_a_service_that_was_stopped_is_started_again_by_the_next_run(grid: Simulation, cases: Cases) -> None:
    ended(grid, serve("w/m@1"))
    cases.stop_service("rain")
    until(grid, lambda: cases.service("rain").state is ServiceState.STOPPED)
    _, job = ended(grid, serve("w/m@1"))
    assert job.state is JobState.SUCCEEDED
    assert is_running(cases.service("rain"))


def test_another_resource_needs_a_stop_first(grid: Simulation, cases: Cases) -> None:
    ended(grid, serve("w/m@1"))
    with grid.node.changing() as transaction:
        transaction.put(Resource(name="servers", type=JobKind.SERVICE))
    pipeline = serve("w/m@1")
    _, job = ended(grid, replace(pipeline, jobs=(replace(pipeline.jobs[0], resource="servers"),)))
    assert "already runs with other options: resource" in job.message


@pytest.mark.parametrize("commit", range(1, 12))
def test_the_control_node_may_be_killed_at_any_commit(grid: Simulation, commit: int) -> None:
    cases = cases_of(grid)
    ended(grid, serve("w/m@1"))
    run = grid.submit(serve("w/m@2"), force=False)
    for step in range(3000):
        if step == commit:
            grid.control_dies()
            cases = cases_of(grid)
        grid.advance()
        if run_of(grid, run).state in FINISHED_RUNS:
            break
    assert run_of(grid, run).state is RunState.SUCCEEDED
    service = cases.service("rain").service
    assert (service.version, service.generation) == ("w/m@2", 2)


def test_the_run_of_a_service_job_can_be_resumed(grid: Simulation, cases: Cases) -> None:
    ended(grid, serve("w/m@1"))
    run, _ = ended(grid, serve("w/m@4"))
    grid.resume(run.id)
    until(grid, lambda: run_of(grid, run).state in FINISHED_RUNS)
    assert job_of(grid, run, "rain").state is JobState.FAILED


def test_a_job_waits_until_its_service_is_stopped_and_starts_it_again(grid: Simulation, cases: Cases) -> None:
    ended(grid, serve("w/m@1"))
    first = cases.service("rain").service.run_id
    cases.stop_service("rain")
    assert cases.service("rain").state is ServiceState.STOPPING
    run = grid.submit(serve("w/m@2"), force=False)
    messages: set[str] = set()

    def has_ended() -> bool:
        messages.add(job_of(grid, run, "rain").message)
        return run_of(grid, run).state in FINISHED_RUNS

    until(grid, has_ended)
    assert "waits until service rain is stopped" in messages
    assert run_of(grid, run).state is RunState.SUCCEEDED
    after = cases.service("rain").service
    assert (after.version, after.is_meant_to_run) == ("w/m@2", True)
    assert after.run_id != first
