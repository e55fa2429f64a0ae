"""Lambda Cloud passes the conformance suite for providers, against the simulated Lambda Cloud, and behaves as
documented."""

import itertools
import subprocess
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from gridmill.clouds.lambda_cloud.cloud import LIST_LAG_SECONDS, LambdaCloud, make
from gridmill.clouds.lambda_cloud.launch import name_of
from gridmill.clouds.lambda_cloud.rate_limit import LAUNCH_SECONDS, RateLimit
from gridmill.clouds.lambda_cloud.requests import LambdaRequests
from gridmill.clouds.lambda_cloud.settings import LambdaSettings, read_settings
from gridmill.errors import (
    ConflictError,
    CredentialsError,
    GridmillError,
    NoMachineError,
    QuotaError,
    RefusedError,
    UnavailableError,
)
from gridmill.ports.cloud import EndCommands, LaunchRequest, MachineState, SelfEnd
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.cloud_faults import CloudFaults, Outcome, PlannedFault
from gridmill.testing.cloud.lambda_cloud.simulation import LambdaSimulation, simulated_lambda
from gridmill.testing.cloud_suite import PUBLIC_KEY, CloudHarness, CloudSuite, raises

ACTIONS = {
    "launch": "launchInstance",
    "machines": "listInstances",
    "leftovers": "listSSHKeys",
    "terminate": "terminateInstance",
    "delete": "deleteSSHKey",
    "offers": "listInstanceTypes",
    "check_account": "listInstances",
}
TYPE, REGION = "gpu_1x_a10", "us-east-1"


def settings(simulation: LambdaSimulation, **more: str) -> LambdaSettings:
    """Return the settings of the simulated account."""
    given = {"endpoint_url": simulation.endpoint_url, "api_key": "key", **more}
    return read_settings(given, {"key": simulation.api_key, "machine": simulation.api_key}.__getitem__, {})


def account(simulation: LambdaSimulation, **more: str) -> LambdaCloud:
    """Open the simulated account. Pauses move the time of the simulation forward."""
    clock = simulation.clock
    rate_limit = RateLimit(clock.monotonic, simulation.advance)
    return LambdaCloud(settings(simulation, **more), None, rate_limit, clock.now)


class LambdaHarness(CloudHarness):
    """An account at the simulated Lambda Cloud, whose time passes at each step."""

    region, zone, instance_type = REGION, REGION, TYPE

    def __init__(self, simulation: LambdaSimulation) -> None:
        self.simulation = simulation
        simulation.faults.quotas["instances"] = 10_000
        self.cloud = account(simulation)

    def alive(self) -> Collection[str]:
        return [one.id for one in self.simulation.running()]

    def step(self) -> None:
        self.simulation.advance(5.0)

    def reopen(self) -> None:
        self.cloud.close()
        self.cloud = account(self.simulation)

    def refuse(self, error: type[GridmillError]) -> LaunchRequest:
        request = self.request("refused")
        if error is NoMachineError:
            self.simulation.faults.capacity["*"] = 0
        elif error is QuotaError:
            self.simulation.faults.quotas["instances"] = 0
        else:
            return replace(request, image="no-such-family")
        return request

    def fail(self, method: str, fault: str) -> None:
        outcome = Outcome.ERROR if fault == "before" else Outcome.LOST
        self.simulation.faults.plan(PlannedFault(action=ACTIONS[method], outcome=outcome))

    def refuse_credentials(self, refuse: bool) -> None:
        if refuse:
            self.simulation.revoke()
        else:
            self.simulation.restore()


@pytest.fixture
def simulation() -> Iterator[LambdaSimulation]:
    with simulated_lambda(clock=FakeClock()) as running:
        running.faults.throttling = True
        yield running


class TestLambda(CloudSuite):
    """The suite with lists that are complete and lists that lag. The limits of the rate are enforced."""

    @pytest.fixture(params=[0.0, 20.0], ids=["prompt", "lagging"])
    def harness(self, simulation: LambdaSimulation, request: pytest.FixtureRequest) -> Iterator[CloudHarness]:
        if request.param:
            simulation.faults.list_lag_seconds = request.param
            simulation.faults.pending_seconds = 10.0
            simulation.faults.shutting_down_seconds = 20.0
        harness = LambdaHarness(simulation)
        yield harness
        harness.cloud.close()

    def test_a_spot_machine_is_listed_as_one(self, harness: CloudHarness) -> None:
        """Lambda Cloud has no spot machines: a request for one is refused."""
        with raises(RefusedError) as caught:
            harness.cloud.launch(replace(harness.request("token-1"), spot=True))
        assert "spot" in caught[0].message
        assert not harness.alive()


@pytest.fixture
def cloud(simulation: LambdaSimulation) -> Iterator[LambdaCloud]:
    opened = account(simulation)
    yield opened
    opened.close()


def _request(token: str, **changes: object) -> LaunchRequest:
    request = LaunchRequest(
        token=token,
        lease="lease-1",
        owner="grid-a",
        region=REGION,
        zone=REGION,
        instance_type=TYPE,
        image="",
        spot=False,
        disk_bytes=0,
        ssh_public_key=PUBLIC_KEY,
        user_data="#cloud-config\n",
        max_seconds=3600.0,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def _actions(simulation: LambdaSimulation) -> list[str]:
    return [action for _, _, action in simulation.requests]


def test_requests_keep_the_limits(simulation, cloud):
    """Whether the simulation, which enforces the limits, refuses no request."""
    for number in range(3):
        cloud.launch(_request(f"t{number}"))
        assert len(cloud.machines()) == number + 1
    launched = [at for at, _, action in simulation.requests if action == "launchInstance"]
    assert min(later - earlier for earlier, later in itertools.pairwise(launched)) >= LAUNCH_SECONDS - 0.01


def test_a_refused_rate_names_the_time_and_holds_back_further_calls(simulation, cloud):
    simulation.faults.fail("listInstances", "global/rate-limited", status=429)
    with pytest.raises(UnavailableError, match="repeat it in 1 s"):
        cloud.machines()
    assert cloud.machines() == ()


def test_a_launch_that_was_refused_for_its_rate_is_sent_again_without_a_search(simulation, cloud):
    simulation.faults.fail("launchInstance", "global/rate-limited", status=429)
    with pytest.raises(UnavailableError):
        cloud.launch(_request("t1"))
    before = simulation.clock.monotonic()
    cloud.launch(_request("t1"))
    assert simulation.clock.monotonic() - before < LIST_LAG_SECONDS + LAUNCH_SECONDS + 10
    assert len(simulation.running()) == 1


def test_a_refused_launch_leaves_no_key(simulation, cloud):
    simulation.faults.fail("launchInstance", "instance-operations/launch/insufficient-capacity")
    with pytest.raises(NoMachineError):
        cloud.launch(_request("t1"))
    assert simulation.leftovers() == []


def test_a_region_without_a_free_machine_costs_no_launch(simulation, cloud):
    simulation.faults.capacity[f"{TYPE}@{REGION}"] = 0
    assert REGION not in {offer.region for offer in cloud.offers("", TYPE)}
    with pytest.raises(NoMachineError, match=f"no free {TYPE} in {REGION}"):
        cloud.launch(_request("t1"))
    assert "launchInstance" not in _actions(simulation)
    assert simulation.leftovers() == []


def test_a_type_without_a_free_machine_anywhere_can_be_waited_for(simulation, cloud):
    simulation.faults.capacity[f"{TYPE}@*"] = 0
    (offer,) = cloud.offers("", TYPE)
    with pytest.raises(NoMachineError):
        cloud.launch(_request("t1", region=offer.region))


def test_a_second_key_of_the_same_name_is_deleted(simulation, cloud):
    """Lambda Cloud accepts it, and then refuses each launch with the name."""
    request = _request("t1")
    requests = LambdaRequests(settings(simulation), None, cloud._rate_limit)
    for _ in range(2):
        requests.post("/ssh-keys", {"name": name_of(request), "public_key": PUBLIC_KEY})
    requests.close()
    cloud.launch(request)
    assert len(simulation.running()) == 1
    assert len([one for one in cloud.leftovers() if one.lease == "lease-1"]) == 1


def test_a_lost_answer_to_the_key_makes_no_second_key(simulation, cloud):
    simulation.faults.lose_answers("addSSHKey")
    with pytest.raises(UnavailableError):
        cloud.launch(_request("t1"))
    cloud.launch(_request("t1"))
    assert (len(simulation.running()), len(cloud.leftovers())) == (1, 1)


def test_things_of_others_are_neither_listed_nor_changed(simulation, cloud):
    requests = LambdaRequests(settings(simulation), None, cloud._rate_limit)
    requests.post("/ssh-keys", {"name": "laptop", "public_key": PUBLIC_KEY})
    body = {"region_name": REGION, "instance_type_name": TYPE, "ssh_key_names": ["laptop"], "name": "mine"}
    requests.post("/instance-operations/launch", body, is_launch=True)
    requests.close()
    assert cloud.machines() == ()
    assert cloud.leftovers() == ()
    cloud.launch(_request("t1"))
    assert {one.lease for one in cloud.machines()} == {"lease-1"}
    assert not {action for action in _actions(simulation) if "irewall" in action}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"spot": True}, "no spot machines"),
        ({"region": "asia-south-1"}, "not among the regions"),
        ({"allowed_addresses": ("192.0.2.0/24",)}, "firewall rules"),
        ({"disk_bytes": 10**15}, "cannot be enlarged"),
        ({"image": "no-such-family"}, "image"),
        ({"instance_type": "gpu_9x_none"}, "instance type"),
    ],
)
def test_what_lambda_cannot_do_is_refused(simulation, change, why):
    cloud = account(simulation, regions="us-")
    with pytest.raises(RefusedError, match=why):
        cloud.launch(_request("t1", **change))
    assert simulation.leftovers() == []
    cloud.close()


def test_an_account_that_is_inactive_and_a_key_that_is_missing(simulation):
    cloud = account(simulation)
    simulation.set_active(False)
    with pytest.raises(CredentialsError, match="account-inactive"):
        cloud.machines()
    cloud.close()
    keyless = LambdaCloud(replace(settings(simulation), api_key=""))
    with pytest.raises(CredentialsError) as caught:
        keyless.machines()
    assert "gridmill add secret" in caught.value.hint
    keyless.close()


def test_a_renewed_key_is_used_without_a_restart(simulation):
    secrets = {"key": simulation.api_key}
    given = {"endpoint_url": simulation.endpoint_url, "api_key": "key", "account": "lab"}
    read = lambda: read_settings(given, secrets.__getitem__, {})  # noqa: E731
    cloud = LambdaCloud(read(), read, RateLimit(simulation.clock.monotonic, simulation.advance))
    machine = cloud.launch(_request("t1"))
    simulation.revoke(simulation.api_key)
    secrets["key"] = simulation.add_api_key()
    with pytest.raises(CredentialsError):
        cloud.terminate(machine)
    cloud.terminate(machine)
    assert cloud.account_name() == "lab"
    cloud.close()


def test_objects_of_one_account_share_its_limits(simulation):
    given = {"endpoint_url": simulation.endpoint_url, "api_key": "key"}
    resolve = {"key": simulation.api_key, "other": "another-key"}.__getitem__
    first, second = make(given, resolve), make(given, resolve)
    other = make({**given, "api_key": "other"}, resolve)
    assert first._rate_limit is second._rate_limit
    assert first._rate_limit is not other._rate_limit
    assert first.account_name() == second.account_name() != other.account_name()


def test_a_machine_that_got_a_key_ends_itself(simulation, tmp_path):
    cloud = account(simulation, self_terminate="machine")
    assert isinstance(cloud, EndCommands)
    assert cloud.traits.self_end is SelfEnd.OWN_CALL
    machine, other = (cloud.launch(_request(token, lease=token)) for token in ("t1", "t2"))
    command = cloud.end_command("t1").replace("sleep 15", "")
    simulation.advance(60)
    simulation.faults.throttling = False  # the machine is another client, with other calls
    done = subprocess.run(["sh"], input=command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert [one.id for one in simulation.running()] == [other.id]
    assert machine.id != other.id
    cloud.close()


def test_a_machine_without_a_key_cannot_end_itself(simulation, cloud):
    assert cloud.traits.self_end is SelfEnd.NONE
    assert cloud.end_command("t1") == ""
    machine = cloud.launch(_request("t1"))
    simulation.advance(60)
    simulation.shut_down(machine.id)
    simulation.advance(600)
    assert cloud.machines()[0].state is MachineState.UNKNOWN
    assert len(simulation.running()) == 1


@pytest.mark.parametrize("seed", range(4))
def test_no_machine_is_rented_twice_while_answers_are_lost_and_servers_fail(seed):
    faults = CloudFaults(
        seed=seed, error_rate=0.2, lost_rate=0.15, list_lag_seconds=20.0, quotas={"instances": 1000}
    )
    with simulated_lambda(clock=FakeClock(), faults=faults, seed=seed) as simulation:
        cloud = account(simulation)
        requests = [_request(f"t{number}", lease=f"lease-{number % 3}") for number in range(8)]
        ids = {_until_it_answers(partial(cloud.launch, request)).id for request in requests}
        assert ids == {one.id for one in simulation.running()}
        assert len(ids) == 8
        simulation.advance(60)
        for machine in _until_it_answers(cloud.machines):
            _until_it_answers(partial(cloud.terminate, machine))
        simulation.advance(60)
        assert not simulation.running()
        for leftover in _until_it_answers(cloud.leftovers):
            _until_it_answers(partial(cloud.delete, leftover))
        assert simulation.leftovers() == []
        cloud.close()


def _until_it_answers(call):
    for _ in range(100):
        with suppress(UnavailableError, ConflictError):
            return call()
    raise AssertionError("the provider did not answer 100 times")
