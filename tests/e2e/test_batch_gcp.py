"""Jobs at Google Cloud Batch: pipelines over the simulated service, whose containers are processes, and a
real S3 server."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.domain.states import AttemptState, RunState
from gridmill.testing.cloud.cloud_faults import BatchFaults
from gridmill.testing.cloud.containers import Image
from gridmill.testing.cloud.gcp_batch.simulation import GcpBatchSimulation, simulated_gcp_batch
from tests.e2e.test_batch_site import ONCE, Home, server, two
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
