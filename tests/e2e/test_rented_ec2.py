"""A job on a machine of EC2: the whole way from a pipeline to the bill, against the simulated EC2 with real
machines."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.bootstrap.node import EmbeddedNode, embed
from gridmill.declarations import read_pipeline
from gridmill.domain.frozen import replace
from gridmill.domain.lease import LeaseState, TryState
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import FINISHED_RUNS, AttemptState, RunState
from gridmill.domain.views import RunView
from gridmill.settings import read_settings
from gridmill.testing.cloud.ec2.simulation import EC2Simulation, simulated_ec2
from gridmill.testing.cloud.namespace_machines import NamespaceMachines, why_no_machines
from gridmill.transfer.bucket import BucketClient
from tests.e2e.conftest import PATIENCE_SECONDS, eventually
from tests.kit.objectstore import HOW_TO_GET_IT, KEYS, make_bucket, object_store

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_machines()), reason=why_no_machines() or "there are machines"),
]
PIPELINE = """
pipeline: p
resources:
  burst:
    {type: command, site: aws, cpus: 1, memory: 256MiB, keep: 0s, settings: {instance_type: t3.micro SPOT}}
jobs:
  one: {command: "seq 200000 > $GRIDMILL_OUTPUT/in"}
  two:
    resource: burst
    needs: [one]
    resumable: true
    command: "echo begun on $(hostname); tac $GRIDMILL_INPUT_ONE/in > $GRIDMILL_OUTPUT/out; RUN"
"""


class Account:
    """A home with the site `aws`, whose machines belong to a simulated EC2."""

    def __init__(self, folder: Path, ec2: EC2Simulation, host: NamespaceMachines) -> None:
        self.folder, self.ec2, self.host = folder, ec2, host
        home = str(folder / "home")
        self.settings = read_settings(
            {"GRIDMILL_HOME": home, "GRIDMILL_GRACE": "1", "GRIDMILL_OBSERVE": "0.2"}
        )
        self.node = self.open()
        self.node.grid.add_secret("aws-key", ec2.secret_key)
        given = {
            "provider": "aws",
            "regions": "us-east-1",
            "endpoint_url": ec2.endpoint_url,
            "access_key_id": ec2.access_key,
            "secret_access_key": "aws-key",
            "python": sys.executable,
        }
        self.node.grid.add_site(Site(name="aws", kind=SiteKind.CLOUD, settings=given))

    def export_to(self, url: str, endpoint: str) -> None:
        """Machines export results and checkpoints to this bucket while the control node is away."""
        [site] = [one for one in self.node.grid.sites().items if one.name == "aws"]
        settings = {**site.settings, "export": url, "endpoint": endpoint}
        self.node.grid.add_site(replace(site, settings=settings), replace=True)

    def open(self) -> EmbeddedNode:
        self.node = embed(self.settings)
        return self.node

    def start(self, command: str = "true", *, spot: bool = False) -> str:
        project = self.folder / "project"
        project.mkdir(exist_ok=True)
        text = PIPELINE.replace("RUN", command).replace(" SPOT", ", spot: true" if spot else "")
        (project / "pipeline.yaml").write_text(text)
        return self.node.grid.start_run(read_pipeline(project / "pipeline.yaml")).run.id

    def wait(self, condition: object, what: str) -> None:
        assert callable(condition)
        assert eventually(condition, PATIENCE_SECONDS), f"waited in vain until {what}: {self.leases()}"

    def leases(self) -> list[object]:
        return [one.lease for one in self.node.grid.leases().items]

    def ended(self, run: str) -> RunView:
        self.wait(lambda: self.node.grid.run(run).run.state in FINISHED_RUNS, "the run ends")
        return self.node.grid.run(run)

    def log(self, run: str) -> str:
        return "".join(entry.text for entry in self.node.grid.logs(run, job="two"))

    def returned(self) -> None:
        """Until the provider has confirmed the end of each machine. The leases are closed only after the time
        by which its lists may lag."""
        self.wait(lambda: not self.ec2.running(), "all machines are returned")
        self.wait(
            lambda: all(
                one.lease.state is LeaseState.CLOSED or one.lease.tries[-1].state is TryState.ENDED
                for one in self.node.grid.leases().items
            ),
            "the end of each machine is confirmed",
        )

    def close(self) -> None:
        for run in self.node.grid.runs().items:
            self.node.grid.stop_run(run.id)
        self.wait(
            lambda: all(one.state in FINISHED_RUNS for one in self.node.grid.runs().items), "all runs end"
        )
        for deployment in self.node.grid.deployments().items:
            self.node.grid.release(deployment.id)
        self.wait(lambda: not self.node.grid.deployments().items, "all is given back")
        self.returned()
        self.node.close()


@pytest.fixture
def aws() -> Iterator[Account]:
    host = NamespaceMachines()
    with (
        tempfile.TemporaryDirectory(prefix="gme", ignore_cleanup_errors=True) as name,
        simulated_ec2(host=host) as ec2,
    ):
        (Path(name) / "home").mkdir()
        account = Account(Path(name), ec2, host)
        yield account
        account.close()


def test_a_job_runs_on_a_machine_of_ec2_and_the_machine_is_returned(aws: Account) -> None:
    view = aws.ended(aws.start())
    two = next(one for one in view.jobs if one.job.job.name == "two")
    assert view.run.state is RunState.SUCCEEDED, two.job.message
    output = aws.settings.root / two.artifacts[0].output.uri / "out"
    assert output.read_text().split()[:2] == ["200000", "199999"]
    aws.returned()
    [lease] = aws.node.grid.leases().items
    assert lease.lease.tries[-1].instance_type == "t3.micro"
    assert lease.lease.state in (LeaseState.RELEASING, LeaseState.CLOSED)


@pytest.mark.long
def test_a_notice_of_ec2_moves_the_job_to_another_machine(aws: Account) -> None:
    once = "[ -e $GRIDMILL_CHECKPOINTS/step ] || { touch $GRIDMILL_CHECKPOINTS/step; exec sleep 600; }"
    run = aws.start(once, spot=True)
    aws.wait(lambda: "begun on" in aws.log(run), "the job has begun")
    [machine] = aws.ec2.running()
    aws.host.set_metadata(
        machine.id, "spot/instance-action", '{"action": "terminate", "time": "2026-11-26T18:00:00Z"}'
    )
    view = aws.ended(run)
    two = next(one for one in view.jobs if one.job.job.name == "two")
    assert view.run.state is RunState.SUCCEEDED, two.job.message
    assert [one.state for one in two.attempts] == [AttemptState.LOST, AttemptState.SUCCEEDED]
    assert '"action": "terminate"' in two.attempts[0].message
    assert machine.id not in {one.id for one in aws.ec2.running()}


CONTINUED = """[ -e $GRIDMILL_CHECKPOINTS/step ] && cat $GRIDMILL_CHECKPOINTS/step && exit 0
hostname > $GRIDMILL_CHECKPOINTS/step; exec sleep 600"""


@pytest.mark.long
def test_a_spot_interruption_while_the_control_node_is_away_costs_no_attempt(
    aws: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with object_store(aws.host.address) as endpoint:
        if endpoint is None:
            pytest.skip(HOW_TO_GET_IT)
        make_bucket(endpoint, "results")
        objects = BucketClient("s3://results/a", {"endpoint": endpoint})
        aws.export_to("s3://results/a", endpoint)
        run = aws.start(CONTINUED.replace("\n", "; "), spot=True)
        aws.wait(lambda: "begun on" in aws.log(run), "the job has begun")
        [first] = aws.ec2.running()
        aws.node.close()
        aws.ec2.interrupt(first.id)

        def checkpoints() -> list[str]:
            names = [name for page in objects.names("") for name in page]
            return [one for one in names if "/checkpoint-" in one and one.endswith("/index")]

        assert eventually(lambda: bool(checkpoints()), PATIENCE_SECONDS), "the checkpoint is in the bucket"
        aws.ec2.end_notice(first.id)
        assert eventually(lambda: not aws.ec2.running(), PATIENCE_SECONDS), "the machine has ended"
        aws.open()
        view = aws.ended(run)
        two = next(one for one in view.jobs if one.job.job.name == "two")
        assert view.run.state is RunState.SUCCEEDED, two.job.message
        assert [one.state for one in two.attempts] == [AttemptState.LOST, AttemptState.SUCCEEDED]
        assert (two.job.failures, two.job.losses) == (0, 0), "the interruption is not charged"
        assert len(aws.ec2.machines()) == 2
        hosts = [word for word in aws.log(run).split() if word not in ("begun", "on")]
        assert (len(hosts), hosts[2]) == (3, hosts[0]), "the second machine read the checkpoint of the first"
        aws.returned()
