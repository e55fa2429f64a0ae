"""The faults of the simulated EC2: what a client must survive."""

import json
import urllib.request
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from tests.kit.ec2 import client, code, instance, launch, refused, run

from gridmill.errors import InputError
from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.cloud_faults import CloudFaults, Outcome, PlannedFault
from gridmill.testing.cloud.ec2.records import State
from gridmill.testing.cloud.ec2.simulation import EC2Simulation, simulated_ec2

ZONE = {"AvailabilityZone": "us-east-1a"}


def state(simulation: EC2Simulation, instance_id: str) -> State:
    return next(one.state for one in simulation.machines() if one.id == instance_id)


def test_a_machine_exists_though_the_answer_to_its_launch_is_lost(ec2, simulation):
    wanted = launch(ec2, ClientToken="one", Placement=ZONE)
    simulation.faults.lose_answers("RunInstances")
    with pytest.raises(ConnectionClosedError):
        ec2.run_instances(**wanted)
    [made] = simulation.machines()
    [again] = ec2.run_instances(**wanted)["Instances"]
    assert again["InstanceId"] == made.id


def test_the_same_happens_without_a_token_as_often_as_it_is_tried(ec2, simulation):
    wanted = launch(ec2)
    wanted["ClientToken"] = ""
    simulation.faults.lose_answers("RunInstances", 2)
    for _ in range(2):
        with pytest.raises(ConnectionClosedError):
            ec2.run_instances(**wanted)
    assert len(simulation.running()) == 2


def test_a_request_can_be_lost_before_its_effect(ec2, simulation):
    wanted = launch(ec2)
    simulation.faults.plan(PlannedFault(action="RunInstances", outcome=Outcome.LOST_BEFORE))
    with pytest.raises(ConnectionClosedError):
        ec2.run_instances(**wanted)
    assert simulation.machines() == []


def test_an_error_can_come_after_the_effect(ec2, simulation):
    made = run(ec2)
    simulation.faults.plan(PlannedFault(action="Terminate*", outcome=Outcome.ERROR_AFTER))
    assert refused(ec2.terminate_instances, InstanceIds=[made]) == "InternalError"
    assert state(simulation, made) == State.TERMINATED


def test_planned_errors_are_for_one_action_and_are_counted(ec2, simulation):
    simulation.faults.fail("DescribeInstances", "Unavailable", status=503, count=2)
    ec2.describe_volumes()
    with pytest.raises(ClientError) as error:
        ec2.describe_instances()
    assert code(error.value) == ("Unavailable", 503)
    assert refused(ec2.describe_instances) == "Unavailable"
    assert ec2.describe_instances()["Reservations"] == []


def test_a_new_instance_is_not_found_for_some_time(ec2, simulation):
    simulation.faults.invisible_seconds = 10.0
    made = run(ec2)
    assert refused(ec2.describe_instances, InstanceIds=[made]) == "InvalidInstanceID.NotFound"
    assert refused(ec2.terminate_instances, InstanceIds=[made]) == "InvalidInstanceID.NotFound"
    assert (
        refused(ec2.create_tags, Resources=[made], Tags=[{"Key": "a", "Value": "b"}])
        == "InvalidInstanceID.NotFound"
    )
    assert ec2.describe_instances()["Reservations"] == []
    assert len(simulation.running()) == 1
    simulation.advance(10.0)
    assert instance(ec2, made)["State"]["Name"] == "running"


def test_lists_lag_behind_what_really_is(ec2, simulation):
    made = run(ec2)
    simulation.advance(100.0)
    simulation.faults.list_lag_seconds = 60.0
    ec2.terminate_instances(InstanceIds=[made])
    assert state(simulation, made) == State.TERMINATED
    assert instance(ec2, made)["State"]["Name"] == "running"
    simulation.advance(60.0)
    assert instance(ec2, made)["State"]["Name"] == "terminated"


def test_requests_beyond_the_token_buckets_are_refused_and_come_back_with_time(ec2, simulation):
    wanted = launch(ec2)
    simulation.faults.throttling = True
    for _ in range(5):
        ec2.run_instances(**wanted)
    with pytest.raises(ClientError) as error:
        ec2.run_instances(**wanted)
    assert code(error.value) == ("RequestLimitExceeded", 503)
    assert len(ec2.describe_instances(MaxResults=5)["Reservations"]) == 5
    simulation.advance(0.5)
    ec2.run_instances(**wanted)
    assert refused(ec2.run_instances, **wanted) == "RequestLimitExceeded"


def test_the_instances_of_a_launch_have_a_bucket_of_their_own(ec2, simulation):
    simulation.faults.throttling = True
    wanted = launch(ec2, MinCount=1, MaxCount=600)
    ec2.run_instances(**wanted)
    assert refused(ec2.run_instances, **wanted) == "RequestLimitExceeded"


def test_revoked_credentials_are_refused_until_they_are_restored(ec2, simulation):
    made = run(ec2)
    simulation.revoke()
    with pytest.raises(ClientError) as error:
        ec2.terminate_instances(InstanceIds=[made])
    assert code(error.value) == ("AuthFailure", 401)
    assert refused(client(simulation, "sts").get_caller_identity) == "InvalidClientTokenId"
    simulation.restore()
    ec2.terminate_instances(InstanceIds=[made])


def test_rights_can_be_taken_in_mid_life_and_a_dry_run_shows_it(ec2, simulation):
    made = run(ec2)
    simulation.deny("ec2:Terminate*", "pricing:*")
    with pytest.raises(ClientError) as error:
        ec2.terminate_instances(InstanceIds=[made])
    assert code(error.value) == ("UnauthorizedOperation", 403)
    assert refused(ec2.terminate_instances, InstanceIds=[made], DryRun=True) == "UnauthorizedOperation"
    assert refused(ec2.run_instances, **launch(ec2), DryRun=True) == "DryRunOperation"
    assert (
        refused(client(simulation, "pricing").get_products, ServiceCode="AmazonEC2")
        == "AccessDeniedException"
    )
    iam, sts = client(simulation, "iam"), client(simulation, "sts")
    decisions = iam.simulate_principal_policy(
        PolicySourceArn=sts.get_caller_identity()["Arn"],
        ActionNames=["ec2:RunInstances", "ec2:TerminateInstances"],
    )["EvaluationResults"]
    assert [one["EvalDecision"] for one in decisions] == ["allowed", "implicitDeny"]


def test_a_wrong_secret_and_a_wrong_clock_are_refused(ec2, simulation):
    stranger = client(simulation, aws_secret_access_key="guessed")
    assert refused(stranger.describe_regions) == "AuthFailure"
    simulation.faults.clock_ahead_seconds = 1000.0
    assert refused(ec2.describe_regions) == "RequestExpired"
    simulation.faults.clock_ahead_seconds = -600.0
    ec2.describe_regions()


def test_a_region_can_be_unreachable_or_closed_to_the_account(ec2, simulation):
    ohio = client(simulation, region="us-east-2")
    simulation.faults.regions_down = ["us-east-2"]
    with pytest.raises(ConnectionClosedError):
        ohio.describe_instances()
    simulation.faults.regions_down = []
    simulation.faults.regions_gone = ["us-east-2"]
    assert refused(ohio.describe_instances) == "AuthFailure"
    assert "us-east-2" not in {one["RegionName"] for one in ec2.describe_regions()["Regions"]}


def test_a_spot_instance_gets_two_minutes(ec2, simulation):
    made = run(ec2, InstanceMarketOptions={"MarketType": "spot"})
    simulation.settle()
    simulation.interrupt(made)
    notice = simulation.host.metadata[made]["spot/instance-action"]
    assert json.loads(notice) == {"action": "terminate", "time": "2023-11-14T22:15:20Z"}
    simulation.advance(119.0)
    assert state(simulation, made) == State.RUNNING
    simulation.advance(1.0)
    shown = instance(ec2, made)
    assert (shown["State"]["Name"], shown["StateReason"]["Code"]) == (
        "terminated",
        "Server.SpotInstanceTermination",
    )


def test_a_dead_machine_still_runs_for_ec2_but_fails_its_checks(ec2, simulation):
    made = run(ec2)
    simulation.break_machine(made)
    assert instance(ec2, made)["State"]["Name"] == "running"
    [status] = ec2.describe_instance_status(InstanceIds=[made])["InstanceStatuses"]
    assert status["InstanceStatus"]["Status"] == "impaired"


def test_states_take_their_time(ec2, simulation):
    simulation.faults.pending_seconds, simulation.faults.boot_seconds = 20.0, 40.0
    simulation.faults.shutting_down_seconds = 30.0
    made = run(ec2)
    assert instance(ec2, made)["State"]["Name"] == "pending"
    simulation.advance(20.0)
    [status] = ec2.describe_instance_status()["InstanceStatuses"]
    assert (status["InstanceState"]["Name"], status["SystemStatus"]["Status"]) == ("running", "initializing")
    simulation.advance(40.0)
    [status] = ec2.describe_instance_status()["InstanceStatuses"]
    assert status["SystemStatus"]["Status"] == "ok"
    ec2.terminate_instances(InstanceIds=[made])
    assert instance(ec2, made)["State"]["Name"] == "shutting-down"
    simulation.advance(30.0)
    assert instance(ec2, made)["State"]["Name"] == "terminated"
    simulation.advance(3601.0)
    assert ec2.describe_instances()["Reservations"] == []


def test_a_type_can_lack_a_price(simulation):
    simulation.faults.unpriced_types = ["g6*"]
    prices = client(simulation, "pricing")

    def listed(name: str) -> int:
        filters = [{"Type": "TERM_MATCH", "Field": "instanceType", "Value": name}]
        return len(prices.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"])

    assert (listed("g6.xlarge"), listed("g5.xlarge")) == (0, 5)


def random_run(seed: int) -> list[str]:
    with simulated_ec2(
        clock=FakeClock(), faults=CloudFaults(seed=seed, error_rate=0.3, lost_rate=0.2)
    ) as made:
        ec2, told = client(made), []
        for _ in range(40):
            try:
                ec2.describe_regions()
                told.append("ok")
            except (ClientError, ConnectionClosedError) as error:
                told.append(code(error)[0] if isinstance(error, ClientError) else "lost")
        return told


def test_random_faults_are_the_same_for_a_seed():
    first = random_run(1)
    assert first == random_run(1)
    assert first != random_run(2)
    assert {"ok", "lost", "InternalError", "Unavailable"} == set(first)


def post(simulation: EC2Simulation, command: str, **values: Any) -> Any:
    request = urllib.request.Request(
        f"{simulation.endpoint_url}/_simulation/{command}", data=json.dumps(values).encode()
    )
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def test_scripts_control_it_by_http(ec2, simulation):
    made = run(ec2, InstanceMarketOptions={"MarketType": "spot"})
    told = post(simulation, "faults", capacity={"*@*": 0}, planned=[{"action": "DescribeVpcs", "code": "X"}])
    assert told["capacity"] == {"*@*": 0}
    assert refused(ec2.run_instances, **launch(ec2)) == "InsufficientInstanceCapacity"
    assert refused(ec2.describe_vpcs) == "X"
    post(simulation, "interrupt", instance=made)
    post(simulation, "advance", seconds=120)
    [machine] = post(simulation, "machines")
    assert (machine["id"], machine["state"]) == (made, "terminated")
    assert post(simulation, "leftovers") == []
    assert post(simulation, "bill")["total_micros"] == simulation.bill().total_micros > 0
    with pytest.raises(urllib.error.HTTPError):
        post(simulation, "faults", capacities={})


def test_a_fault_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="is not a fault"):
        CloudFaults().change(latency=3)
