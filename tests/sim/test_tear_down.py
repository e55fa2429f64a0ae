"""Ending pods takes seconds: nobody waits for it but the loop."""

import threading

from gridmill.errors import UnavailableError
from gridmill.model.state import DeploymentState
from gridmill.stores import memory
from gridmill.testing.simulation import Simulation
from gridmill.testing.store_samples import a_deployment


def test_sites_are_torn_down_without_the_lock_and_tried_again():
    simulation = Simulation(store=memory.make(), behave=lambda order: None)
    simulation.declare_site()
    node, world = simulation.node, simulation.world
    asked: list[bool] = []
    end = world.tear_down

    def try_the_lock():
        asked.append(node.lock.acquire(timeout=5))
        if asked[-1]:
            node.lock.release()

    def slow(pod_ids):
        other = threading.Thread(target=try_the_lock)
        other.start()
        other.join()
        if len(asked) == 1:
            raise UnavailableError("busy")
        end(pod_ids)

    world.tear_down = slow
    with node.changing() as transaction:
        transaction.put(a_deployment(state=DeploymentState.RELEASING))
    node.tick()
    assert "trainers-1" in node.control.ledger.snapshot.deployments
    node.tick()
    assert asked == [True, True]
    assert "trainers-1" not in node.control.ledger.snapshot.deployments
