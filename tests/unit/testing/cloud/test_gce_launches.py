"""Launches, states and ends of instances of the simulated Compute Engine are as documented."""

from collections.abc import Iterator

import httpx
import pytest
from tests.kit.gce import IMAGE, ZONE, Gce

from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.cloud_faults import Outcome, PlannedFault
from gridmill.testing.cloud.gce.simulation import GceSimulation, simulated_gce

SPOT = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}


@pytest.fixture
def cloud() -> Iterator[GceSimulation]:
    with simulated_gce(clock=FakeClock()) as made:
        yield made


@pytest.fixture
def gce(cloud: GceSimulation) -> Iterator[Gce]:
    made = Gce(cloud)
    yield made
    made.close()


def limited(seconds: int, action: str = "DELETE") -> dict[str, object]:
    return {"maxRunDuration": {"seconds": str(seconds)}, "instanceTerminationAction": action}


def test_an_instance_starts_runs_and_is_deleted(cloud, gce):
    cloud.faults.pending_seconds, cloud.faults.shutting_down_seconds = 20.0, 30.0
    operation = gce.insert(labels={"grid": "a"})
    assert (operation["status"], gce.instance()["status"]) == ("RUNNING", "PROVISIONING")
    cloud.advance(10.0)
    assert gce.instance()["status"] == "STAGING"
    cloud.advance(10.0)
    assert gce.operation(operation)["status"] == "DONE"
    running = gce.instance()
    [config] = running["networkInterfaces"][0]["accessConfigs"]
    assert (running["status"], running["labels"]) == ("RUNNING", {"grid": "a"})
    assert config["natIP"] == cloud.machines()[0].public_address
    operation = gce.delete()
    assert (operation["status"], gce.instance()["status"]) == ("RUNNING", "STOPPING")
    cloud.advance(30.0)
    assert gce.operation(operation)["status"] == "DONE"
    assert gce.refused("GET", f"zones/{ZONE}/instances/worker") == (404, "notFound")
    assert cloud.leftovers() == []


def test_a_repeated_request_id_creates_one_instance(cloud, gce):
    first, second = gce.insert(request_id="a-b-c"), gce.insert(request_id="a-b-c")
    assert (first["name"], first["clientOperationId"]) == (second["name"], "a-b-c")
    assert len(cloud.running()) == 1


def test_the_name_of_an_instance_is_taken_in_its_zone_until_it_is_deleted(cloud, gce):
    cloud.faults.shutting_down_seconds = 30.0
    gce.insert()
    assert gce.refused_insert() == (409, "alreadyExists")
    gce.insert(zone="us-east1-b")
    gce.delete()
    assert gce.refused_insert() == (409, "alreadyExists")
    cloud.advance(30.0)
    gce.insert()
    assert len(cloud.running()) == 2


def test_a_zone_without_a_free_machine_is_the_error_of_the_operation(cloud, gce):
    cloud.faults.capacity = {f"e2-standard-2@{ZONE}": 0}
    operation = gce.insert()
    [error] = operation["error"]["errors"]
    assert (error["code"], operation["httpErrorStatusCode"]) == ("ZONE_RESOURCE_POOL_EXHAUSTED", 503)
    assert cloud.leftovers() == []
    gce.insert(zone="us-central1-b")


def test_quotas_of_a_region_are_errors_of_the_operation(cloud, gce):
    cloud.faults.quotas = {"CPUS@us-central1": 3}
    gce.insert()
    operation = gce.insert("second")
    [error] = operation["error"]["errors"]
    assert (error["code"], operation["httpErrorStatusCode"]) == ("QUOTA_EXCEEDED", 403)
    assert error["message"] == "Quota 'CPUS' exceeded.  Limit: 3.0 in region us-central1."
    gce.insert("third", zone="us-east1-b")


def test_quotas_of_the_project_are_errors_of_the_request(cloud, gce):
    cloud.faults.quotas = {"GPUS_ALL_REGIONS": 0}
    changes = {"kind": "g2-standard-4", "scheduling": {"onHostMaintenance": "TERMINATE"}}
    assert gce.refused_insert(**changes) == (403, "quotaExceeded")


def test_spot_instances_have_their_own_quota(cloud, gce):
    cloud.faults.quotas = {"NVIDIA_L4_GPUS": 0, "PREEMPTIBLE_NVIDIA_L4_GPUS": 1}
    operation = gce.insert(kind="g2-standard-4", scheduling={"onHostMaintenance": "TERMINATE"})
    assert "NVIDIA_L4_GPUS" in operation["error"]["errors"][0]["message"]
    gce.insert(kind="g2-standard-4", scheduling=SPOT)
    assert [one.is_spot for one in cloud.running()] == [True]


def test_the_run_time_is_limited_and_ends_up_to_30_seconds_late(cloud, gce):
    gce.insert(scheduling=limited(600))
    cloud.advance(599.0)
    assert gce.instance()["status"] == "RUNNING"
    cloud.advance(32.0)
    assert gce.refused("GET", f"zones/{ZONE}/instances/worker") == (404, "notFound")
    [item, *_] = cloud.bill().items
    assert 600 <= item.seconds <= 631
    assert cloud.leftovers() == []


def test_a_limited_instance_that_is_stopped_keeps_its_disk(cloud, gce):
    gce.insert(scheduling=limited(600, "STOP"))
    cloud.advance(700.0)
    assert gce.instance()["status"] == "TERMINATED"
    assert cloud.leftovers() == ["instances/worker", "disks/worker"]


def test_a_preempted_instance_gets_its_notice_and_is_deleted(cloud, gce):
    gce.insert(scheduling=SPOT)
    cloud.advance(100.0)
    cloud.interrupt("worker")
    machine = cloud.machines()[0]
    assert cloud.host.metadata[machine.id]["instance/preempted"] == "TRUE"
    assert gce.instance()["status"] == "RUNNING"
    cloud.advance(30.0)
    assert cloud.leftovers() == []
    kinds = [one["operationType"] for one in gce.get(f"zones/{ZONE}/operations")["items"]]
    assert sorted(kinds) == ["compute.instances.preempted", "insert"]


def test_a_preempted_instance_is_stopped_unless_it_is_to_be_deleted(cloud, gce):
    gce.insert(scheduling={"provisioningModel": "SPOT"})
    cloud.interrupt("worker")
    cloud.advance(30.0)
    assert gce.instance()["status"] == "TERMINATED"


def test_a_shutdown_from_inside_stops_the_instance(cloud, gce):
    gce.insert()
    cloud.host.shut_down(cloud.machines()[0].id)
    assert gce.instance()["status"] == "TERMINATED"
    assert cloud.running() == []
    assert cloud.leftovers() == ["instances/worker", "disks/worker"]


def test_a_failed_host_restarts_the_instance_only_if_it_may(cloud, gce):
    gce.insert("one")
    gce.insert("two", scheduling={"automaticRestart": False})
    cloud.fail_hardware("one")
    cloud.fail_hardware("two")
    assert [gce.instance(name)["status"] for name in ("one", "two")] == ["RUNNING", "TERMINATED"]


def test_a_disk_without_auto_delete_outlives_its_instance(cloud, gce):
    disk = {"boot": True, "initializeParams": {"sourceImage": IMAGE, "labels": {"grid": "a"}}}
    gce.insert(disks=[disk])
    assert gce.refused("DELETE", f"zones/{ZONE}/disks/worker") == (400, "resourceInUseByAnotherResource")
    gce.delete()
    scope = gce.get("aggregated/disks", filter="labels.grid=a")["items"][f"zones/{ZONE}"]
    [listed] = scope["disks"]
    assert (listed["name"], "users" in listed) == ("worker", False)
    gce.wire.ok("DELETE", f"zones/{ZONE}/disks/worker")
    assert cloud.leftovers() == []


def test_user_data_keys_and_startup_scripts_reach_the_machine(cloud, gce):
    started = []
    start = cloud.host.start
    cloud.host.start = lambda spec, ended: (started.append(spec), start(spec, ended))
    items = [
        {"key": "user-data", "value": "#cloud-config\n"},
        {"key": "startup-script", "value": "#!/bin/sh\n"},
        {"key": "ssh-keys", "value": "me:ssh-ed25519 AAAA me\nyou:ssh-ed25519 BBBB you"},
    ]
    worker = cloud.add_service_account("worker")
    accounts = [{"email": worker, "scopes": ["https://www.googleapis.com/auth/compute"]}]
    gce.insert(metadata={"items": items}, serviceAccounts=accounts, tags={"items": ["web"]})
    [spec] = started
    assert (spec.user_data, spec.startup_script) == (b"#cloud-config\n", b"#!/bin/sh\n")
    assert spec.logins == (("me", "ssh-ed25519 AAAA me"), ("you", "ssh-ed25519 BBBB you"))
    metadata = dict(spec.metadata)
    assert metadata["instance/attributes/user-data"] == "#cloud-config\n"
    assert metadata["instance/service-accounts/default/email"] == worker


def test_a_machine_may_delete_only_itself_with_the_token_of_its_account(cloud, gce):
    allowed = ("compute.instances.delete",)
    worker = cloud.add_service_account("worker", allowed=allowed, resources=("*/instances/worker",))
    accounts = [{"email": worker, "scopes": ["https://www.googleapis.com/auth/compute"]}]
    gce.insert(serviceAccounts=accounts)
    gce.insert("other")
    headers = {"Authorization": f"Bearer {cloud.find('worker').token}"}
    url = f"{cloud.endpoint_url}/compute/v1/projects/{cloud.project}/zones/{ZONE}/instances"
    assert httpx.delete(f"{url}/other", headers=headers).status_code == 403
    assert httpx.get(f"{url}/worker", headers=headers).status_code == 403
    assert httpx.delete(f"{url}/worker", headers=headers).status_code == 200
    assert [one.name for one in cloud.running()] == ["other"]


def test_gpus_come_with_a_machine_type_or_are_attached(cloud, gce):
    terminate = {"onHostMaintenance": "TERMINATE"}
    gpus = [{"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 2}]
    gce.insert("one", kind="n1-standard-4", guestAccelerators=gpus, scheduling=terminate)
    gce.insert("two", kind="g2-standard-24", scheduling=terminate)
    found = [gce.instance(name)["guestAccelerators"][0] for name in ("one", "two")]
    assert [one["acceleratorCount"] for one in found] == [2, 2]
    assert found[1]["acceleratorType"].endswith(f"zones/{ZONE}/acceleratorTypes/nvidia-l4")


T4 = [{"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}]
INVALID, BAD = (400, "invalid"), (400, "badRequest")
UNKNOWN, MISSING = (501, "notImplemented"), (404, "notFound")


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"name": "Upper"}, INVALID),
        ({"kind": "e2-huge"}, INVALID),
        ({"kind": "a3-highgpu-8g", "zone": "us-west1-a"}, INVALID),
        ({"zone": "us-moon1-a"}, MISSING),
        ({"disks": []}, INVALID),
        ({"networkInterfaces": []}, INVALID),
        ({"labels": {"Grid": "a"}}, INVALID),
        ({"labels": {"grid": "a" * 64}}, INVALID),
        ({"nonsense": 1}, UNKNOWN),
        ({"scheduling": {"nonsense": 1}}, UNKNOWN),
        ({"scheduling": limited(29)}, INVALID),
        ({"scheduling": limited(120 * 86_400 + 1)}, INVALID),
        ({"scheduling": {"maxRunDuration": {"seconds": "60"}}}, BAD),
        ({"scheduling": {"instanceTerminationAction": "DELETE"}}, BAD),
        ({"scheduling": {"preemptible": True, **limited(60)}}, BAD),
        ({"scheduling": {"provisioningModel": "SPOT", "automaticRestart": True}}, BAD),
        ({"scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "MIGRATE"}}, BAD),
        ({"kind": "n1-standard-4", "guestAccelerators": T4}, BAD),
        ({"guestAccelerators": T4, "scheduling": {"onHostMaintenance": "TERMINATE"}}, BAD),
        ({"kind": "t2a-standard-4"}, BAD),
        ({"metadata": {"items": [{"key": "user-data", "value": "x" * 300_000}]}}, INVALID),
        ({"metadata": {"items": [{"key": "a b", "value": ""}]}}, INVALID),
        ({"serviceAccounts": [{"email": "nobody@example.com", "scopes": []}]}, BAD),
    ],
)
def test_wrong_launches_are_refused(cloud, gce, changes, refusal):
    assert gce.refused_insert(**changes) == refusal
    assert cloud.leftovers() == []


def test_an_answer_is_lost_before_or_after_the_effect(cloud, gce):
    cloud.faults.plan(PlannedFault(action="instances.insert", outcome=Outcome.LOST_BEFORE))
    cloud.faults.lose_answers("instances.insert")
    for count in (0, 1):
        with pytest.raises(httpx.RemoteProtocolError):
            gce.insert(request_id="a")
        assert len(cloud.running()) == count
    assert gce.insert(request_id="a")["status"] == "DONE"
    assert len(cloud.running()) == 1


def test_a_protected_instance_is_not_deleted(cloud, gce):
    gce.insert(deletionProtection=True)
    assert gce.refused("DELETE", f"zones/{ZONE}/instances/worker") == (400, "invalidResourceUsage")


def test_firewall_rules_open_the_ports_of_tagged_instances(cloud, gce):
    rule = {"name": "web", "allowed": [{"IPProtocol": "tcp", "ports": ["80-81"]}], "targetTags": ["web"]}
    gce.wire.ok("POST", "global/firewalls", rule)
    assert gce.refused("POST", "global/firewalls", rule) == (409, "alreadyExists")
    gce.insert("one", tags={"items": ["web"]})
    gce.insert("two")

    def ports(name: str) -> list[int]:
        return [one.first_port for one in cloud.host.ingress[cloud.find(name).id]]

    assert ports("one") == [*ports("two"), 80]
    assert 22 in ports("two")
    gce.wire.ok("DELETE", "global/firewalls/web")
    assert ports("one") == ports("two")
    assert gce.refused("GET", "global/firewalls/web") == (404, "notFound")


def test_labels_are_replaced_if_their_fingerprint_is_known(gce):
    gce.insert(labels={"a": "1"})
    path = f"zones/{ZONE}/instances/worker/setLabels"
    wrong = {"labels": {}, "labelFingerprint": "wrong"}
    assert gce.refused("POST", path, wrong) == (412, "conditionNotMet")
    given = {"labels": {"b": "2"}, "labelFingerprint": gce.instance()["labelFingerprint"]}
    gce.wire.ok("POST", path, given)
    assert gce.instance()["labels"] == {"b": "2"}
