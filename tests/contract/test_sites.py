"""The local site and the simulated one pass the suite."""

import os
import signal

import pytest
from tests.kit.control_end import Grid

from gridmill.domain.amounts import Amounts
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pod_protocol import AttemptOrder, EventType, Hello, PodOrder, Start, Welcome
from gridmill.pod import processes
from gridmill.settings import read_settings
from gridmill.sites.local import make
from gridmill.sites.processes import measure_capacity
from gridmill.testing.clock import FakeClock
from gridmill.testing.simulated_site import Behaviour, SimulatedWorld
from gridmill.testing.site_suite import SiteHarness, SiteSuite


class LocalHarness(SiteHarness):
    """Pods are processes; their job starts others in sessions of their own."""

    def __init__(self, home, **settings):
        self.grid = Grid(home, **settings)
        self.site = self.grid.site

    def order(self, pod_id):
        return self.grid.pod_order(pod_id)

    def greetings(self, pod_id):
        return len([hello for hello in self.grid.control.hellos if hello.pod_id == pod_id])

    def run_job(self, pod_id):
        attempt_id = f"p-1.j-{len(self.grid.control.events)}.1"
        pids = self.grid.home / f"pids-{attempt_id}"
        command = f"""
            setsid sh -c 'echo $$ >> {pids}; exec sleep 300' & sleep 300 & echo $! >> {pids}
            setsid sh -c 'sh -c "echo \\$\\$ >> {pids}; exec sleep 300" &'
            while [ $(wc -l < {pids}) -lt 3 ]; do sleep 0.01; done; echo up; wait"""
        self.grid.control.send(Start(order=self.grid.command(attempt_id, command)))
        self.grid.control.wait(lambda: self.grid.control.log(attempt_id) == "up\n")
        started = self.grid.control.of(attempt_id, EventType.STARTED)[0].body["pid"]
        all_pids = [started, *map(int, pids.read_text().split())]
        return lambda: any(processes.stat(pid) is not None for pid in all_pids)

    def folder(self, pod_id):
        return self.grid.home / "pods" / pod_id

    def kill(self, pod_id):
        pid, start = map(int, (self.folder(pod_id) / "pid").read_text().split())
        os.kill(pid, signal.SIGKILL)
        self.wait(lambda: not processes.is_alive(pid, start), "the pod is dead")

    def reopen(self):
        self.site.close()
        self.site = self.grid.site = make(self.grid.settings)

    def step(self):
        self.grid.control.turn()


class SimulatedHarness(SiteHarness):
    """The same on a fake clock."""

    def __init__(self):
        self.clock = FakeClock()
        self.site = self.world = SimulatedWorld(self.clock, lambda order: Behaviour(seconds=1e9))
        self.greeted = []

    def order(self, pod_id):
        return PodOrder(
            pod_id=pod_id,
            deployment_id=pod_id.rpartition(".")[0],
            type="command",
            secret="s",
            home="/h",
            link=self.site.link(),
            capacity=Amounts(cpus=1),
            keep_seconds=1.0,
        )

    def greetings(self, pod_id):
        return self.greeted.count(pod_id)

    def run_job(self, pod_id):
        attempt_id = f"p-1.j.{len(self.world.executions)}"
        order = AttemptOrder(
            attempt_id=attempt_id,
            token="t",
            run_id="p-1",
            pipeline="p",
            job=Job(name="j", command=CommandSpec(run="x")),
            given=Amounts(),
            root="",
            output_uri="",
        )
        self.site.send(self.world.pods[pod_id].channel, [Start(order=order)])
        self.wait(lambda: len(self.world.executions) > 0, "it runs")
        execution = self.world.executions[-1]
        return lambda: execution.ended is None

    def kill(self, pod_id):
        self.world.kill_pod(pod_id)

    def reopen(self):
        self.site.close()

    def step(self):
        self.clock.advance(0.1)
        self.world.step()
        for received in self.world.receive():
            if isinstance(received.message, Hello):
                self.greeted.append(received.message.pod_id)
                self.world.send(received.channel, [Welcome(acknowledged=0)])


class TestSimulated(SiteSuite):
    @pytest.fixture
    def harness(self):
        return SimulatedHarness()


@pytest.mark.e2e
class TestLocal(SiteSuite):
    @pytest.fixture(params=["cgroups", "guard"])
    def harness(self, request, tmp_path):
        harness = LocalHarness(tmp_path, cgroups=request.param == "cgroups")
        yield harness
        harness.grid.close()

    def test_an_order_is_for_this_user_only(self, harness):
        harness.up("r-1.0")
        assert (harness.grid.home / "pods" / "r-1.0" / "order.json").stat().st_mode & 0o777 == 0o600

    def test_a_pod_that_hangs_is_torn_down(self, harness):
        harness.up("r-1.0")
        job_lives = harness.run_job("r-1.0")
        pid = int((harness.grid.home / "pods" / "r-1.0" / "pid").read_text().split()[0])
        os.kill(pid, signal.SIGSTOP)
        harness.site.tear_down(["r-1.0"])
        assert processes.stat(pid) is None
        assert not job_lives()


def test_the_local_site_gives_what_the_settings_say(tmp_path):
    settings = read_settings(
        {"GRIDMILL_HOME": str(tmp_path), "GRIDMILL_CPUS": "1.5", "GRIDMILL_MEMORY": "2GiB"}
    )
    capacity = measure_capacity(settings)
    assert (capacity.cpus, capacity.memory_bytes) == (1.5, 2 * 2**30)


def test_the_local_site_measures_the_machine(tmp_path):
    capacity = measure_capacity(read_settings({"GRIDMILL_HOME": str(tmp_path)}))
    assert capacity.cpus == len(os.sched_getaffinity(0))
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < capacity.memory_bytes <= 0.8 * machine
