"""The oracle of the kill test catches control nodes that leak, waste, lose or touch what is not theirs."""

from dataclasses import dataclass, field, replace
from math import inf

import pytest
from tests.unit.testing.cloud.test_simulated_provider import TIMERS, World

from gridmill.ports.cloud import Machine
from gridmill.testing.cloud.provider import SimulatedProvider
from gridmill.testing.cloud.rental_oracle import Story, Verdict, Watch, judge


@dataclass
class ToyNode:
    """A control node in a few lines, which runs one job on one machine. Each flag is a defect."""

    world: World
    leaks: bool = False
    forgets_resources: bool = False
    dawdles: float = 0.0
    loses: bool = False
    accepts_twice: bool = False
    ends_all: bool = False
    watch: Watch = field(default_factory=Watch)

    def run(self) -> Story:
        world = self.world
        machine = world.launch(owner="grid-a")
        world.clock.advance(100.0)
        world.account.note_job(machine.id, True)
        world.clock.advance(500.0)
        world.account.note_job(machine.id, False)
        over = world.clock.monotonic()
        self.watch.note_job(machine.id, over)
        world.clock.advance(self.dawdles)
        self.release(machine)
        world.clock.advance(600.0)
        return Story(
            account=world.account,
            owner="grid-a",
            needed_until=self.watch.needed_until,
            over=over,
            reachable_since=self.watch.reachable_since,
            accepted=() if self.loses else ("job", "job") if self.accepts_twice else ("job",),
            unfinished=("job",) if self.loses else (),
            clients=("client",),
        )

    def release(self, machine: Machine) -> None:
        for one in self.world.cloud.machines("" if self.ends_all else "grid-a"):
            if not self.leaks:
                self.world.cloud.terminate(one)
        self.world.clock.advance(5.0)
        for left in self.world.cloud.leftovers("grid-a"):
            if not self.forgets_resources and not self.leaks:
                self.world.cloud.delete(left)


def judged(**flags: object) -> Verdict:
    return judge(ToyNode(World(), **flags).run())  # type: ignore[arg-type]


def test_a_careful_node_has_no_problems() -> None:
    verdict = judged()
    assert verdict.problems() == ()
    assert (verdict.machines, verdict.unneeded_micros) == (1, 0)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"leaks": True}, "machine m-0001 still exists"),
        ({"forgets_resources": True}, "security-group gridmill-lease-t1 still exists"),
        ({"dawdles": 40.0}, "a machine was billed 40.0 s longer than needed"),
        ({"loses": True}, "job job has no result"),
        ({"accepts_twice": True}, "the result of job job was accepted twice"),
    ],
)
def test_each_defect_is_a_problem(flags: dict[str, object], problem: str) -> None:
    assert problem in judged(**flags).problems()


def test_a_machine_of_another_grid_must_not_be_touched() -> None:
    world = World()
    world.launch("other", owner="grid-b")
    world.account.calls.clear()
    verdict = judge(ToyNode(world, ends_all=True).run())
    assert verdict.foreign == ("terminate m-0001 of grid-b by client",)


def test_calls_of_another_grid_are_not_ours() -> None:
    world = World()
    theirs = SimulatedProvider(world.account, name="theirs")
    world.cloud, ours = theirs, world.cloud
    machine = world.launch("other", owner="grid-b")
    theirs.terminate(machine)
    world.cloud = ours
    assert judge(ToyNode(world).run()).foreign == ()


def test_an_outage_is_not_counted_against_the_node() -> None:
    watch = Watch()
    watch.note(600.0, reachable=False)
    watch.note(700.0, reachable=True)
    watch.note(800.0, reachable=True)
    assert judge(ToyNode(World(), dawdles=120.0, watch=watch).run()).beyond_seconds == 20.0


def test_without_a_restart_the_time_counts_from_the_death_of_the_node() -> None:
    world = World()
    story = ToyNode(world, leaks=True).run()
    dead = replace(story, died=300.0, reachable_since=inf, needed_until={})
    assert judge(dead).beyond_seconds == world.clock.monotonic() - 300.0
    world.clock.advance(1e5)
    # the machine has ended itself: 900 s after its job at 600 s, and 10 s for the shutdown
    assert judge(dead).beyond_seconds == 600.0 + TIMERS.dead_man_seconds + 10.0 - 300.0
    assert judge(dead).leaked == ()
