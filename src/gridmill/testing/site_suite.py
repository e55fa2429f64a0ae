"""The conformance suite for sites. Make a subclass of `SiteSuite` in a test module and give it a fixture
`harness`."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from unittest import SkipTest

from gridmill.domain.pod_protocol import PodOrder
from gridmill.ports.site import PodStatus, SitePort


class SiteHarness(ABC):
    """The tested site and its surroundings. A subclass selects both."""

    site: SitePort
    deadline_seconds: float = 120.0
    pods_are_processes: bool = True
    """False declares that the pods of the site are no processes, but belong to the site itself, as at a batch
    site. Such a pod cannot be killed, so the tests that kill a pod are skipped, or leave out this part. It
    connects to the control node again when the site is reopened."""

    @abstractmethod
    def order(self, pod_id: str) -> PodOrder:
        """Returns an order for a pod with this id."""

    @abstractmethod
    def greetings(self, pod_id: str) -> int:
        """Returns how often a pod with this id has connected to the control node."""

    @abstractmethod
    def run_job(self, pod_id: str) -> Callable[[], bool]:
        """Makes a connected pod run a long job of several processes, and returns when the processes run. The
        returned function shows whether any of these processes is alive."""

    def kill(self, pod_id: str) -> None:
        """Kills the pod as a crash does (SIGKILL), but does not kill its jobs. The function returns when the
        pod is dead. A harness with `pods_are_processes` must have this method."""
        raise NotImplementedError

    @abstractmethod
    def reopen(self) -> None:
        """Closes the site and opens it again, as happens when a control node restarts."""

    @abstractmethod
    def step(self) -> None:
        """Lets a short time pass at the site."""

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Steps until the condition is true. Raises AssertionError if the condition is not true after
        `deadline_seconds`."""
        until = time.monotonic() + self.deadline_seconds
        while not condition():
            assert time.monotonic() < until, f"waited in vain until {what}"
            self.step()

    def sight(self, pod_id: str) -> PodStatus:
        """Returns the state of the pod as the site reports it."""
        return self.site.observe([pod_id])[pod_id].status

    def skip_without_processes(self) -> None:
        """Skips the test if the pods of the site are no processes."""
        if not self.pods_are_processes:
            raise SkipTest("the pods of this site are no processes, so they cannot be killed")

    def up(self, pod_id: str) -> None:
        """Starts a pod and waits for its Hello."""
        self.site.bring_up([self.order(pod_id)])
        self.wait(lambda: self.greetings(pod_id) > 0, f"{pod_id} greets")


class SiteSuite:
    """The tests of the conformance suite. Each test needs a new `harness`."""

    def test_there_is_a_node_that_can_give_something(self, harness: SiteHarness) -> None:
        """Checks that the names of nodes are unique and that their capacities are above zero."""
        nodes = harness.site.nodes()
        assert nodes
        assert len({node.name for node in nodes}) == len(nodes)
        assert all(node.capacity.cpus > 0 and node.capacity.memory_bytes > 0 for node in nodes)
        assert harness.site.nodes() == nodes

    def test_a_pod_that_was_never_started_is_gone(self, harness: SiteHarness) -> None:
        """Checks that tearing down a pod that was never started succeeds, also the second time."""
        # a site may need time to read its pods
        harness.wait(lambda: harness.sight("never-1.0") == PodStatus.GONE, "never-1.0 is gone")
        harness.site.tear_down(["never-1.0"])
        harness.site.tear_down(["never-1.0"])
        assert harness.sight("never-1.0") == PodStatus.GONE

    def test_a_pod_runs_from_the_moment_it_was_brought_up(self, harness: SiteHarness) -> None:
        """Checks that a requested pod is never reported as ended. After the pod's Hello, a site that asks
        its scheduler only at intervals may still report the pod as queued."""
        harness.site.bring_up([harness.order("r-1.0")])
        seen: set[PodStatus] = set()

        def runs() -> bool:
            seen.add(harness.sight("r-1.0"))
            return PodStatus.RUNNING in seen

        harness.wait(lambda: runs() and harness.greetings("r-1.0") > 0, "it runs and greets")
        assert seen <= {PodStatus.QUEUED, PodStatus.RUNNING}
        assert harness.sight("r-1.0") == PodStatus.RUNNING

    def test_a_site_that_was_prepared_brings_up_the_same_pods(self, harness: SiteHarness) -> None:
        """Checks that pods of a prepared site run jobs, and can be killed and torn down like other pods."""
        harness.site.prepare()
        harness.site.prepare()
        harness.up("r-1.0")
        job_lives = harness.run_job("r-1.0")
        if harness.pods_are_processes:
            harness.kill("r-1.0")
        else:
            harness.site.tear_down(["r-1.0"])
        harness.wait(lambda: harness.sight("r-1.0") == PodStatus.GONE, "it is gone")
        assert not job_lives()
        harness.site.prepare()
        harness.up("r-2.0")
        harness.site.prepare()
        harness.reopen()
        assert harness.sight("r-2.0") == PodStatus.RUNNING
        harness.site.tear_down(["r-2.0"])
        assert harness.sight("r-2.0") == PodStatus.GONE

    def test_bringing_up_again_starts_nothing(self, harness: SiteHarness) -> None:
        """Checks a second request for a running pod, made immediately, later, and from a restarted control
        node."""
        harness.site.bring_up([harness.order("r-1.0"), harness.order("r-1.0")])
        harness.wait(lambda: harness.greetings("r-1.0") > 0, "it greets")
        harness.site.bring_up([harness.order("r-1.0")])
        harness.reopen()
        harness.site.bring_up([harness.order("r-1.0")])
        harness.up("r-2.0")
        connections = 1 if harness.pods_are_processes else 2
        harness.wait(lambda: harness.greetings("r-1.0") >= connections, "it has connected again")
        assert harness.greetings("r-1.0") == connections

    def test_many_are_observed_at_once(self, harness: SiteHarness) -> None:
        """Checks that the answer contains each requested id and no other id."""
        harness.site.bring_up([harness.order(f"r-1.{number}") for number in range(3)])
        harness.wait(lambda: all(harness.greetings(f"r-1.{n}") > 0 for n in range(3)), "all greet")
        harness.site.tear_down(["r-1.1"])
        reports = harness.site.observe(["r-1.0", "r-1.1", "r-1.2", "r-9.0"])
        assert {name: seen.status for name, seen in reports.items()} == {
            "r-1.0": PodStatus.RUNNING,
            "r-1.1": PodStatus.GONE,
            "r-1.2": PodStatus.RUNNING,
            "r-9.0": PodStatus.GONE,
        }

    def test_what_is_torn_down_is_gone_with_its_jobs(self, harness: SiteHarness) -> None:
        """Checks that the pod has ended when `tear_down` returns. A repeated call of `tear_down` must
        succeed too."""
        harness.up("r-1.0")
        job_lives = harness.run_job("r-1.0")
        harness.site.tear_down(["r-1.0"])
        assert harness.sight("r-1.0") == PodStatus.GONE
        assert not job_lives()
        harness.site.tear_down(["r-1.0"])

    def test_a_pod_id_never_comes_back(self, harness: SiteHarness) -> None:
        """Checks that a pod does not start again after it was torn down or killed, and never starts if it
        was torn down before its start."""
        harness.up("torn-1.0")
        harness.site.tear_down(["torn-1.0", "early-1.0"])
        harness.up("killed-1.0")
        if harness.pods_are_processes:
            harness.kill("killed-1.0")
        else:
            harness.site.tear_down(["killed-1.0"])
        harness.site.bring_up([harness.order(name) for name in ("torn-1.0", "early-1.0", "killed-1.0")])
        harness.wait(lambda: harness.sight("killed-1.0") == PodStatus.GONE, "the killed one is gone")
        harness.site.bring_up([harness.order("killed-1.0")])
        harness.up("other-1.0")
        told = [harness.greetings(name) for name in ("torn-1.0", "early-1.0", "killed-1.0")]
        assert told == [1, 0, 1], told
        assert harness.sight("torn-1.0") == PodStatus.GONE

    def test_of_a_killed_pod_nothing_is_left_when_it_is_gone(self, harness: SiteHarness) -> None:
        """Checks that a killed pod is reported as GONE only after the processes of its jobs have ended."""
        harness.skip_without_processes()
        harness.up("r-1.0")
        job_lives = harness.run_job("r-1.0")
        harness.kill("r-1.0")
        harness.wait(lambda: harness.sight("r-1.0") == PodStatus.GONE, "it is gone")
        assert not job_lives()

    def test_a_killed_pod_can_be_torn_down(self, harness: SiteHarness) -> None:
        """Checks that `tear_down` of a killed pod succeeds if the state of the pod was not requested after
        the kill."""
        harness.skip_without_processes()
        harness.up("r-1.0")
        job_lives = harness.run_job("r-1.0")
        harness.kill("r-1.0")
        harness.site.tear_down(["r-1.0"])
        assert harness.sight("r-1.0") == PodStatus.GONE
        assert not job_lives()

    def test_another_control_node_finds_the_pods(self, harness: SiteHarness) -> None:
        """Checks that the pods of a site and their jobs continue to run after the site was closed."""
        harness.up("r-1.0")
        job_lives = harness.run_job("r-1.0")
        harness.reopen()
        assert harness.sight("r-1.0") == PodStatus.RUNNING
        assert job_lives()
        harness.site.tear_down(["r-1.0"])
        assert harness.sight("r-1.0") == PodStatus.GONE
        assert not job_lives()
