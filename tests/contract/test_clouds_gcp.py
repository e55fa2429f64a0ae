"""Google Compute Engine passes the conformance suite for providers, against the simulated Compute Engine, and
behaves as documented."""

import json
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

import httpx
import pytest

from gridmill.clouds.gcp.cloud import GcpCloud, make
from gridmill.clouds.gcp.policy import ACT_AS, COMPUTE, OWN_POLICY, SELF_END, SERVICE_ACCOUNT
from gridmill.clouds.gcp.settings import GcpSettings, read_settings
from gridmill.errors import (
    ConflictError,
    CredentialsError,
    GridmillError,
    NoMachineError,
    QuotaError,
    RefusedError,
    UnavailableError,
)
from gridmill.ports.cloud import LaunchRequest, MachineState
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.cloud_faults import CloudFaults, Outcome, PlannedFault
from gridmill.testing.cloud.gce.simulation import GceSimulation, simulated_gce
from gridmill.testing.cloud_suite import CloudHarness, CloudSuite

ACTIONS = {
    "launch": "instances.insert",
    "machines": "instances.aggregatedList",
    "leftovers": "disks.aggregatedList",
    "terminate": "instances.delete",
    "delete": "firewalls.delete",
    "offers": "machineTypes.list",
    "check_account": "projects.testIamPermissions",
}


def settings(gce: GceSimulation, **more: str) -> GcpSettings:
    """Return the settings of the simulated project."""
    key = json.dumps(gce.service_account_key)
    given = {"regions": "us-", "endpoint_url": gce.endpoint_url, "service_account_key": "key", **more}
    return read_settings(given, {"key": key}.__getitem__)


def account(gce: GceSimulation, **more: str) -> GcpCloud:
    """Open the simulated project. With a fake clock, waiting does not let operations end."""
    return GcpCloud(settings(gce, **more), launch_seconds=0.001)


class GceHarness(CloudHarness):
    """A project at the simulated Compute Engine, whose time passes at each step."""

    region, zone, instance_type = "us-central1", "us-central1-a", "g2-standard-4"
    unpriced_type = "n1-standard-4"

    def __init__(self, gce: GceSimulation) -> None:
        self.gce = gce
        gce.faults.unpriced_types.append("n1")
        self.cloud = account(gce)

    def alive(self) -> Collection[str]:
        return [one.name for one in self.gce.running()]

    def step(self) -> None:
        self.gce.advance(5.0)

    def reopen(self) -> None:
        self.cloud.close()
        self.cloud = account(self.gce)

    def refuse(self, error: type[GridmillError]) -> LaunchRequest:
        request = self.request("refused")
        # with a fake clock, an operation that takes time is not decided while the launch waits
        self.gce.faults.pending_seconds = 0.0
        if error is NoMachineError:
            self.gce.faults.capacity["*"] = 0
        elif error is QuotaError:
            self.gce.faults.quotas.clear()
            self.gce.faults.quotas["*"] = 0
        else:
            return replace(request, image="no-such-image")
        return request

    def fail(self, method: str, fault: str) -> None:
        outcome = Outcome.ERROR if fault == "before" else Outcome.LOST
        wrong = PlannedFault(action=ACTIONS[method], outcome=outcome, code="backendError", status=503)
        self.gce.faults.plan(wrong)

    def refuse_credentials(self, refuse: bool) -> None:
        if refuse:
            self.gce.revoke()
        else:
            self.gce.restore()


@pytest.fixture
def gce() -> Iterator[GceSimulation]:
    with simulated_gce(clock=FakeClock()) as simulation:
        simulation.faults.quotas["*"] = 10_000
        yield simulation


class TestGce(CloudSuite):
    """The suite with operations that end at once and operations that take some seconds."""

    @pytest.fixture(params=[0.0, 10.0], ids=["prompt", "slow"])
    def harness(self, gce: GceSimulation, request: pytest.FixtureRequest) -> Iterator[CloudHarness]:
        gce.faults.pending_seconds = request.param
        gce.faults.shutting_down_seconds = 2 * request.param
        harness = GceHarness(gce)
        yield harness
        harness.cloud.close()


@pytest.fixture
def cloud(gce: GceSimulation) -> Iterator[GcpCloud]:
    opened = account(gce)
    yield opened
    opened.close()


def _request(token: str, **changes: object) -> LaunchRequest:
    request = LaunchRequest(
        token=token,
        lease="lease-1",
        owner="grid-a",
        region="us-central1",
        zone="us-central1-a",
        instance_type="g2-standard-4",
        image="",
        spot=False,
        disk_bytes=0,
        ssh_public_key="",
        user_data="#cloud-config\n{}\n",
        max_seconds=3600.0,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def test_the_provider_deletes_a_machine_and_its_disk_at_the_end_of_its_longest_time(gce, cloud):
    cloud.launch(_request("t1"))
    gce.advance(3500.0)
    assert len(cloud.machines("grid-a")) == 1
    gce.advance(200.0)
    assert cloud.machines("grid-a") == ()
    assert {one.kind for one in cloud.leftovers()} == {"firewall-rule"}
    for one in cloud.leftovers():
        cloud.delete(one)
    assert gce.leftovers() == []


def test_a_machine_that_shuts_down_is_seen_as_stopped_and_can_be_ended(gce, cloud):
    machine = cloud.launch(_request("t1"))
    gce.advance(5.0)
    gce.shut_down(machine.id)
    gce.advance(60.0)
    (seen,) = cloud.machines("grid-a")
    assert (seen.state, seen.native_state) == (MachineState.STOPPED, "TERMINATED")
    cloud.terminate(seen)
    gce.advance(60.0)
    assert cloud.machines() == ()
    assert [one for one in gce.leftovers() if one.startswith(("instances", "disks"))] == []


def test_an_interrupted_spot_machine_is_deleted_with_its_disk(gce, cloud):
    machine = cloud.launch(_request("t1", spot=True))
    gce.advance(5.0)
    gce.interrupt(machine.id)
    gce.advance(120.0)
    assert cloud.machines() == ()
    assert {one.kind for one in cloud.leftovers()} == {"firewall-rule"}


def test_gpus_are_attached_to_machines_of_n1(gce, cloud):
    offers = [one for one in cloud.offers("us-", "") if one.instance_type.endswith("+1xnvidia-tesla-t4")]
    offer = min(offers, key=lambda one: one.cpus)
    plain = {one.instance_type: one for one in cloud.offers(offer.region)}
    name = offer.instance_type.partition("+")[0]
    assert offer.price_micros is not None
    assert plain[name].price_micros is not None
    assert offer.price_micros > plain[name].price_micros > 0
    assert offer.spot_price_micros < offer.price_micros
    changes = {"region": offer.region, "zone": offer.zones[0], "instance_type": offer.instance_type}
    machine = cloud.launch(_request("t1", **changes))
    assert machine.instance_type == offer.instance_type
    (seen,) = cloud.machines()
    assert seen.instance_type == offer.instance_type


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("quotaExceeded", 403, QuotaError),
        ("forbidden", 403, RefusedError),
        ("authError", 401, CredentialsError),
        ("rateLimitExceeded", 403, UnavailableError),
        ("rateLimitExceeded", 429, UnavailableError),
        ("backendError", 503, UnavailableError),
        ("internalError", 500, UnavailableError),
    ],
)
def test_each_refusal_of_a_launch_has_its_class(gce, cloud, code, status, error):
    gce.faults.fail("instances.insert", code, status=status)
    with pytest.raises(error) as caught:
        cloud.launch(_request("t1"))
    assert type(caught.value) is error
    assert not gce.running()


def test_a_server_error_after_the_effect_is_not_a_refusal(gce, cloud):
    gce.faults.plan(PlannedFault(action="instances.insert", outcome=Outcome.ERROR_AFTER))
    with pytest.raises(UnavailableError):
        cloud.launch(_request("t1"))
    assert cloud.launch(_request("t1")).id == gce.running()[0].name
    assert len(gce.running()) == 1


@pytest.mark.parametrize("refusal", ["forbidden", "quotaExceeded"])
def test_a_repeated_launch_that_is_refused_returns_the_machine_of_the_first(gce, cloud, refusal):
    gce.faults.lose_answers("instances.insert")
    with pytest.raises(UnavailableError):
        cloud.launch(_request("t1"))
    gce.faults.fail("instances.insert", refusal, status=403)
    assert cloud.launch(_request("t1")).id == gce.running()[0].name
    assert len(gce.running()) == 1


def test_a_region_without_an_answer_is_never_an_empty_list(gce):
    cloud, all_regions = account(gce), account(gce, regions="")
    cloud.launch(_request("t1"))
    gce.faults.regions_down.append("us-central1")
    for ask in (cloud.machines, cloud.leftovers, all_regions.machines):
        with pytest.raises(UnavailableError):
            ask()
    cloud.close()
    all_regions.close()


def test_missing_rights_are_named(gce, cloud):
    gce.deny("compute.instances.delete", "compute.firewalls.*")
    missing = cloud.check_account("us-central1").missing_rights
    assert set(missing) == {
        "compute.instances.delete",
        "compute.firewalls.create",
        "compute.firewalls.delete",
        "compute.firewalls.list",
    }


def test_the_role_of_the_documentation_is_enough(gce):
    email = gce.add_service_account("least", allowed=COMPUTE)
    given = {"endpoint_url": gce.endpoint_url, "regions": "us-", "service_account_key": "key"}
    cloud = make(given, {"key": json.dumps(gce.key_of(email))}.__getitem__)
    assert cloud.check_account("us-central1").missing_rights == ()
    assert cloud.offers("us-central1", "g2-standard-4")[0].price_micros
    machine = cloud.launch(_request("t1"))
    assert cloud.machines("grid-a")
    cloud.terminate(machine)
    gce.advance(60.0)
    for one in cloud.leftovers():
        cloud.delete(one)
    assert gce.leftovers() == []
    cloud.close()


def test_a_service_account_of_a_machine_can_delete_only_machines_of_gridmill(gce, cloud):
    machine = cloud.launch(_request("t1"))
    email = gce.add_service_account(
        "end", allowed=SELF_END, resources=("*/instances/gridmill-*", "*/disks/gridmill-*")
    )
    headers = {"Authorization": f"Bearer {gce.access_token(email)}"}
    zone = f"{gce.endpoint_url}/compute/v1/projects/{gce.project}/zones/us-central1-a/instances"
    assert httpx.delete(f"{zone}/other", headers=headers).status_code in (403, 404)
    assert httpx.get(f"{zone}/{machine.id}", headers=headers).status_code == 403
    assert httpx.delete(f"{zone}/{machine.id}", headers=headers).status_code == 200
    gce.advance(60.0)
    assert cloud.machines() == ()


def _with_own_accounts(gce, count: int):
    role = gce.add_role("gridmill_machine", SELF_END)
    emails = [gce.add_service_account(f"end-{number}", allowed=()) for number in range(count)]
    given = {
        "endpoint_url": gce.endpoint_url,
        "regions": "us-",
        "service_account_key": "key",
        "service_account": ",".join(emails),
        "machine_role": role,
    }
    email = gce.add_service_account("least", allowed=(*COMPUTE, *SERVICE_ACCOUNT, *OWN_POLICY, ACT_AS))
    return make(given, {"key": json.dumps(gce.key_of(email))}.__getitem__)


def _delete_as(gce, machine, target) -> int:
    """The status of the answer when a machine deletes another one with its own service account."""
    [email] = [one.service_account for one in gce.running() if one.name == machine.id]
    headers = {"Authorization": f"Bearer {gce.access_token(email)}"}
    zone = f"{gce.endpoint_url}/compute/v1/projects/{gce.project}/zones/{target.zone}"
    return httpx.delete(f"{zone}/instances/{target.id}", headers=headers).status_code


def test_a_machine_with_an_account_of_its_own_can_delete_itself_and_no_other_machine(gce):
    cloud = _with_own_accounts(gce, 2)
    first, second = (cloud.launch(_request(f"t{number}")) for number in (1, 2))
    assert len({one.service_account for one in gce.running()}) == 2
    assert _delete_as(gce, first, second) == 403
    assert _delete_as(gce, second, first) == 403
    assert cloud.launch(_request("t1")).id == first.id, "a repeated request changes nothing"
    assert _delete_as(gce, first, first) == 200
    gce.advance(60.0)
    third = cloud.launch(_request("t3"))
    assert _delete_as(gce, third, second) == 403, "the account of the deleted machine is used again"
    assert _delete_as(gce, second, second) == 200
    cloud.close()


def test_a_policy_that_could_not_be_set_is_set_when_the_machine_is_listed(gce):
    cloud = _with_own_accounts(gce, 1)
    least = next(one for one in gce.world.accounts.principals if one.startswith("least@"))
    gce.deny("compute.disks.setIamPolicy", "compute.instances.setIamPolicy", email=least)
    machine = cloud.launch(_request("t1"))
    assert _delete_as(gce, machine, machine) == 403
    gce.deny(email=least)
    cloud.machines()
    assert _delete_as(gce, machine, machine) == 403, "this list is of all grids, which have their own"
    cloud.machines("grid-a")
    assert _delete_as(gce, machine, machine) == 200
    cloud.close()


def test_a_right_to_end_machines_that_is_lost_is_repeated(gce, cloud):
    machine = cloud.launch(_request("t1"))
    gce.deny("compute.instances.delete")
    with pytest.raises(CredentialsError) as caught:
        cloud.terminate(machine)
    assert "role" in caught.value.hint
    gce.deny()
    cloud.terminate(machine)
    gce.advance(60.0)
    assert not gce.running()


def test_quotas_are_shown_by_region_with_their_use(gce, cloud):
    cloud.launch(_request("t1"))
    quotas = {(one.region, one.name): one for one in cloud.check_account("us-").quotas}
    assert len({region for region, _ in quotas}) > 1
    assert quotas["us-central1", "L4 GPUs, on demand"].used == 1
    assert quotas["us-central1", "all GPUs in all regions, on demand"].used == 1


def test_a_firewall_rule_permits_ssh_to_the_machines_of_one_lease(gce, cloud):
    cloud.launch(_request("t1"))
    cloud.launch(_request("t2"))
    cloud.launch(_request("t3", lease="lease-2"))
    rules = [one for one in cloud.leftovers() if one.kind == "firewall-rule"]
    assert sorted(one.lease for one in rules) == ["lease-1", "lease-2"]
    with pytest.raises(ConflictError):
        cloud.delete(rules[0])


def test_a_lost_answer_to_the_firewall_rule_makes_no_second_rule(gce, cloud):
    gce.faults.lose_answers("firewalls.insert")
    with pytest.raises(UnavailableError):
        cloud.launch(_request("t1"))
    cloud.launch(_request("t1"))
    assert len([one for one in cloud.leftovers() if one.kind == "firewall-rule"]) == 1
    assert len(gce.running()) == 1


def test_fifty_machines_at_once_are_fifty_machines(gce, cloud):
    with ThreadPoolExecutor(8) as threads:
        launch = lambda number: cloud.launch(_request(f"t{number}", lease=f"lease-{number}"))  # noqa: E731
        ids = {machine.id for machine in threads.map(launch, range(50))}
    assert ids == {one.name for one in gce.running()} == {one.id for one in cloud.machines("grid-a")}
    assert len(ids) == 50


@pytest.mark.parametrize("seed", range(4))
def test_no_machine_is_rented_twice_while_answers_are_lost_and_servers_fail(seed):
    faults = CloudFaults(seed=seed, error_rate=0.2, lost_rate=0.15, quotas={"*": 10_000})
    with simulated_gce(clock=FakeClock(), faults=faults, seed=seed) as gce:
        cloud = account(gce)
        requests = [_request(f"t{number}", lease=f"lease-{number % 3}") for number in range(12)]
        ids = {_until_it_answers(partial(cloud.launch, request)).id for request in requests}
        assert ids == {one.name for one in gce.running()}
        assert len(ids) == 12
        for machine in _until_it_answers(cloud.machines):
            _until_it_answers(partial(cloud.terminate, machine))
        gce.advance(60)
        assert not gce.running()
        for leftover in _until_it_answers(cloud.leftovers):
            _until_it_answers(partial(cloud.delete, leftover))
        gce.advance(60)
        assert gce.leftovers() == []
        cloud.close()


def _until_it_answers(call):
    for _ in range(200):
        with suppress(UnavailableError):
            return call()
    raise AssertionError("the provider did not answer 200 times")
