"""Random commands for services that share two GPUs, compared with a model of the admitted GPU memory."""

import random
from collections.abc import Callable
from functools import partial

import pytest
from test_services_on_a_gpu import SHARES, TRUSTED, grid_of, started, stopped

from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.amounts import GIB
from gridmill.domain.service import Service, ServiceState
from gridmill.domain.service_settings import ServiceSettings
from gridmill.errors import CapacityError, InputError
from gridmill.testing.simulation import Simulation

NEEDS = {"w/m@1": 2 * GIB, "w/m@2": 5 * GIB, "w/m@3": 9 * GIB}
"""The measured GPU memory of the versions with code; w/m@4 computes on CPUs."""
NAMES, GPUS = ("a", "b", "c"), 2


def limit(version: str) -> int:
    """The GPU memory of one replica, in shares of 1 GiB times 4."""
    return NEEDS.get(version, 0) // GIB * 5


def shares(version: str, replicas: int) -> int:
    return -(-(replicas + 1) * limit(version) // 4)


class Model:
    """The shares of the services that run, by their GPUs, as a user would compute them."""

    def __init__(self, grid: Simulation, cases: Cases) -> None:
        self.grid, self.cases = grid, cases

    def services(self) -> list[Service]:
        return [self.cases.service(one).service for one in NAMES if self.exists(one)]

    def exists(self, name: str) -> bool:
        return any(one.name == name for one in self.cases.services().items)

    def runs(self, name: str) -> bool:
        return self.exists(name) and self.cases.service(name).service.is_meant_to_run

    def free(self, but: str) -> int:
        """The largest number of shares that are free on one GPU and in one of the workers, which have as many
        shares as a GPU."""
        attempts = self.grid.node.control.ledger.snapshot.attempts
        left, workers = [SHARES] * GPUS, [SHARES] * GPUS
        pods: list[str] = []
        for one in self.services():
            if one.name != but and one.is_meant_to_run and one.gpu_claim and one.gpu_claim.shares:
                assert one.gpu_claim.gpu is not None
                left[one.gpu_claim.gpu] -= one.gpu_claim.shares
                pod = attempts[one.reported_by].pod_id
                pods += [] if pod in pods else [pod]
                workers[pods.index(pod)] -= one.gpu_claim.shares
        return min(max(left), max(workers))

    def may_start(self, name: str, version: str, replicas: int) -> bool:
        needed = shares(version, replicas)
        if needed > SHARES >= replicas * limit(version) / 4:
            needed = SHARES
        return needed <= self.free(name)

    def may_change(self, before: Service, version: str, replicas: int) -> bool:
        claim = before.gpu_claim
        assert claim is not None
        if not claim.shares:
            return version not in NEEDS
        if version not in NEEDS:
            return True
        staying = min(before.replicas, replicas)
        beside = staying * limit(before.version) + (replicas + 1 - staying) * limit(version)
        return max((replicas + 1) * limit(version), beside) <= 4 * claim.shares

    def check(self) -> None:
        """No GPU memory is given twice, and the replicas of each service have what it was admitted with."""
        given = [
            (one.pod_id, number)
            for one in self.grid.node.control.ledger.snapshot.attempts.values()
            for number in one.gpu_indices
        ]
        assert len(given) == len(set(given))
        left = [SHARES] * GPUS
        for one in self.services():
            claim = one.gpu_claim
            if not one.is_meant_to_run or claim is None or not claim.shares:
                continue
            if claim.gpu is not None:
                left[claim.gpu] -= claim.shares
            order = self.grid.world.orders.get(one.reported_by)
            if order is not None and one.is_in_effect and order.gpu_memory_bytes is not None:
                assert order.replicas * order.gpu_memory_bytes <= claim.shares * GIB, one
        assert min(left) >= 0


def refused(change: Callable[[], object]) -> bool | None:
    """Whether a change is refused for its GPU memory; None if it is refused for its main memory."""
    try:
        change()
    except CapacityError:
        return True
    except InputError as error:
        if error.place != "replicas":
            raise
        return None
    return False


def settled(grid: Simulation, cases: Cases, name: str) -> None:
    def is_settled() -> bool:
        view = cases.service(name)
        return view.service.is_in_effect and view.state is ServiceState.RUNNING

    assert grid.run_until(is_settled, at_most_steps=2000), cases.service(name)


def change_one(
    model: Model, before: Service, command: str, version: str, replicas: int, seconds: float
) -> None:
    """Change a running service in one way, and compare the answer with the model."""
    grid, cases, name = model.grid, model.cases, before.name
    wanted = {
        "version": (version, before.replicas),
        "replicas": (before.version, replicas),
        "both": (version, replicas),
        "broken": (version, before.replicas),
        "rollback": (before.previous, before.replicas),
        "settings": (before.version, before.replicas),
    }[command]
    if command == "rollback" and not before.previous:
        return
    is_same = command not in ("settings", "rollback") and wanted == (before.version, before.replicas)
    fits = is_same or model.may_change(before, *wanted)
    grid.world.broken = {version} if command == "broken" and not is_same else set()
    if command == "rollback":
        answer = refused(lambda: cases.rollback_service(name))
    elif command == "settings":
        settings = ServiceSettings(timeout_seconds=seconds)
        answer = refused(lambda: cases.update_service(name, settings=settings))
    else:
        answer = refused(lambda: cases.update_service(name, model=wanted[0], replicas=wanted[1]))
    assert answer in (None, not fits), (command, before, wanted)
    if grid.world.broken and answer is False:
        assert grid.run_until(lambda: cases.service(name).state is ServiceState.FAILING, at_most_steps=2000)
        model.check()
        cases.rollback_service(name)
    grid.world.broken = set()
    settled(grid, cases, name)


COMMANDS = ("stop", "version", "replicas", "both", "broken", "rollback", "settings")


@pytest.mark.parametrize("seed", range(12))
def test_random_commands_are_admitted_exactly_if_their_gpu_memory_is_free(seed: int) -> None:
    chance = random.Random(seed)
    grid, cases = grid_of(gpus=GPUS)
    grid.world.gpu_needs = dict(NEEDS)
    for version in NEEDS:  # services that have stopped keep the measurements
        meter = f"meter{version[-1]}"
        started(grid, cases, meter, version)
        stopped(grid, cases, meter)
    model = Model(grid, cases)
    for _ in range(25):
        name, version, replicas = chance.choice(NAMES), f"w/m@{chance.randint(1, 4)}", chance.randint(1, 3)
        command, seconds = chance.choice(COMMANDS), chance.uniform(1.0, 9.0)
        if not model.runs(name):
            start = partial(cases.start_service, name, model=version, replicas=replicas, resource="servers")
            fits = model.may_start(name, version, replicas)
            assert refused(partial(start, settings=TRUSTED)) != fits, (name, version, replicas)
            if fits:
                settled(grid, cases, name)
        elif command == "stop":
            stopped(grid, cases, name)
        else:
            change_one(model, cases.service(name).service, command, version, replicas, seconds)
        model.check()
    for name in filter(model.runs, NAMES):
        stopped(grid, cases, name)
    # nothing is left behind: a version that was not measured gets a whole GPU
    for number in (1, 2, 3):
        cases.remove_service(f"meter{number}")
    for name in filter(model.exists, NAMES):
        cases.remove_service(name)
    grid.world.gpu_needs = {}
    claim = started(grid, cases, "last", "w/m@1").service.gpu_claim
    assert claim is not None
    assert claim.shares == SHARES
