"""The conformance suite of sites: subclass `SiteSuite` in a test module and give it a `harness` fixture."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from gridmill.domain.pod_protocol import PodOrder
from gridmill.ports.site import PodStatus, SitePort


class SiteHarness(ABC):
    """A site and the world it acts on; subclasses say which."""

    site: SitePort
    deadline_seconds: float = 120.0

    @abstractmethod
    def order(self, pod_id: str) -> PodOrder:
        """An order for a pod of that id."""

    @abstractmethod
    def greetings(self, pod_id: str) -> int:
        """How many pods of that id have ever dialled the control node."""

    @abstractmethod
    def run_job(self, pod_id: str) -> Callable[[], bool]:
        """Let a greeted pod run a job of several processes that ends by itself only much later; returns once
        they run. What it returns says whether any of them lives."""

    @abstractmethod
    def kill(self, pod_id: str) -> None:
        """End the pod as a crash would (SIGKILL), jobs not included; returns once it is dead."""

    @abstractmethod
    def reopen(self) -> None:
        """Forget the site and open it anew, as a control node does that starts again."""

    @abstractmethod
    def step(self) -> None:
        """Let the world go on a little."""

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Go on until the condition holds. Raises AssertionError after `deadline_seconds`."""
        until = time.monotonic() + self.deadline_seconds
        while not condition():
            assert time.monotonic() < until, f"waited in vain until {what}"
            self.step()

    def sight(self, pod_id: str) -> PodStatus:
        """What the site sees of that pod."""
        return self.site.observe([pod_id])[pod_id].status

    def up(self, pod_id: str) -> None:
        """Bring a pod up and wait for its greeting."""
        self.site.bring_up([self.order(pod_id)])
        self.wait(lambda: self.greetings(pod_id) > 0, f"{pod_id} greets")


class SiteSuite:
    """The tests. Each takes a fresh `harness`."""

    def test_there_is_a_node_that_can_give_something(self, harness: SiteHarness) -> None:
        """Names are unique and capacities are real."""
        nodes = harness.site.nodes()
        assert nodes
        assert len({node.name for node in nodes}) == len(nodes)
        assert all(node.capacity.cpus > 0 and node.capacity.memory_bytes > 0 for node in nodes)
        assert harness.site.nodes() == nodes

    def test_a_pod_that_was_never_started_is_gone(self, harness: SiteHarness) -> None:
        """And tearing it down is fine, twice."""
        assert harness.sight("never-1.0") == PodStatus.GONE
        harness.site.tear_down(["never-1.0"])
        harness.site.tear_down(["never-1.0"])
        assert harness.sight("never-1.0") == PodStatus.GONE

    def test_a_pod_runs_from_the_moment_it_was_brought_up(self, harness: SiteHarness) -> None:
        """No look in between takes it for gone. A site that asks its scheduler now and then may still call a
        pod queued that has greeted already."""
        harness.site.bring_up([harness.order("r-1.0")])
        seen: set[PodStatus] = set()

        def runs() -> bool:
            seen.add(harness.sight("r-1.0"))
            return PodStatus.RUNNING in seen

        harness.wait(lambda: runs() and harness.greetings("r-1.0") > 0, "it runs and greets")
        assert seen <= {PodStatus.QUEUED, PodStatus.RUNNING}
        assert harness.sight("r-1.0") == PodStatus.RUNNING

    def test_a_site_that_was_prepared_brings_up_the_same_pods(self, harness: SiteHarness) -> None:
        """They run jobs, and can be killed and torn down like others."""
        harness.site.prepare()
        harness.site.prepare()
        harness.up("r-1.0")
        job_lives = harness.run_job("r-1.0")
        harness.kill("r-1.0")
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
        """At once, later, and by a control node that started again."""
        harness.site.bring_up([harness.order("r-1.0"), harness.order("r-1.0")])
        harness.wait(lambda: harness.greetings("r-1.0") > 0, "it greets")
        harness.site.bring_up([harness.order("r-1.0")])
        harness.reopen()
        harness.site.bring_up([harness.order("r-1.0")])
        harness.up("r-2.0")
        assert harness.greetings("r-1.0") == 1

    def test_many_are_observed_at_once(self, harness: SiteHarness) -> None:
        """Each id asked for is answered, and no other."""
        harness.site.bring_up([harness.order(f"r-1.{number}") for number in range(3)])
        harness.wait(lambda: all(harness.greetings(f"r-1.{n}") > 0 for n in range(3)), "all greet")
        harness.site.tear_down(["r-1.1"])
        sights = harness.site.observe(["r-1.0", "r-1.1", "r-1.2", "r-9.0"])
        assert {name: seen.status for name, seen in sights.items()} == {
            "r-1.0": PodStatus.RUNNING,
            "r-1.1": PodStatus.GONE,
            "r-1.2": PodStatus.RUNNING,
            "r-9.0": PodStatus.GONE,
        }

    def test_what_is_torn_down_is_gone_with_its_jobs(self, harness: SiteHarness) -> None:
        """When tear_down returns; and once more is fine."""
        harness.up("r-1.0")
        job_lives = harness.run_job("r-1.0")
        harness.site.tear_down(["r-1.0"])
        assert harness.sight("r-1.0") == PodStatus.GONE
        assert not job_lives()
        harness.site.tear_down(["r-1.0"])

    def test_a_pod_id_never_comes_back(self, harness: SiteHarness) -> None:
        """Neither torn down, nor killed, nor torn down before it was brought up."""
        harness.up("torn-1.0")
        harness.site.tear_down(["torn-1.0", "early-1.0"])
        harness.up("killed-1.0")
        harness.kill("killed-1.0")
        harness.site.bring_up([harness.order(name) for name in ("torn-1.0", "early-1.0", "killed-1.0")])
        harness.wait(lambda: harness.sight("killed-1.0") == PodStatus.GONE, "the killed one is gone")
        harness.site.bring_up([harness.order("killed-1.0")])
        harness.up("other-1.0")
        told = [harness.greetings(name) for name in ("torn-1.0", "early-1.0", "killed-1.0")]
        assert told == [1, 0, 1], told
        assert harness.sight("torn-1.0") == PodStatus.GONE

    def test_of_a_killed_pod_nothing_is_left_when_it_is_gone(self, harness: SiteHarness) -> None:
        """GONE is said only once its jobs' processes have been ended."""
        harness.up("r-1.0")
        job_lives = harness.run_job("r-1.0")
        harness.kill("r-1.0")
        harness.wait(lambda: harness.sight("r-1.0") == PodStatus.GONE, "it is gone")
        assert not job_lives()

    def test_a_killed_pod_can_be_torn_down(self, harness: SiteHarness) -> None:
        """Without having been observed in between."""
        harness.up("r-1.0")
        job_lives = harness.run_job("r-1.0")
        harness.kill("r-1.0")
        harness.site.tear_down(["r-1.0"])
        assert harness.sight("r-1.0") == PodStatus.GONE
        assert not job_lives()

    def test_another_control_node_finds_the_pods(self, harness: SiteHarness) -> None:
        """Closing a site leaves its pods and their jobs alone."""
        harness.up("r-1.0")
        job_lives = harness.run_job("r-1.0")
        harness.reopen()
        assert harness.sight("r-1.0") == PodStatus.RUNNING
        assert job_lives()
        harness.site.tear_down(["r-1.0"])
        assert harness.sight("r-1.0") == PodStatus.GONE
        assert not job_lives()
