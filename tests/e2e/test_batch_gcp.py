"""Jobs at Google Cloud Batch: pipelines over the simulated service, whose containers are processes, and a
real S3 server."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.declarations import read_pipeline
from gridmill.domain.states import AttemptState, RunState
from gridmill.errors import PipelineError
from gridmill.testing.cloud.cloud_faults import BatchFaults
from gridmill.testing.cloud.cloud_storage import CloudStorageSimulation, simulated_cloud_storage
from gridmill.testing.cloud.containers import Image
from gridmill.testing.cloud.gcp_batch.simulation import GcpBatchSimulation, simulated_gcp_batch
from gridmill.transfer.bucket import BucketClient
from tests.e2e.test_batch_site import ONCE, PIPELINE, Home, server, two
from tests.kit.objectstore import KEYS

__all__ = ["server"]
pytestmark = pytest.mark.e2e


class GcpHome(Home):
    """A home with the site `batch` at a simulated Google Cloud Batch."""

    def __init__(self, folder: Path, endpoint: str, gcp: GcpBatchSimulation, **more: str) -> None:
        self.gcp = gcp
        (folder / "home").mkdir()
        settings = {
            "service": "gcp",
            "region": "us-central1",
            "project": gcp.project,
            "image": "gridmill:test",
            "endpoint_url": gcp.endpoint_url,
            "service_account_key": "${secret:gcp-key}",
            "spot": "true",
            **more,
        }
        super().__init__(folder, endpoint, "", **settings)

    def prepare(self) -> None:
        self.node.grid.add_secret("gcp-key", json.dumps(self.gcp.key_file()))

    def running(self) -> list[str]:
        return [one.name for one in self.gcp.jobs() if not one.state.is_over]


@pytest.fixture
def gcp(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcpBatchSimulation]:
    image = Image(environment={**KEYS, "PATH": os.environ["PATH"]})
    with simulated_gcp_batch(
        images={"gridmill:test": image}, faults=BatchFaults(notice_seconds=1.0)
    ) as simulation:
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        yield simulation


@pytest.fixture
def home(tmp_path: Path, server: str, gcp: GcpBatchSimulation) -> Iterator[GcpHome]:
    made = GcpHome(tmp_path, server, gcp)
    yield made
    made.close()


def test_a_run_at_google_survives_a_new_control_node_and_a_preempted_machine(home: GcpHome) -> None:
    run = home.start(ONCE)
    home.wait(lambda: "waits" in home.log(run), "the job runs")
    home.node.close(tear_down=False)
    [first] = home.running()
    home.gcp.preempt(first)
    home.gcp.wait(first)
    home.open()
    view = home.ended(run)
    job = two(view)
    assert view.run.state is RunState.SUCCEEDED, job.job.message
    assert [one.state for one in job.attempts] == [AttemptState.LOST, AttemptState.SUCCEEDED]
    assert "exit code 50001: the Spot machine was preempted" in job.attempts[0].message
    assert (job.job.losses, job.job.interruptions) == (0, 1)
    output = home.settings.root / job.artifacts[0].output.uri / "out"
    assert output.read_text().split()[:2] == ["20000", "19999"]


def test_a_lost_answer_of_google_submits_no_second_job(home: GcpHome) -> None:
    home.gcp.world.faults.lose_answers("jobs.create")
    assert home.ended(home.start()).run.state is RunState.SUCCEEDED
    assert len(home.gcp.jobs()) == 1
    assert not home.gcp.world.faults.planned


def test_a_stopped_job_ends_at_google(home: GcpHome) -> None:
    run = home.start("echo waits; exec sleep 600")
    home.wait(lambda: "waits" in home.log(run), "the job runs")
    home.node.grid.stop_run(run)
    home.ended(run)
    home.wait(lambda: not home.running(), "the job has ended at the service")


def test_with_a_mounted_file_system_the_jobs_use_the_storage_root_of_the_home(
    tmp_path: Path, server: str, gcp: GcpBatchSimulation
) -> None:
    root = tmp_path / "home" / "storage"
    mounted = {"nfs": "10.0.0.2:/vol1", "nfs_mount": str(tmp_path), "shared_root": str(root)}
    home = GcpHome(tmp_path, server, gcp, **mounted)
    view = home.ended(home.start())
    assert view.run.state is RunState.SUCCEEDED, two(view).job.message
    output = home.settings.root / two(view).artifacts[0].output.uri / "out"
    assert output.read_text().split()[:2] == ["20000", "19999"]
    names = [name for page in home.bucket.names("some/prefix") for name in page]
    assert not [name for name in names if "/chunks/" in name or "/packs/" in name]
    home.close()


def test_a_job_with_several_ranks_is_refused_at_google_before_anything_is_submitted(home: GcpHome) -> None:
    project = home.folder / "project"
    project.mkdir()
    text = PIPELINE.partition("    resumable")[0] + "    command: {run: 'true', workers: 2}\n"
    (project / "pipeline.yaml").write_text(text)
    pipeline = read_pipeline(project / "pipeline.yaml")
    for call in (home.node.grid.plan_run, home.node.grid.start_run):
        with pytest.raises(PipelineError, match="service 'gcp' runs no jobs with several ranks"):
            call(pipeline)
    assert not home.gcp.jobs()
    assert not home.objects()


class StorageHome(GcpHome):
    """A home with a bucket of Cloud Storage. The machines get tokens that are valid for five seconds."""

    def __init__(self, folder: Path, storage: CloudStorageSimulation, gcp: GcpBatchSimulation) -> None:
        self.storage, self.jobs = storage, storage.email
        super().__init__(folder, storage.endpoint_url, gcp)

    def make_bucket(self, endpoint: str) -> BucketClient:
        return BucketClient("gs://bucket", {"endpoint": endpoint})


@pytest.fixture
def storage(
    tmp_path: Path, gcp: GcpBatchSimulation, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StorageHome]:
    monkeypatch.setattr("gridmill.clouds.gcp.requests._BUCKET_SECONDS", 0.0)  # asks before each request
    for name in KEYS:
        monkeypatch.delenv(name)
    jobs = gcp.add_service_account("jobs")
    with simulated_cloud_storage(gcp.world.accounts, gcp.world.lock, jobs.email) as simulation:
        simulation.token_seconds = 5.0
        variables = {**simulation.variables(), "PATH": os.environ["PATH"]}
        gcp.add_image("gridmill:test", Image(environment=variables))
        made = StorageHome(tmp_path, simulation, gcp)
        yield made
        made.close()


def test_a_job_at_google_keeps_access_to_cloud_storage_longer_than_its_first_token(
    storage: StorageHome,
) -> None:
    run = storage.start(ONCE.replace("exec sleep 600", "while :; do echo works; sleep 0.2; done"))
    storage.wait(lambda: "works" in storage.log(run), "the job runs")
    first = len(storage.storage.issued)
    storage.wait(lambda: len(storage.storage.issued) > first + 2, "the container has other tokens")
    denied = len(storage.storage.issued)
    storage.gcp.revoke(storage.jobs)  # the container gets tokens that the bucket refuses
    storage.wait(lambda: storage.storage.refused > 2, "the bucket refuses access")
    storage.gcp.restore(storage.jobs)
    storage.wait(lambda: len(storage.storage.issued) > denied + 2, "the container has access again")
    [job] = storage.running()
    storage.gcp.preempt(job)
    view = storage.ended(run)
    assert view.run.state is RunState.SUCCEEDED, two(view).job.message
    assert [one.state for one in two(view).attempts] == [AttemptState.LOST, AttemptState.SUCCEEDED]
    output = storage.settings.root / two(view).artifacts[0].output.uri / "out"
    assert output.read_text().split()[:2] == ["20000", "19999"]
    storage.wait(
        lambda: not [one for one in storage.storage.objects if "/attempts/" in one],
        "the objects of the attempts are deleted",
    )


def test_a_new_key_of_the_home_is_used_while_a_job_runs(storage: StorageHome) -> None:
    go = storage.folder / "go"
    run = storage.start(f"echo waits; while [ ! -e '{go}' ]; do sleep 0.1; done")
    storage.wait(lambda: "waits" in storage.log(run), "the job runs")
    storage.gcp.revoke()
    grid = storage.node.grid
    storage.wait(lambda: any("batch" in one for one in grid.control().problems), "the problem is shown")
    go.touch()
    other = storage.gcp.add_service_account("renewed")
    grid.add_secret("gcp-key", json.dumps(storage.gcp.key_file(other)))
    view = storage.ended(run)
    assert view.run.state is RunState.SUCCEEDED, two(view).job.message
    assert len(storage.gcp.jobs()) == 1


def test_a_job_that_stays_queued_at_google_fails(
    tmp_path: Path,
    server: str,
    gcp: GcpBatchSimulation,
) -> None:
    gcp.world.faults.stuck_next = 1
    home = GcpHome(tmp_path, server, gcp, queue_timeout="2s")
    view = home.ended(home.start())
    assert view.run.state is RunState.FAILED
    assert "was queued at the batch service for" in two(view).job.message
    assert not home.running()
    home.close()
