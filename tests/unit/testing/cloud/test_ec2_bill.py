"""The bill of the simulated EC2 is that of the price pages, by the second."""

from tests.kit.ec2 import run

from gridmill.testing.cloud.bill import Bill, Charge

SPOT = {"MarketType": "spot"}


def items(bill: Bill) -> dict[str, tuple[int, int]]:
    return {one.charge.value: (one.seconds, one.amount_micros) for one in bill.items}


def test_an_hour_costs_the_price_of_an_hour(ec2, simulation):
    made = run(ec2, InstanceType="g5.xlarge")
    simulation.advance(3600.0)
    assert [one.is_running for one in simulation.bill().items] == [True, True, True]
    ec2.terminate_instances(InstanceIds=[made])
    simulation.advance(3600.0)
    assert items(simulation.bill()) == {
        "machine": (3600, 1_006_000),
        "public address": (3600, 5_000),
        "disk": (3600, round(8 * 80_000 / 720)),
    }
    assert [one.is_running for one in simulation.bill().items] == [False, False, False]


def test_less_than_a_minute_costs_a_minute(ec2, simulation):
    made = run(ec2, InstanceType="g5.xlarge")
    simulation.advance(3.2)
    ec2.terminate_instances(InstanceIds=[made])
    assert items(simulation.bill())["machine"] == (60, round(1_006_000 / 60))


def test_only_the_time_in_the_state_running_is_charged(ec2, simulation):
    simulation.faults.pending_seconds = simulation.faults.shutting_down_seconds = 500.0
    made = run(ec2, InstanceType="g5.xlarge")
    simulation.advance(499.0)
    assert "machine" not in items(simulation.bill())
    simulation.advance(101.0)
    ec2.terminate_instances(InstanceIds=[made])
    simulation.advance(1000.0)
    charged = items(simulation.bill())
    assert charged["machine"][0] == 100
    assert charged["disk"][0] == 1100, "the disk exists from the request until the instance has ended"


def test_the_time_of_an_end_does_not_depend_on_when_it_is_asked_for(ec2, simulation):
    made = run(ec2, InstanceMarketOptions=SPOT)
    simulation.advance(7200.0)
    simulation.interrupt(made)
    simulation.advance(9999.0)
    assert items(simulation.bill())["machine"][0] == 7320


def test_a_spot_instance_that_ec2_interrupts_in_its_first_hour_is_free(ec2, simulation):
    made = run(ec2, InstanceMarketOptions=SPOT, InstanceType="g5.xlarge")
    simulation.advance(3000.0)
    simulation.interrupt(made)
    simulation.advance(120.0)
    assert items(simulation.bill())["machine"] == (3120, 0)


def test_a_spot_instance_that_its_user_ends_is_not_free(ec2, simulation):
    made = run(ec2, InstanceMarketOptions=SPOT, InstanceType="g5.xlarge")
    simulation.advance(3000.0)
    ec2.terminate_instances(InstanceIds=[made])
    assert items(simulation.bill())["machine"] == (3000, 350_000)


def test_a_stopped_instance_costs_its_disk(ec2, simulation):
    made = run(ec2)
    simulation.advance(100.0)
    simulation.shut_down(made)
    simulation.advance(900.0)
    charged = items(simulation.bill())
    assert (charged["machine"][0], charged["disk"][0]) == (100, 1000)
    assert set(simulation.leftovers()) == {one.subject for one in simulation.bill().items}


def test_a_disk_that_outlives_its_instance_costs_until_it_is_deleted(ec2, simulation):
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "DeleteOnTermination": False}}
    made = run(ec2, BlockDeviceMappings=[disk])
    ec2.terminate_instances(InstanceIds=[made])
    simulation.advance(86_400.0)
    [volume] = simulation.leftovers()
    [listed] = ec2.describe_volumes()["Volumes"]
    assert (listed["VolumeId"], listed["State"]) == (volume, "available")
    ec2.delete_volume(VolumeId=volume)
    simulation.advance(86_400.0)
    assert items(simulation.bill())["disk"] == (86_400, 100 * 80_000 // 30 + 1)
    assert simulation.leftovers() == []


def test_traffic_and_kept_addresses_are_charged(ec2, simulation):
    made = run(ec2, NetworkInterfaces=[{"DeviceIndex": 0, "AssociatePublicIpAddress": False}])
    simulation.host.add_egress(made, 3 * 2**30)
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    simulation.advance(7200.0)
    ec2.release_address(AllocationId=address)
    simulation.advance(7200.0)
    charged = items(simulation.bill())
    assert (charged["egress"][1], charged["public address"]) == (270_000, (7200, 10_000))


def test_a_bill_can_be_asked_for_some_subjects(ec2, simulation):
    first, second = run(ec2), run(ec2)
    simulation.advance(90.0)
    assert simulation.bill().of(first).total_seconds(Charge.MACHINE) == 90
    total = simulation.bill().of(first, second).total_micros
    assert total == 2 * simulation.bill().of(first).total_micros
