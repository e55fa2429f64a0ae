"""Pipelines at a batch site, with containers that are processes and a real S3 server."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from gridmill import plugins
from gridmill.bootstrap.node import EmbeddedNode, embed
from gridmill.declarations import read_pipeline
from gridmill.domain.frozen import replace
from gridmill.domain.lease_cost import CostBy
from gridmill.domain.project import DEFAULT, Project
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import FINISHED_RUNS, AttemptState, JobState, RunState
from gridmill.domain.views import JobView, RunView
from gridmill.errors import ConflictError, NotFoundError, PipelineError
from gridmill.ports.batch import QueueProblem
from gridmill.settings import read_settings
from gridmill.transfer.bucket import BucketClient
from tests.e2e.conftest import PATIENCE_SECONDS, eventually
from tests.kit.batch_processes import ProcessBatch
from tests.kit.objectstore import HOW_TO_GET_IT, KEYS, make_bucket, object_store

pytestmark = pytest.mark.e2e
PIPELINE = """
pipeline: p
resources:
  burst: {type: command, site: batch, cpus: 1, memory: 256MiB}
jobs:
  one: {command: "seq 20000 > $GRIDMILL_OUTPUT/in"}
  two:
    resource: burst
    needs: [one]
    resumable: true
    command: "echo begun; tac $GRIDMILL_INPUT_ONE/in > $GRIDMILL_OUTPUT/out; RUN"
"""
STEP = "$GRIDMILL_CHECKPOINTS/step"
ONCE = f"[ -e {STEP} ] || {{ echo 1 > {STEP}; echo waits; exec sleep 600; }}"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with object_store() as endpoint:
        if endpoint is None:
            pytest.skip(HOW_TO_GET_IT)
        yield endpoint


class Home:
    """A home with the site `batch`."""

    def __init__(self, folder: Path, endpoint: str, queue: str, **more: str) -> None:
        self.folder = folder
        self.bucket = self.make_bucket(endpoint)
        self.settings = read_settings(
            {"GRIDMILL_HOME": str(folder / "home"), "GRIDMILL_GRACE": "1", "GRIDMILL_OBSERVE": "0.2"}
        )
        self.node = self.open()
        settings = {
            "service": "processes",
            **({"queue": queue} if queue else {}),
            "bucket": f"{self.bucket.url}/some/prefix",
            "bucket_endpoint": endpoint,
            "python": sys.executable,
            "cpus": "1",
            "memory": "1GiB",
            "poll": "100ms",
            "checkpoints": "100ms",
            **more,
        }
        self.prepare()
        self.site = Site(name="batch", kind=SiteKind.BATCH, settings=settings)
        self.node.grid.add_site(self.site)

    def make_bucket(self, endpoint: str) -> BucketClient:
        """A new bucket on the server."""
        bucket = f"batch-{uuid4().hex}"
        make_bucket(endpoint, bucket)
        return BucketClient(f"s3://{bucket}", {"endpoint": endpoint})

    def prepare(self) -> None:
        """What is done before the site is added."""

    def open(self) -> EmbeddedNode:
        self.node = embed(self.settings)
        return self.node

    def start(self, command: str = "true") -> str:
        project = self.folder / "project"
        project.mkdir(exist_ok=True)
        (project / "pipeline.yaml").write_text(PIPELINE.replace("RUN", command))
        return self.node.grid.start_run(read_pipeline(project / "pipeline.yaml")).run.id

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        assert eventually(condition, PATIENCE_SECONDS), f"waited in vain until {what}"

    def ended(self, run: str) -> RunView:
        self.wait(lambda: self.node.grid.run(run).run.state in FINISHED_RUNS, "the run ends")
        return self.node.grid.run(run)

    def log(self, run: str) -> str:
        return "".join(entry.text for entry in self.node.grid.logs(run, job="two"))

    def running(self) -> list[str]:
        """The jobs that have not ended at the service."""
        raise NotImplementedError

    def objects(self) -> list[str]:
        names = (name for page in self.bucket.names("some/prefix") for name in page)
        return [name for name in names if "/attempts/" in name]

    def close(self) -> None:
        for run in self.node.grid.runs().items:
            if run.state not in FINISHED_RUNS:
                self.node.grid.stop_run(run.id)
        self.wait(
            lambda: all(one.state in FINISHED_RUNS for one in self.node.grid.runs().items), "all runs end"
        )
        self.wait(lambda: not self.running(), "all jobs have ended")
        self.node.close()


class ProcessHome(Home):
    """A home whose batch service starts processes."""

    def __init__(self, folder: Path, endpoint: str, service: ProcessBatch, **more: str) -> None:
        self.service = service
        super().__init__(folder, endpoint, service.name, **more)

    def running(self) -> list[str]:
        return self.service.running()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessBatch]:
    monkeypatch.setitem(plugins.BATCHES, "processes", "tests.kit.batch_processes:make")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    made = ProcessBatch(uuid4().hex)
    yield made
    made.end()


@pytest.fixture
def home(tmp_path: Path, server: str, service: ProcessBatch) -> Iterator[ProcessHome]:
    (tmp_path / "home").mkdir()
    made = ProcessHome(tmp_path, server, service)
    yield made
    made.close()


def two(view: RunView) -> JobView:
    return next(one for one in view.jobs if one.job.job.name == "two")


def test_a_job_runs_as_one_job_of_the_service_and_its_results_come_home(home: ProcessHome) -> None:
    run = home.start()
    view = home.ended(run)
    job = two(view)
    assert view.run.state is RunState.SUCCEEDED, job.job.message
    output = home.settings.root / job.artifacts[0].output.uri / "out"
    assert output.read_text().split()[:2] == ["20000", "19999"]
    assert home.log(run) == "begun\n"
    assert len(home.service.jobs) == 1
    transfers = job.attempts[0].transfers
    assert transfers is not None
    assert transfers.upload.transferred_bytes > 0
    assert transfers.download.transferred_bytes > 0
    home.wait(lambda: not home.objects(), "the objects of the attempt are deleted")


def test_a_removed_site_leaves_nothing_in_the_bucket(home: ProcessHome) -> None:
    home.ended(home.start())
    home.wait(
        lambda: all(one.site != "batch" for one in home.node.grid.deployments().items),
        "the deployment is released",
    )
    assert any(page for page in home.bucket.names("some/prefix"))
    for resource in home.node.grid.resources().items:
        if resource.site == "batch":
            home.node.grid.remove_resource(resource.name)
    home.node.grid.remove_site("batch")
    home.wait(lambda: not any(page for page in home.bucket.names("some/prefix")), "the bucket is empty")


def test_a_lost_answer_submits_no_second_job(home: ProcessHome) -> None:
    home.service.loses_answers = 1
    view = home.ended(home.start())
    assert view.run.state is RunState.SUCCEEDED
    assert len(home.service.jobs) == 1


def test_a_new_control_node_continues_with_the_job(home: ProcessHome) -> None:
    go = home.folder / "go"
    run = home.start(f"echo waits; while [ ! -e '{go}' ]; do sleep 0.1; done")
    home.wait(lambda: "waits" in home.log(run), "the job runs")
    home.node.close(tear_down=False)
    go.touch()
    home.open()
    view = home.ended(run)
    assert view.run.state is RunState.SUCCEEDED, two(view).job.message
    assert len(home.service.jobs) == 1
    assert home.log(run) == "begun\nwaits\n"


def test_a_job_that_an_old_copy_of_the_records_does_not_know_is_shown_and_not_ended(
    home: ProcessHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridmill.sites.batch.upkeep._LOOK_SECONDS", 0.1)
    run = home.start("echo waits; exec sleep 600")
    home.wait(lambda: "waits" in home.log(run), "the job runs")
    [old] = home.service.running()
    home.node.close(tear_down=False)
    for name in ("attempts", "pods"):
        shutil.rmtree(home.settings.home / "batch" / "batch" / name)
    home.open()

    def shown() -> list[str]:
        return [one for one in home.node.grid.control().problems if "To end it:" in one]

    home.wait(lambda: bool(shown()), "the job is shown")
    assert all(one.endswith(f"To end it: end {old}") for one in shown())
    assert old in home.service.running()
    home.service.cancel(old, "by hand")
    home.wait(lambda: not shown(), "the job is not shown any more")


def test_a_site_that_is_configured_again_continues_with_the_job(home: ProcessHome) -> None:
    go = home.folder / "go"
    run = home.start(f"echo waits; while [ ! -e '{go}' ]; do sleep 0.1; done; echo went")
    home.wait(lambda: "waits" in home.log(run), "the job runs")
    elsewhere = replace(home.site, settings={**home.site.settings, "bucket": f"{home.bucket.url}/other"})
    with pytest.raises(ConflictError, match="another 'bucket' of site 'batch'"):
        home.node.grid.add_site(elsewhere, replace=True)
    home.node.grid.add_site(
        replace(home.site, settings={**home.site.settings, "poll": "200ms"}), replace=True
    )
    go.touch()
    view = home.ended(run)
    assert view.run.state is RunState.SUCCEEDED, two(view).job.message
    assert len(home.service.jobs) == 1
    assert home.log(run) == "begun\nwaits\nwent\n"


def test_a_reclaimed_machine_costs_no_attempt_and_the_job_resumes(home: ProcessHome) -> None:
    run = home.start(ONCE)
    home.wait(lambda: "waits" in home.log(run), "the job runs")
    home.service.reclaim(home.service.running()[0])
    view = home.ended(run)
    job = two(view)
    assert view.run.state is RunState.SUCCEEDED, job.job.message
    assert [one.state for one in job.attempts] == [AttemptState.LOST, AttemptState.SUCCEEDED]
    assert "Host EC2 (instance i-1) terminated" in job.attempts[0].message
    assert (job.job.losses, job.job.interruptions) == (0, 1)


def test_a_stopped_job_is_cancelled_at_the_service(home: ProcessHome) -> None:
    run = home.start("echo waits; exec sleep 600")
    home.wait(lambda: "waits" in home.log(run), "the job runs")
    home.node.grid.stop_run(run)
    view = home.ended(run)
    assert two(view).job.state is JobState.STOPPED
    home.wait(lambda: not home.service.running(), "the job has ended at the service")


def test_a_job_that_stays_in_the_queue_fails_with_the_diagnosis(
    tmp_path: Path, server: str, service: ProcessBatch
) -> None:
    (tmp_path / "home").mkdir()
    home = ProcessHome(tmp_path, server, service, queue_timeout="2s")
    service.holds = True
    service.problem = QueueProblem(message="compute environment c is DISABLED, VALID", hopeless=True)
    view = home.ended(home.start())
    job = two(view)
    assert job.job.state is JobState.FAILED
    assert "compute environment c is DISABLED" in job.job.message
    assert all(one.phase == "ended" for one in service.jobs.values())
    home.close()


def test_with_a_shared_root_no_data_passes_through_the_bucket(
    tmp_path: Path, server: str, service: ProcessBatch
) -> None:
    folder = tmp_path / "a folder with späces"
    (folder / "home").mkdir(parents=True)
    home = ProcessHome(folder, server, service, shared_root=str(folder / "home" / "storage"))
    assert str(home.settings.root) == str(folder / "home" / "storage")
    view = home.ended(home.start())
    job = two(view)
    assert view.run.state is RunState.SUCCEEDED, job.job.message
    output = home.settings.root / job.artifacts[0].output.uri / "out"
    assert output.read_text().split()[:2] == ["20000", "19999"]
    names = [name for page in home.bucket.names("some/prefix") for name in page]
    assert not [name for name in names if "/chunks/" in name or "/packs/" in name]
    home.close()


def test_a_container_that_does_not_see_the_shared_root_fails_with_the_path(
    tmp_path: Path, server: str, service: ProcessBatch
) -> None:
    (tmp_path / "home").mkdir()
    home = ProcessHome(tmp_path, server, service, shared_root=str(tmp_path / "elsewhere"))
    view = home.ended(home.start())
    assert view.run.state is RunState.FAILED
    message = two(view).job.message
    assert f"does not see the storage root of the home at {tmp_path / 'elsewhere'}" in message
    home.close()


def test_a_job_gets_a_secret_that_is_in_no_object(home: ProcessHome) -> None:
    home.node.grid.add_secret("token", "T0P-SECRET-VALUE")
    project = home.folder / "project"
    project.mkdir()
    text = PIPELINE.replace(
        '    command: "echo begun; tac $GRIDMILL_INPUT_ONE/in > $GRIDMILL_OUTPUT/out; RUN"',
        "    command:\n"
        "      run: 'test $(printf %s $TOKEN | wc -c) = 16; echo the value is $TOKEN'\n"
        "      env: {TOKEN: {secret: token}}",
    )
    (project / "pipeline.yaml").write_text(text)
    run = home.node.grid.start_run(read_pipeline(project / "pipeline.yaml")).run.id
    kept: dict[str, bytes] = {}

    def ended() -> bool:
        for name in home.objects():
            with suppress(NotFoundError):
                kept[name] = home.bucket.get(name, 1 << 20)
        return home.node.grid.run(run).run.state in FINISHED_RUNS

    home.wait(ended, "the run ends")
    view = home.node.grid.run(run)
    assert view.run.state is RunState.SUCCEEDED, two(view).job.message
    assert "the value is ***" in home.log(run)
    assert kept
    assert not [name for name, content in kept.items() if b"T0P-SECRET" in content]


def test_a_job_with_several_ranks_is_refused_before_any_job_starts(home: ProcessHome) -> None:
    project = home.folder / "project"
    project.mkdir()
    text = PIPELINE.replace(
        '    command: "echo begun; tac $GRIDMILL_INPUT_ONE/in > $GRIDMILL_OUTPUT/out; RUN"',
        "    command: {run: 'true', workers: 2}",
    )
    (project / "pipeline.yaml").write_text(text)
    pipeline = read_pipeline(project / "pipeline.yaml")
    for call in (home.node.grid.plan_run, home.node.grid.start_run):
        with pytest.raises(PipelineError) as caught:
            call(pipeline)
        assert "cannot run at site batch: service 'processes' runs no jobs with several" in str(caught.value)
        assert caught.value.place.endswith("pipeline.yaml:11: jobs.two.command.workers")
        assert "another site" in caught.value.hint
    assert not home.node.grid.runs().items


def test_the_cost_of_a_job_is_its_time_at_the_price_of_the_site(
    tmp_path: Path, server: str, service: ProcessBatch
) -> None:
    (tmp_path / "home").mkdir()
    home = ProcessHome(tmp_path, server, service, price_per_hour="3.60", currency="EUR")
    home.ended(home.start())
    [row] = home.node.grid.costs(by=CostBy.JOB)
    assert (row.name, row.currency, row.micros) == ("p-1/two", "EUR", 60_000)  # at least a minute is billed
    assert (row.unknown, row.unknown_charges) == (0, 1)
    assert not home.node.grid.leases().items
    home.close()


def test_a_job_waits_if_the_budget_of_its_project_is_used_up(
    tmp_path: Path, server: str, service: ProcessBatch
) -> None:
    (tmp_path / "home").mkdir()
    home = ProcessHome(tmp_path, server, service, price_per_hour="3.60", currency="EUR")
    home.node.grid.configure_project(Project(name=DEFAULT, budget_micros=60_000, currency="EUR"))
    assert home.ended(home.start()).run.state is RunState.SUCCEEDED
    run = home.start("echo again")

    def reason() -> str:
        return two(home.node.grid.run(run)).why

    home.wait(lambda: "the budget of project" in reason(), "the job waits for the budget")
    assert len(service.jobs) == 1
    home.node.grid.configure_project(Project(name=DEFAULT, budget_micros=120_000, currency="EUR"))
    assert home.ended(run).run.state is RunState.SUCCEEDED
    home.close()
