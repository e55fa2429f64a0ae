"""EC2 passes the conformance suite for providers, against the simulated EC2, and behaves as documented."""

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from gridmill.clouds.aws.cloud import AwsCloud, make
from gridmill.clouds.aws.images import read_image
from gridmill.clouds.aws.launch import Image
from gridmill.clouds.aws.offers import SPOT_SECONDS, Offers
from gridmill.clouds.aws.requests import AwsRequests
from gridmill.clouds.aws.settings import AwsSettings, read_settings
from gridmill.clouds.offer_cache import CachedOffers, OfferCache
from gridmill.errors import (
    ConflictError,
    CredentialsError,
    GridmillError,
    NoMachineError,
    NotFoundError,
    QuotaError,
    RefusedError,
    UnavailableError,
)
from gridmill.ports.cloud import LaunchRequest, MachineState
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.cloud_faults import CloudFaults, Outcome, PlannedFault
from gridmill.testing.cloud.ec2.simulation import EC2Simulation, simulated_ec2
from gridmill.testing.cloud_suite import CloudHarness, CloudSuite

REGIONS = ("us-east-1", "us-west-2")
ACTIONS = {
    "launch": "RunInstances",
    "machines": "DescribeInstances",
    "leftovers": "DescribeVolumes",
    "terminate": "TerminateInstances",
    "delete": "DeleteSecurityGroup",
    "offers": "DescribeInstanceTypes",
    "check_account": "GetCallerIdentity",
}


def settings(ec2: EC2Simulation, **more: str) -> AwsSettings:
    """Return the settings of the simulated account."""
    given = {
        "regions": ",".join(REGIONS),
        "endpoint_url": ec2.endpoint_url,
        "access_key_id": ec2.access_key,
        "secret_access_key": "key",
        **more,
    }
    return read_settings(given, {"key": ec2.secret_key}.__getitem__)


def account(ec2: EC2Simulation, **more: str) -> AwsCloud:
    """Open the simulated account."""
    return AwsCloud(settings(ec2, **more))


class Ec2Harness(CloudHarness):
    """An account at the simulated EC2, whose time passes at each step."""

    region, zone, instance_type = "us-east-1", "us-east-1a", "g5.xlarge"
    unpriced_type = "g6.xlarge"

    def __init__(self, ec2: EC2Simulation) -> None:
        self.ec2 = ec2
        ec2.faults.quotas["*"] = 10_000
        ec2.faults.unpriced_types.append("g6.xlarge")
        self.cloud = account(ec2)
        self.image = read_image(AwsRequests(settings(ec2)), self.region, "", "t3.micro").id

    def alive(self) -> Collection[str]:
        return [one.id for one in self.ec2.running()]

    def step(self) -> None:
        self.ec2.advance(5.0)

    def reopen(self) -> None:
        self.cloud.close()
        self.cloud = account(self.ec2)

    def refuse(self, error: type[GridmillError]) -> LaunchRequest:
        request = self.request("refused")
        if error is NoMachineError:
            self.ec2.faults.capacity["*"] = 0
        elif error is QuotaError:
            self.ec2.faults.quotas.clear()
            self.ec2.faults.quotas["*"] = 0
        else:
            return replace(request, image="ami-00000000000000001")
        return request

    def fail(self, method: str, fault: str) -> None:
        outcome = Outcome.ERROR if fault == "before" else Outcome.LOST
        self.ec2.faults.plan(PlannedFault(action=ACTIONS[method], outcome=outcome))

    def refuse_credentials(self, refuse: bool) -> None:
        if refuse:
            self.ec2.revoke()
        else:
            self.ec2.restore()


@pytest.fixture
def ec2() -> Iterator[EC2Simulation]:
    with simulated_ec2(clock=FakeClock()) as simulation:
        yield simulation


class TestEc2(CloudSuite):
    """The suite with lists that are complete and lists that lag."""

    @pytest.fixture(params=[0.0, 30.0], ids=["prompt", "lagging"])
    def harness(self, ec2: EC2Simulation, request: pytest.FixtureRequest) -> Iterator[CloudHarness]:
        if request.param:
            ec2.faults.list_lag_seconds = request.param
            ec2.faults.pending_seconds = 10.0
            ec2.faults.shutting_down_seconds = 20.0
        harness = Ec2Harness(ec2)
        yield harness
        harness.cloud.close()


@pytest.fixture
def cloud(ec2: EC2Simulation) -> Iterator[AwsCloud]:
    opened = account(ec2)
    yield opened
    opened.close()


def _request(token: str, **changes: object) -> LaunchRequest:
    fields = {"lease": "lease-1", "region": "us-east-1", "zone": "us-east-1a", "instance_type": "g5.xlarge"}
    request = LaunchRequest(
        token=token,
        owner="grid-a",
        image="",
        spot=False,
        disk_bytes=0,
        ssh_public_key="",
        user_data="#!/bin/sh\n",
        max_seconds=3600.0,
        **fields,  # type: ignore[arg-type]
    )
    return replace(request, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("InsufficientInstanceCapacity", 500, NoMachineError),
        ("Unsupported", 400, NoMachineError),
        ("VcpuLimitExceeded", 400, QuotaError),
        ("MaxSpotInstanceCountExceeded", 400, QuotaError),
        ("InvalidAMIID.NotFound", 400, RefusedError),
        ("UnauthorizedOperation", 403, RefusedError),
        ("AuthFailure", 401, CredentialsError),
        ("RequestLimitExceeded", 503, UnavailableError),
        ("InternalError", 500, UnavailableError),
        ("IdempotentParameterMismatch", 400, ConflictError),
    ],
)
def test_each_refusal_of_a_launch_has_its_class(ec2, cloud, code, status, error):
    ec2.faults.fail("RunInstances", code, status=status)
    with pytest.raises(error) as caught:
        cloud.launch(_request("t1"))
    assert type(caught.value) is error
    assert caught.value.place == "aws us-east-1 RunInstances"
    assert not ec2.running()


def test_a_server_error_after_the_effect_is_not_a_refusal(ec2, cloud):
    ec2.faults.plan(PlannedFault(action="RunInstances", outcome=Outcome.ERROR_AFTER))
    with pytest.raises(UnavailableError):
        cloud.launch(_request("t1"))
    assert cloud.launch(_request("t1")).id == ec2.running()[0].id
    assert len(ec2.running()) == 1


def test_a_repeated_launch_without_the_right_returns_the_machine_of_the_first(ec2, cloud):
    ec2.faults.lose_answers("RunInstances")
    with pytest.raises(UnavailableError):
        cloud.launch(_request("t1"))
    ec2.deny("ec2:RunInstances")
    assert cloud.launch(_request("t1")).id == ec2.running()[0].id


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("InsufficientInstanceCapacity", NoMachineError),
        ("VcpuLimitExceeded", QuotaError),
        ("InvalidAMIID.NotFound", RefusedError),
    ],
)
def test_a_repeated_launch_that_is_refused_returns_the_machine_of_the_first(ec2, cloud, code, error):
    ec2.faults.lose_answers("RunInstances")
    with pytest.raises(UnavailableError):
        cloud.launch(_request("t1"))
    ec2.faults.fail("RunInstances", code)
    assert cloud.launch(_request("t1")).id == ec2.running()[0].id
    ec2.faults.fail("RunInstances", code)
    with pytest.raises(error):
        cloud.launch(_request("t2"))
    assert len(ec2.running()) == 1


def test_nothing_is_sent_twice(ec2, cloud):
    ec2.faults.fail("DescribeInstances", "RequestLimitExceeded", status=503)
    with pytest.raises(UnavailableError, match="RequestLimitExceeded"):
        cloud.machines()
    actions = [action for _, _, action in ec2.requests]
    assert actions.count("DescribeInstances") <= len(REGIONS)


def test_a_region_without_an_answer_is_never_an_empty_list(ec2, cloud):
    cloud.launch(_request("t1"))
    ec2.faults.regions_down.append("us-west-2")
    with pytest.raises(UnavailableError, match="did not answer"):
        cloud.machines()
    with pytest.raises(UnavailableError, match="did not answer"):
        cloud.leftovers()


def test_a_region_that_the_account_lost_is_an_error(ec2, cloud):
    ec2.faults.regions_gone.append("us-west-2")
    with pytest.raises(CredentialsError):
        cloud.machines()


def test_regions_that_begin_with_a_prefix_are_asked(ec2):
    cloud = account(ec2, regions="us-west-")
    try:
        assert {offer.region for offer in cloud.offers("", "g5.xlarge")} <= {"us-west-1", "us-west-2"}
        assert cloud.offers("", "g5.xlarge")
        with pytest.raises(RefusedError, match="us-east-1"):
            cloud.launch(_request("t1"))
    finally:
        cloud.close()


def test_missing_rights_are_named(ec2, cloud):
    ec2.deny("ec2:TerminateInstances", "ec2:RunInstances", "pricing:*")
    missing = cloud.check_account("us-east-1").missing_rights
    assert set(missing) == {"ec2:TerminateInstances", "ec2:RunInstances", "pricing:GetProducts"}
    assert not ec2.running()


def test_rights_that_were_found_are_not_checked_again_with_each_reading_of_the_quotas(ec2, cloud):
    cloud.check_account("us-east-1")
    before = len(ec2.requests)
    assert cloud.check_account("us-east-1").quotas
    assert {action for _, _, action in ec2.requests[before:]} == {
        "GetCallerIdentity",
        "ListServiceQuotas",
        "DescribeInstances",
    }


def test_a_right_to_end_machines_that_is_lost_is_repeated(ec2, cloud):
    machine = cloud.launch(_request("t1"))
    ec2.deny("ec2:TerminateInstances")
    with pytest.raises(CredentialsError) as caught:
        cloud.terminate(machine)
    assert "TerminateInstances" in caught.value.hint
    ec2.deny()
    cloud.terminate(machine)
    assert not ec2.running()


def test_quotas_are_shown_by_region_with_their_use(ec2, cloud):
    cloud.launch(_request("t1"))
    quotas = {(one.region, one.name): one for one in cloud.check_account("us-").quotas}
    assert {region for region, _ in quotas} == set(REGIONS)
    assert quotas["us-east-1", "G and VT, on demand"].used == 4
    assert quotas["us-east-1", "G and VT, spot"].used == 0
    assert quotas["us-west-2", "G and VT, on demand"].used == 0


def test_prices_without_the_right_are_unknown(ec2, cloud):
    ec2.deny("pricing:*")
    (offer,) = cloud.offers("us-east-1", "g5.xlarge")
    assert offer.price_micros is None
    ec2.deny()
    (offer,) = cloud.offers("us-east-1", "g5.xlarge")
    assert offer.price_micros is not None


def test_offers_are_asked_once_a_day(ec2, tmp_path):
    for _ in range(2):
        cloud = account(ec2, cache_folder=str(tmp_path / "cache"))
        assert cloud.offers("us-east-1", "g5.xlarge")[0].read
        cloud.close()
    actions = [(region, action) for _, region, action in ec2.requests]
    assert ("us-west-2", "DescribeInstanceTypes") not in actions
    before = len(actions)
    cloud = account(ec2, cache_folder=str(tmp_path / "cache"))
    cloud.offers("us-east-1")
    cloud.close()
    assert len(ec2.requests) == before


def test_spot_prices_are_read_again_after_five_minutes(ec2, tmp_path):
    now = [1000.0]
    requests = AwsRequests(settings(ec2))

    def asked() -> list[str]:
        return [action for _, _, action in ec2.requests]

    offers = Offers(requests, str(tmp_path), lambda: now[0])
    (first,) = offers.in_region("us-east-1", "g5.xlarge")
    old = replace(first, spot_price_micros=1)
    cached = CachedOffers(read=1000.0, offers=(old,), spot_read=1000.0)
    OfferCache("aws", str(tmp_path), 1.0).keep("us-east-1", cached)
    before, again = len(asked()), Offers(requests, str(tmp_path), lambda: now[0])
    now[0] += SPOT_SECONDS - 1
    assert again.in_region("us-east-1") == (old,)
    assert len(asked()) == before
    now[0] += 2
    assert again.in_region("us-east-1") == (first,)
    assert asked()[before:] == ["DescribeSpotPriceHistory"]
    assert again.in_region("us-east-1") == (first,)
    assert Offers(requests, str(tmp_path), lambda: now[0]).in_region("us-east-1") == (first,)
    assert len(asked()) == before + 1
    now[0] += SPOT_SECONDS
    ec2.faults.fail("DescribeSpotPriceHistory", "RequestLimitExceeded", status=503)
    assert again.in_region("us-east-1")[0].spot_price_micros is None
    assert again.in_region("us-east-1") == (first,)
    requests.close()


def test_a_machine_that_shuts_down_ends_with_its_disk(ec2, cloud):
    machine = cloud.launch(_request("t1"))
    ec2.advance(5)
    ec2.shut_down(machine.id)
    ec2.advance(60)
    (seen,) = cloud.machines("grid-a")
    assert seen.state is MachineState.ENDED
    assert seen.reason
    assert {one.kind for one in cloud.leftovers()} == {"security-group"}
    for one in cloud.leftovers():
        cloud.delete(one)
    assert ec2.leftovers() == []


def test_an_interrupted_spot_machine_has_a_reason(ec2, cloud):
    machine = cloud.launch(_request("t1", spot=True))
    ec2.advance(5)
    ec2.interrupt(machine.id)
    ec2.advance(300)
    (seen,) = cloud.machines("grid-a")
    assert (seen.state, seen.spot) == (MachineState.ENDED, True)
    assert "Spot" in seen.reason


def test_the_machines_of_a_lease_share_one_security_group(ec2, cloud):
    cloud.launch(_request("t1"))
    cloud.launch(_request("t2", zone="us-east-1b"))
    cloud.launch(_request("t3", lease="lease-2"))
    groups = [one for one in cloud.leftovers() if one.kind == "security-group"]
    assert sorted(one.lease for one in groups) == ["lease-1", "lease-2"]


def test_a_lost_answer_to_the_security_group_makes_no_second_group(ec2, cloud):
    for action in ("CreateSecurityGroup", "AuthorizeSecurityGroupIngress"):
        ec2.faults.lose_answers(action)
        with pytest.raises(UnavailableError):
            cloud.launch(_request("t1"))
    cloud.launch(_request("t1"))
    assert len([one for one in cloud.leftovers() if one.kind == "security-group"]) == 1
    assert len(ec2.running()) == 1


def test_a_security_group_that_was_deleted_by_hand_is_made_again(ec2, cloud):
    machine = cloud.launch(_request("t1"))
    cloud.terminate(machine)
    ec2.advance(60)
    for one in cloud.leftovers():
        cloud.delete(one)
    with pytest.raises(UnavailableError):
        cloud.launch(_request("t2"))
    cloud.launch(_request("t2"))
    assert len(ec2.running()) == 1


def test_fifty_machines_at_once_are_fifty_machines(ec2, cloud):
    ec2.faults.quotas["*"] = 10_000
    with ThreadPoolExecutor(8) as threads:
        launch = lambda number: cloud.launch(_request(f"t{number}", lease=f"lease-{number}"))  # noqa: E731
        ids = {machine.id for machine in threads.map(launch, range(50))}
    assert ids == {one.id for one in ec2.running()} == {one.id for one in cloud.machines("grid-a")}
    assert len(ids) == 50


def test_a_limited_rate_is_an_error_that_is_repeated(ec2, cloud):
    ec2.faults.throttling = True
    ec2.faults.quotas["*"] = 10_000
    launched, limited = 0, 0
    for number in range(20):
        try:
            cloud.launch(_request(f"t{number}"))
            launched += 1
        except UnavailableError as error:
            limited += "RequestLimitExceeded" in error.message
    assert launched > 0
    assert launched + limited == 20
    assert launched == len(ec2.running())


def test_a_wrong_clock_is_explained(ec2, cloud):
    ec2.faults.clock_ahead_seconds = 3600.0
    with pytest.raises(CredentialsError) as caught:
        cloud.machines()
    assert "clock" in caught.value.hint


def test_an_image_with_a_driver_that_does_not_fit_is_refused_before_renting(ec2, cloud):
    for instance_type, why in (("g4ad.xlarge", "AMD"), ("g6f.large", "GRID")):
        with pytest.raises(RefusedError, match=why):
            cloud.launch(_request("t1", instance_type=instance_type))
    assert "RunInstances" not in {action for _, _, action in ec2.requests}


def test_a_grid_driver_on_g3_needs_the_name_server_of_aws(ec2, cloud):
    request = _request("t1", instance_type="g3s.xlarge")
    grid = Image(id="ami-grid", root_device="/dev/sda1", disk_bytes=0, needs_dns=True)
    assert cloud._network(request, grid).security_group
    ec2.faults.dns_support = False
    with pytest.raises(RefusedError, match="name server") as caught:
        cloud._network(request, grid)
    assert "--enable-dns-support" in caught.value.hint
    assert cloud._network(request, replace(grid, needs_dns=False)).security_group


def test_the_driver_of_a_given_image_is_compared_with_each_type(ec2, cloud):
    requests = AwsRequests(settings(ec2))
    ours = read_image(requests, "us-east-1", "", "g5.xlarge").id
    cloud.launch(_request("t1", image=ours))
    with pytest.raises(RefusedError, match="open kernel module"):
        cloud.launch(_request("t2", image=ours, instance_type="g3s.xlarge"))
    assert len(ec2.running()) == 1
    requests.close()


def test_renewed_credentials_are_used_without_a_restart(ec2):
    first, second = ec2.add_user("first"), ec2.add_user("second")
    secrets = {"key": first.secret_key}
    given = {"endpoint_url": ec2.endpoint_url, "regions": "us-east-1", "secret_access_key": "key"}
    changing = {**given, "access_key_id": first.access_key}
    cloud = make(changing, secrets.__getitem__)
    machine = cloud.launch(_request("t1"))
    ec2.revoke(first.access_key)
    with pytest.raises(CredentialsError):
        cloud.terminate(machine)
    changing["access_key_id"], secrets["key"] = second.access_key, second.secret_key
    with pytest.raises(CredentialsError):
        cloud.terminate(machine)
    cloud.terminate(machine)
    assert not ec2.running()
    cloud.close()


def test_the_account_is_asked_once_for_each_credentials(ec2):
    first, second = ec2.add_user("first"), ec2.add_user("second")
    secrets = {"key": first.secret_key}
    given = {"endpoint_url": ec2.endpoint_url, "regions": "us-east-1", "secret_access_key": "key"}
    changing = {**given, "access_key_id": first.access_key}
    cloud = make(changing, secrets.__getitem__)

    def asked() -> int:
        return sum(action == "GetCallerIdentity" for _, _, action in ec2.requests)

    assert len({cloud.account_name() for _ in range(3)}) == 1
    assert asked() == 1
    ec2.revoke(first.access_key)
    changing["access_key_id"], secrets["key"] = second.access_key, second.secret_key
    with pytest.raises(CredentialsError):
        cloud.machines()
    assert len({cloud.account_name() for _ in range(3)}) == 1
    assert asked() == 2
    cloud.close()


def test_a_removed_secret_is_an_error_that_is_repeated(ec2):
    secrets = {"key": ec2.secret_key}

    def resolve(name: str) -> str:
        if name not in secrets:
            raise NotFoundError(f"there is no secret {name!r}", hint="gridmill add secret key")
        return secrets[name]

    given = {"endpoint_url": ec2.endpoint_url, "regions": "us-east-1", "secret_access_key": "key"}
    cloud = make({**given, "access_key_id": ec2.access_key}, resolve)
    cloud.machines()
    ec2.revoke()
    del secrets["key"]
    with pytest.raises(CredentialsError, match="there is no secret 'key'"):
        cloud.machines()
    cloud.close()


@pytest.mark.parametrize("seed", range(4))
def test_no_machine_is_rented_twice_while_answers_are_lost_and_servers_fail(seed):
    faults = CloudFaults(seed=seed, error_rate=0.2, lost_rate=0.15, quotas={"*": 10_000})
    with simulated_ec2(clock=FakeClock(), faults=faults, seed=seed) as ec2:
        cloud = account(ec2, regions="us-east-1")
        requests = [_request(f"t{number}", lease=f"lease-{number % 3}") for number in range(12)]
        ids = {_until_it_answers(partial(cloud.launch, request)).id for request in requests}
        assert ids == {one.id for one in ec2.running()}
        assert len(ids) == 12
        for machine in _until_it_answers(cloud.machines):
            _until_it_answers(partial(cloud.terminate, machine))
        ec2.advance(60)
        assert not ec2.running()
        for leftover in _until_it_answers(cloud.leftovers):
            _until_it_answers(partial(cloud.delete, leftover))
        assert [one for one in ec2.leftovers() if not one.startswith("i-")] == []
        cloud.close()


def _until_it_answers(call):
    for _ in range(100):
        with suppress(UnavailableError):
            return call()
    raise AssertionError("the provider did not answer 100 times")


def test_missing_credentials_are_explained(ec2, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    cloud = make({"regions": "us-east-1", "endpoint_url": ec2.endpoint_url}, str)
    with pytest.raises(CredentialsError) as caught:
        cloud.machines()
    assert "access_key_id" in caught.value.hint
    with pytest.raises(CredentialsError, match="could not be found"):
        make({"regions": "us-east-1", "profile": "nobody"}, str).machines()
    cloud.close()
