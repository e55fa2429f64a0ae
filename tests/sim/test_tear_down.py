"""Ending pods takes seconds: nobody waits for it, and what could not be ended is tried again."""

from gridmill.domain.states import DeploymentState
from gridmill.errors import UnavailableError
from gridmill.stores import memory
from gridmill.testing.simulated_site import SimulatedPod
from gridmill.testing.simulation import Simulation
from gridmill.testing.store_samples import a_deployment


def test_a_deployment_that_cannot_be_torn_down_is_tried_again_later():
    simulation = Simulation(store=memory.make(), behave=lambda order: None)
    simulation.declare_site()
    node, world = simulation.node, simulation.world
    asked: list[float] = []
    end = world.tear_down

    def busy_once(pod_ids):
        asked.append(simulation.clock.monotonic())
        if len(asked) == 1:
            raise UnavailableError("busy")
        end(pod_ids)

    world.tear_down = busy_once
    with node.changing() as transaction:
        transaction.put(a_deployment(state=DeploymentState.RELEASING))
    while (wait := node.tick()) == 0.0:
        pass
    assert len(asked) == 1
    assert 0 < wait <= node.control.limits.observe_seconds
    simulation.clock.advance(wait)
    node.tick()
    assert len(asked) == 2
    assert "trainers-1" not in node.control.ledger.snapshot.deployments


def test_a_trouble_that_lasts_is_told_once_and_again_when_it_comes_back():
    simulation = Simulation(store=memory.make(), behave=lambda order: None)
    simulation.declare_site()
    node, world = simulation.node, simulation.world
    with node.changing() as transaction:
        transaction.put(a_deployment())
    world.pods = {pod.id: SimulatedPod(order=None, connect_at=1e9) for pod in a_deployment().pods}

    def look_for(seconds: float) -> None:
        for _ in range(int(seconds / node.control.limits.observe_seconds) + 1):
            simulation.clock.advance(node.control.limits.observe_seconds)
            node.tick()

    for _ in range(2):
        world.away(60.0)
        look_for(50.0)
        look_for(20.0)  # it answers again
    assert len(simulation.warnings) == 2, simulation.warnings


def test_a_site_that_is_opened_anew_while_it_is_asked_is_no_trouble():
    """As when `gridmill up --ray` declares its site again."""
    simulation = Simulation(store=memory.make(), behave=lambda order: None)
    simulation.declare_site()
    control, world = simulation.node.control, simulation.world
    [name] = control.sites
    port, end = control.sites[name], world.tear_down

    def closed(pod_ids):
        control.sites[name] = replace_port
        raise UnavailableError("the site was closed")

    replace_port, world.tear_down = Elsewhere(port, end), closed
    with simulation.node.changing() as transaction:
        transaction.put(a_deployment(state=DeploymentState.RELEASING))
    while (wait := simulation.node.tick()) == 0.0:
        pass
    assert not simulation.warnings
    simulation.clock.advance(wait)
    simulation.node.tick()
    assert "trainers-1" not in control.ledger.snapshot.deployments


class Elsewhere:
    """The same site through another door."""

    def __init__(self, port, end):
        self._port, self.tear_down = port, end

    def __getattr__(self, name):
        return getattr(self._port, name)
