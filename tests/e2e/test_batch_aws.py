"""Jobs at AWS Batch: pipelines over the simulated service, whose containers are processes, and over a real S3
server."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.domain.states import FINISHED_RUNS, AttemptState, RunState
from gridmill.testing.cloud.aws_batch.records import Kind
from gridmill.testing.cloud.aws_batch.simulation import AwsBatchSimulation, simulated_aws_batch
from gridmill.testing.cloud.cloud_faults import BatchFaults
from gridmill.testing.cloud.containers import Image
from tests.e2e.test_batch_site import ONCE, Home, server, two
from tests.kit.objectstore import KEYS

__all__ = ["server"]
pytestmark = pytest.mark.e2e


class AwsHome(Home):
    """A home with the site `batch` at a simulated AWS Batch."""

    def __init__(self, folder: Path, endpoint: str, aws: AwsBatchSimulation, **more: str) -> None:
        self.aws = aws
        (folder / "home").mkdir()
        settings = {
            "service": "aws",
            "region": "us-east-1",
            "image": "gridmill:test",
            "endpoint_url": aws.endpoint_url,
            **more,
        }
        super().__init__(folder, endpoint, settings.pop("queue", "q"), **settings)

    def running(self) -> list[str]:
        return [one.id for one in self.aws.jobs() if not one.status.is_over]


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsBatchSimulation]:
    path = os.pathsep.join(
        filter(None, (str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH")))
    )
    image = Image(environment={**KEYS, "PATH": os.environ["PATH"], "PYTHONPATH": path})
    faults = BatchFaults(notice_seconds=1.0)
    with simulated_aws_batch(images={"gridmill:test": image}, faults=faults) as simulation:
        simulation.add_environment("c", kind=Kind.SPOT)
        simulation.add_queue("q", "c")
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        # the API and the bucket of the home have the same credentials
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", simulation.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", simulation.secret_key)
        yield simulation


@pytest.fixture
def home(tmp_path: Path, server: str, aws: AwsBatchSimulation) -> Iterator[AwsHome]:
    made = AwsHome(tmp_path, server, aws)
    yield made
    made.close()


def test_a_run_at_aws_survives_a_new_control_node_and_a_reclaimed_machine(home: AwsHome) -> None:
    run = home.start(ONCE)
    home.wait(lambda: "waits" in home.log(run), "the job runs")
    home.node.close(tear_down=False)
    [first] = home.running()
    home.aws.reclaim(first)
    home.aws.wait(first)
    home.open()
    view = home.ended(run)
    job = two(view)
    assert view.run.state is RunState.SUCCEEDED, job.job.message
    assert [one.state for one in job.attempts] == [AttemptState.LOST, AttemptState.SUCCEEDED]
    assert "Host EC2" in job.attempts[0].message
    assert (job.job.losses, job.job.interruptions) == (0, 1)
    output = home.settings.root / job.artifacts[0].output.uri / "out"
    assert output.read_text().split()[:2] == ["20000", "19999"]


class ProfileHome(AwsHome):
    """A home whose credentials are only in a profile."""

    def prepare(self) -> None:
        file = self.folder / "credentials"
        file.write_text(
            f"[other]\naws_access_key_id = {self.aws.access_key}\n"
            f"aws_secret_access_key = {self.aws.secret_key}\n"
        )
        os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(file)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            del os.environ[name]


def test_the_bucket_uses_the_profile_too(
    tmp_path: Path, server: str, aws: AwsBatchSimulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "")
    home = ProfileHome(tmp_path, server, aws, profile="other")
    assert home.ended(home.start()).run.state is RunState.SUCCEEDED
    home.close()


def test_a_lost_answer_of_aws_submits_no_second_job(home: AwsHome) -> None:
    home.aws.world.faults.lose_answers("SubmitJob")
    assert home.ended(home.start()).run.state is RunState.SUCCEEDED
    assert len(home.aws.jobs()) == 1
    assert not home.aws.world.faults.planned


def test_a_stopped_job_ends_at_aws(home: AwsHome) -> None:
    run = home.start("echo waits; exec sleep 600")
    home.wait(lambda: "waits" in home.log(run), "the job runs")
    home.node.grid.stop_run(run)
    home.ended(run)
    home.wait(lambda: not home.running(), "the job has ended at the service")


def test_a_job_that_stays_runnable_at_aws_fails_with_the_reason(
    tmp_path: Path,
    server: str,
    aws: AwsBatchSimulation,
) -> None:
    home = AwsHome(tmp_path, server, aws, queue_timeout="2s")
    aws.change_environment("c", is_valid=False, status_reason="CLIENT_ERROR - no role")
    run = home.start()
    home.wait(lambda: home.node.grid.run(run).run.state in FINISHED_RUNS, "the run ends")
    message = two(home.node.grid.run(run)).job.message
    assert "compute environment c is" in message
    assert "CLIENT_ERROR - no role" in message
    assert not home.running()
    home.close()
