"""Ending pods takes seconds: nobody waits for it, and what could not be ended is tried again."""

from gridmill.errors import UnavailableError
from gridmill.model.state import DeploymentState
from gridmill.stores import memory
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
