"""Jobs on rented machines, which are virtual hosts that boot with cloud-init and its user data."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridmill.bootstrap.node import EmbeddedNode, embed
from gridmill.declarations import read_pipeline
from gridmill.domain import rental_terms
from gridmill.domain.lease import Lease, LeaseState
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import FINISHED_RUNS, AttemptState, RunState
from gridmill.domain.views import RunView
from gridmill.settings import read_settings
from gridmill.sites.cloud.boot import NOTICES
from gridmill.sites.cloud.site import CloudSite
from gridmill.sites.farm.result_export import ResultExports
from gridmill.testing.hosts import Network, network
from gridmill.transfer.bucket import BucketClient
from tests.e2e.conftest import GRIDMILL, PATIENCE_SECONDS, eventually
from tests.kit.host_cloud import (
    HostCloud,
    HostMachine,
    has_ended,
    image_with_gpus,
    plug_in,
    power_off,
    why_not,
)
from tests.kit.objectstore import HOW_TO_GET_IT, KEYS, make_bucket, object_store

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is everything"),
]
CARRIED = """
pipeline: p
resources:
  burst: {type: command, site: burst, cpus: 1, memory: 256MiB, keep: 0s}
jobs:
  one: {command: "seq 200000 > $GRIDMILL_OUTPUT/in"}
  two:
    resource: burst
    needs: [one]
    command: "echo begun on $(hostname); tac $GRIDMILL_INPUT_ONE/in > $GRIDMILL_OUTPUT/out; \
until [ -e SHARED/go ]; do sleep 0.1; done; hostname >> SHARED/ran"
"""


class Rented:
    """A home on this machine with a cloud site `burst`, whose machines see the folder `shared`."""

    def __init__(self, folder: Path, cloud: HostCloud, **settings: str) -> None:
        self.shared, self.cloud = folder / "shared", cloud
        home = str(folder / "home")
        self.settings = read_settings(
            {"GRIDMILL_HOME": home, "GRIDMILL_GRACE": "1", "GRIDMILL_OBSERVE": "0.2"}
        )
        self.node = self.open()
        place = Site(name="burst", kind=SiteKind.CLOUD, settings={"provider": "hosts", **settings})
        self.node.grid.add_site(place)

    def open(self) -> EmbeddedNode:
        self.node = embed(self.settings)
        return self.node

    def leases(self) -> list[Lease]:
        """Open and closed ones, the first first."""
        return [one.lease for one in reversed(self.node.grid.leases().items)]

    def leave(self) -> None:
        """The control node ends, and the machines go on."""
        self.node.close(tear_down=False)

    def start(self, text: str = CARRIED) -> str:
        project = self.shared / "project"
        project.mkdir(exist_ok=True)
        (project / "pipeline.yaml").write_text(text.replace("SHARED", str(self.shared)))
        return self.node.grid.start_run(read_pipeline(project / "pipeline.yaml")).run.id

    def go(self) -> None:
        (self.shared / "go").touch()

    def ran_on(self) -> list[str]:
        path = self.shared / "ran"
        return path.read_text().split() if path.exists() else []

    def wait(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        assert eventually(condition, seconds), f"waited in vain until {what}: {self.leases()}"

    def begun(self, run: str, name: str = "two") -> HostMachine:
        """Until the job runs; its machine."""
        self.wait(lambda: "begun on" in self.log(run, name), "the job has begun")
        return self.machine()

    def machine(self) -> HostMachine:
        [lease] = [one for one in self.leases() if one.state is LeaseState.READY]
        return self.cloud.of(lease.id)

    def ready(self) -> bool:
        return any(one.state is LeaseState.READY for one in self.leases())

    def log(self, run: str, name: str = "two") -> str:
        return "".join(entry.text for entry in self.node.grid.logs(run, job=name))

    def ended(self, run: str) -> RunView:
        self.wait(lambda: self.node.grid.run(run).run.state in FINISHED_RUNS, "the run ends")
        return self.node.grid.run(run)

    def returned(self) -> None:
        """Until each machine has ended and nothing of its lease is left."""
        self.wait(lambda: all(map(has_ended, self.cloud.every.values())), "all machines end")
        self.wait(
            lambda: all(one.state is LeaseState.CLOSED for one in self.leases()),
            "all leases are closed",
        )
        kept = self.settings.home / "leases"
        self.wait(lambda: [one.name for one in kept.iterdir()] == ["owner.mark"], "all keys are deleted")

    def gridmill(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """A command of this home."""
        return subprocess.run(
            [GRIDMILL, *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "GRIDMILL_HOME": str(self.settings.home)},
            stdin=subprocess.DEVNULL,
        )

    def site(self) -> CloudSite:
        port = self.node.node.control.sites["burst"]
        assert isinstance(port, CloudSite)
        return port

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
        self.leave()


Rent = Callable[..., Rented]


@pytest.fixture
def net() -> Iterator[Network]:
    with tempfile.TemporaryDirectory(prefix="gmc", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "shared").mkdir()
        (folder / "home").mkdir()
        prefix = f"10.{60 + os.getpid() % 20}.{os.getpid() // 20 % 250}"
        with network(folder / "net", prefix, shared=[folder / "shared"]) as made:
            yield made


@pytest.fixture
def rent(net: Network) -> Iterator[Rent]:
    opened: list[Rented] = []
    cloud = HostCloud(net)
    plug_in(cloud)

    def make(**settings: str) -> Rented:
        opened.append(Rented(net.folder.parent, cloud, **settings))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def bucket(net: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BucketClient, str]]:
    """A bucket that this machine and the rented machines reach."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with object_store(net.gateway) as endpoint:
        if endpoint is None:
            pytest.skip(HOW_TO_GET_IT)
        make_bucket(endpoint, "results")
        yield BucketClient("s3://results", {"endpoint": endpoint}), endpoint


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users may not set such short times."""
    monkeypatch.setattr(rental_terms, "LEAST_DEAD_MAN_SECONDS", 1.0)


def test_a_job_on_a_rented_machine_reads_and_writes_data_of_home(rent: Rent) -> None:
    rented = rent()
    rented.go()
    view = rented.ended(rented.start())
    jobs = {one.job.job.name: one for one in view.jobs}
    assert view.run.state is RunState.SUCCEEDED, jobs["two"].job.message
    assert jobs["two"].job.attempts == 1
    output = rented.settings.root / jobs["two"].artifacts[0].output.uri / "out"
    assert output.read_text().split()[:2] == ["200000", "199999"]
    assert rented.ran_on() == [f"m{number}" for number in (20,)]
    rented.returned()


def test_the_control_node_is_restarted_while_a_job_runs(rent: Rent) -> None:
    rented = rent()
    run = rented.start()
    machine = rented.begun(run)
    said = rented.gridmill("ssh", "lease-1", "--", "hostname; id -un")
    assert said.stdout.split() == ["m20", "root"], said.stderr
    assert rented.gridmill("ssh", "lease-2").returncode == 4
    rented.leave()
    rented.open()
    rented.go()
    view = rented.ended(run)
    assert view.run.state is RunState.SUCCEEDED
    assert [one.job.attempts for one in view.jobs] == [1, 1]
    assert rented.ran_on() == ["m20"], "it ran once"
    assert "begun on m20" in rented.log(run)
    rented.returned()
    assert has_ended(machine)


@pytest.mark.long
def test_a_machine_without_contact_ends_itself_although_a_job_runs(rent: Rent, short_times: None) -> None:
    rented = rent(dead_man="20s")
    run = rented.start()
    machine = rented.begun(run)
    rented.leave()
    rented.wait(lambda: has_ended(machine), "it ends itself", 60)
    assert rented.ran_on() == [], "the job was running"
    rented.open()
    rented.go()
    view = rented.ended(run)
    assert view.run.state is RunState.SUCCEEDED, "the job ran again, because it was lost"
    two = next(one for one in view.jobs if one.job.job.name == "two")
    assert [one.state for one in two.attempts] == [AttemptState.LOST, AttemptState.SUCCEEDED]
    assert rented.ran_on() == ["m21"]
    rented.returned()


@pytest.mark.long
def test_a_result_outlasts_a_machine_that_ends_itself(
    rent: Rent, bucket: tuple[BucketClient, str], short_times: None
) -> None:
    objects, endpoint = bucket
    rented = rent(dead_man="20s", export="s3://results/a", endpoint=endpoint)
    run = rented.start()
    machine = rented.begun(run)
    assert machine.host is not None
    root = Path(f"/proc/{machine.host.init}/root")
    exportable = root / "var/lib/gridmill/farm/farm/exportable"
    rented.wait(lambda: exportable.exists() and exportable.read_text(), "the bucket takes results")
    rented.leave()
    silent = time.monotonic()
    rented.wait(lambda: time.monotonic() - silent > 25, "it had no contact for longer than the time")
    assert "working=1" in (root / "run/gridmill/state").read_text()
    assert not has_ended(machine), "a job runs on it, and the bucket takes its result"
    rented.go()
    rented.wait(lambda: has_ended(machine), "it ends itself", 90)
    rented.open()
    view = rented.ended(run)
    assert view.run.state is RunState.SUCCEEDED
    two = next(one for one in view.jobs if one.job.job.name == "two")
    assert [one.state for one in two.attempts] == [AttemptState.SUCCEEDED]
    assert rented.ran_on() == ["m20"], "it ran once"
    output = rented.settings.root / two.artifacts[0].output.uri / "out"
    assert output.read_text().split()[:2] == ["200000", "199999"]
    rented.returned()
    port = rented.site()._exports
    assert isinstance(port, ResultExports)
    port.sweep()
    assert [name for page in objects.names("") for name in page] == []


@pytest.mark.long
def test_a_machine_ends_itself_at_the_longest_time_although_a_job_runs(rent: Rent, short_times: None) -> None:
    rented = rent(max_hours="25s")
    run = rented.start()
    machine = rented.begun(run)
    rented.wait(lambda: has_ended(machine), "it ends itself", 60)
    view = rented.ended(run)
    two = next(one for one in view.jobs if one.job.job.name == "two")
    assert view.run.state is RunState.FAILED, "the job would reach the longest time again"
    assert "max_hours" in two.job.message


@pytest.mark.long
def test_a_job_on_a_machine_that_vanishes_runs_on_another_one(rent: Rent) -> None:
    rented = rent()
    run = rented.start()
    power_off(rented.begun(run))
    rented.go()
    view = rented.ended(run)
    two = next(one for one in view.jobs if one.job.job.name == "two")
    assert view.run.state is RunState.SUCCEEDED
    assert [one.state for one in two.attempts] == [AttemptState.LOST, AttemptState.SUCCEEDED]
    assert "the machine was ended at the provider" in two.attempts[0].message
    assert rented.ran_on() == ["m21"]


@pytest.mark.long
def test_a_machine_whose_ssh_server_never_answers_is_replaced(rent: Rent) -> None:
    rented = rent(boot_timeout="12s")
    rented.cloud.opens_ssh = False
    rented.go()
    run = rented.start()
    rented.wait(lambda: rented.cloud.every, "a machine is rented")
    [lease] = rented.leases()
    rented.wait(lambda: "SSH server" in rented.site().progress(lease.id), "it is waited for")
    rented.wait(lambda: rented.cloud.of(lease.id).booted.is_set(), "it has booted")
    rented.cloud.opens_ssh = True
    view = rented.ended(run)
    assert view.run.state is RunState.SUCCEEDED
    assert [one.job.attempts for one in view.jobs] == [1, 1], "it costs the job no attempt"
    [lease] = rented.leases()
    assert "its SSH server did not answer" in lease.tries[0].message
    assert rented.ran_on() == ["m21"]


@pytest.mark.long
def test_a_machine_that_lacks_a_gpu_is_replaced(rent: Rent) -> None:
    rented = rent()
    images = iter((image_with_gpus(1), image_with_gpus(2)))
    rented.cloud.image = lambda host: next(images)(host)
    rented.go()
    view = rented.ended(rented.start(CARRIED.replace("cpus: 1,", "cpus: 1, gpus: 2,")))
    assert view.run.state is RunState.SUCCEEDED, [one.job.message for one in view.jobs]
    [lease] = rented.leases()
    assert lease.tries[0].message == "the machine is defective: it has 1 working GPUs, and 2 were promised"
    assert rented.ran_on() == ["m21"]


RESUMED = """
pipeline: p
resources:
  burst: {type: command, site: burst, cpus: 1, memory: 256MiB, keep: 0s}
jobs:
  two:
    resource: burst
    resumable: true
    command: "echo begun on $(hostname); cd $GRIDMILL_CHECKPOINTS; cat step || true; hostname > step; \
trap 'echo told to end >> step; exit 1' TERM; until [ -e SHARED/go ]; do sleep 0.1; done"
"""


@pytest.mark.long
def test_a_notice_of_the_provider_ends_the_job_with_a_checkpoint(
    rent: Rent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NOTICES, "hosts", "cat /run/interruption")
    rented = rent(spot="true")
    run = rented.start(RESUMED)
    machine = rented.begun(run)
    assert machine.host is not None
    machine.host.run("sh", "-c", "echo terminate in 2 minutes > /run/interruption")
    rented.wait(lambda: "begun on m21" in rented.log(run), "the job runs on another machine")
    rented.go()
    view = rented.ended(run)
    assert view.run.state is RunState.SUCCEEDED
    [job] = view.jobs
    why = "the provider ends the spot machine of lease lease-1: terminate in 2 minutes"
    assert why in job.attempts[0].message
    assert "m20\ntold to end\n" in rented.log(run), "the second attempt got the checkpoint of the first"
