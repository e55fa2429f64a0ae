"""Lists, offers, prices, credentials and the bill of the simulated Compute Engine are as documented."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.kit.gce import IMAGE, ZONE, Gce, signed

from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.gce.prices import SERVICE
from gridmill.testing.cloud.gce.simulation import GceSimulation, simulated_gce
from gridmill.testing.cloud.google_metadata import answer

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@pytest.fixture
def cloud() -> Iterator[GceSimulation]:
    with simulated_gce(clock=FakeClock()) as made:
        yield made


@pytest.fixture
def gce(cloud: GceSimulation) -> Iterator[Gce]:
    made = Gce(cloud)
    yield made
    made.close()


def names(answer: dict[str, Any], field: str = "instances") -> list[str]:
    return [one["name"] for scope in answer["items"].values() for one in scope.get(field, ())]


def grant(cloud: GceSimulation, key: dict[str, str] | None = None, **claims: Any) -> httpx.Response:
    key = key or cloud.service_account_key
    now = int(time.time())
    payload = {
        "iss": key["client_email"],
        "scope": SCOPE,
        "aud": key["token_uri"],
        "iat": now,
        "exp": now + 3600,
    }
    form = {"grant_type": GRANT, "assertion": signed(key, payload | claims)}
    return httpx.post(cloud.token_uri, data=form)


def test_a_signed_jwt_gives_an_access_token(cloud):
    assert grant(cloud, aud="https://oauth2.googleapis.com/token").status_code == 200
    token = grant(cloud).json()
    assert (token["token_type"], token["expires_in"]) == ("Bearer", 3599)
    url = f"{cloud.endpoint_url}/compute/v1/projects/{cloud.project}"
    headers = {"Authorization": f"Bearer {token['access_token']}"}
    assert httpx.get(url, headers=headers).json()["name"] == cloud.project


def test_wrong_jwts_are_refused(cloud):
    now = int(time.time())
    other = grant(cloud, aud="https://example.com/token")
    late = grant(cloud, iat=now - 7200, exp=now - 3600)
    long = grant(cloud, exp=now + 7200)
    stranger = grant(cloud, iss="stranger@example.com")
    assert {(one.status_code, one.json()["error"]) for one in (other, late, long, stranger)} == {
        (400, "invalid_grant")
    }
    wrong = httpx.post(cloud.token_uri, data={"grant_type": GRANT, "assertion": "e30.e30.AAAA"})
    assert wrong.status_code == 400
    assert httpx.post(cloud.token_uri, data={"grant_type": "password"}).json()["error"] == (
        "unsupported_grant_type"
    )


def test_a_disabled_account_is_refused_at_once(cloud, gce):
    cloud.revoke()
    assert gce.refused("GET", "zones") == (401, "authError")
    assert grant(cloud).json()["error"] == "invalid_grant"
    cloud.restore()
    assert len(gce.get("zones")["items"]) == 12


def test_requests_without_a_token_are_refused(cloud):
    url = f"{cloud.endpoint_url}/compute/v1/projects/{cloud.project}/zones"
    refused = httpx.get(url)
    assert refused.status_code == 401
    assert refused.json()["error"]["status"] == "UNAUTHENTICATED"


def test_a_token_with_a_small_scope_reads_only(cloud, gce):
    token = grant(cloud, scope="https://www.googleapis.com/auth/compute.readonly").json()["access_token"]
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{cloud.endpoint_url}/compute/v1/projects/{cloud.project}/zones/{ZONE}/instances"
    assert httpx.get(url, headers=headers).status_code == 200
    assert httpx.post(url, headers=headers, json=gce.request()).status_code == 403


def test_denied_permissions_are_named(cloud, gce):
    cloud.deny("compute.instances.*")
    status, refused = gce.wire.send("POST", f"zones/{ZONE}/instances", gce.request())
    assert status == 403
    assert refused["error"]["message"] == (
        "Required 'compute.instances.create' permission for "
        f"'projects/{cloud.project}/zones/{ZONE}/instances/worker'"
    )
    asked = ["compute.instances.create", "compute.zones.list"]
    for version in ("v1", "v3"):
        path = f"/{version}/projects/{cloud.project}:testIamPermissions"
        assert gce.root.ok("POST", path, {"permissions": asked}) == {"permissions": ["compute.zones.list"]}


def test_another_project_is_forbidden(cloud, gce):
    status, refused = gce.root.send("GET", "/compute/v1/projects/other/zones")
    assert (status, refused["error"]["errors"][0]["reason"]) == (403, "forbidden")


def test_instances_of_all_zones_are_listed_in_pages(cloud, gce):
    for number in range(5):
        gce.insert(f"worker-{number}", zone=("us-east1-b", ZONE)[number % 2])
    found, token = [], ""
    while True:
        query = {"maxResults": "2"} | ({"pageToken": token} if token else {})
        answer = gce.get("aggregated/instances", **query)
        assert len(answer["items"]) == 12, "each page has all zones"
        found += names(answer)
        token = answer.get("nextPageToken", "")
        if not token:
            break
    assert sorted(found) == [f"worker-{number}" for number in range(5)]
    empty = answer["items"]["europe-west4-a" if "europe-west4-a" in answer["items"] else "zones/us-west1-a"]
    assert empty["warning"]["code"] == "NO_RESULTS_ON_PAGE"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("labels.grid=a", ["one", "two"]),
        ("labels.grid:a", ["one", "two"]),
        ("(labels.grid = a) (labels.lease = l2)", ["two"]),
        ('labels.grid="a" AND name!=one', ["two"]),
        ("labels.grid:*", ["one", "three", "two"]),
        ("labels.other:*", []),
        ("name eq t.*", ["three", "two"]),
        ("status = RUNNING", ["one", "three", "two"]),
        ("scheduling.automaticRestart = false", ["three"]),
        ("name = t*", ["three", "two"]),
    ],
)
def test_lists_are_filtered(cloud, gce, text, expected):
    gce.insert("one", labels={"grid": "a", "lease": "l1"})
    gce.insert("two", labels={"grid": "a", "lease": "l2"})
    gce.insert("three", labels={"grid": "b"}, scheduling={"automaticRestart": False})
    assert names(gce.get("aggregated/instances", filter=text)) == expected
    listed = gce.get(f"zones/{ZONE}/instances", filter=text)
    assert [one["name"] for one in listed.get("items", ())] == expected


def test_filters_that_are_not_understood_are_errors(gce):
    assert gce.refused("GET", "aggregated/instances", filter="labels.a=1 OR labels.a=2")[0] == 501
    assert gce.refused("GET", "aggregated/instances", nonsense="1")[0] == 501
    assert gce.refused("GET", "aggregated/instances", maxResults="501") == (400, "invalid")


def test_a_region_that_is_down_is_an_error_or_a_warning(cloud, gce):
    gce.insert("one")
    gce.insert("two", zone="us-east1-b")
    cloud.faults.regions_down = ["us-east1"]
    assert gce.refused("GET", "aggregated/instances") == (503, "backendError")
    partial = gce.get("aggregated/instances", returnPartialSuccess="true")
    assert names(partial) == ["one"]
    assert partial["unreachables"] == ["zones/us-east1-b", "zones/us-east1-c", "zones/us-east1-d"]
    assert partial["items"]["zones/us-east1-b"]["warning"]["code"] == "UNREACHABLE"
    with pytest.raises(httpx.RemoteProtocolError):
        gce.instance("two", "us-east1-b")


def test_a_region_that_is_gone_is_in_no_list(cloud, gce):
    cloud.faults.regions_gone = ["us-east1"]
    assert "us-east1" not in [one["name"] for one in gce.get("regions")["items"]]
    assert "zones/us-east1-b" not in gce.get("aggregated/machineTypes")["items"]
    assert gce.refused("GET", "zones/us-east1-b/instances") == (403, "forbidden")


def test_lists_lag_and_new_instances_are_invisible(cloud, gce):
    cloud.faults.invisible_seconds = 60.0
    gce.insert()
    assert names(gce.get("aggregated/instances")) == []
    assert gce.refused("GET", f"zones/{ZONE}/instances/worker") == (404, "notFound")
    cloud.advance(60.0)
    assert names(gce.get("aggregated/instances")) == ["worker"]
    cloud.faults.list_lag_seconds = 1e9
    assert names(gce.get("aggregated/instances")) == []


def test_parts_of_an_answer_are_selected(gce):
    gce.insert()
    answer = gce.get("aggregated/instances", fields="items/*/instances(name,disks/source),nextPageToken")
    [instance] = answer["items"][f"zones/{ZONE}"]["instances"]
    assert sorted(instance) == ["disks", "name"]
    assert list(instance["disks"][0]) == ["source"]
    assert gce.refused("GET", "zones", fields="items(") == (400, "badRequest")


def test_machine_types_have_their_gpus(gce):
    kinds = {
        one["name"]: one
        for one in gce.get("aggregated/machineTypes")["items"][f"zones/{ZONE}"]["machineTypes"]
    }
    assert kinds["g2-standard-24"]["accelerators"] == [
        {"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 2}
    ]
    assert (kinds["n1-standard-1"]["guestCpus"], kinds["n1-standard-1"]["memoryMb"]) == (1, 3840)
    assert kinds["t2a-standard-4"]["architecture"] == "ARM64"
    found = gce.get("aggregated/acceleratorTypes")["items"][f"zones/{ZONE}"]["acceleratorTypes"]
    assert "nvidia-tesla-t4" in [one["name"] for one in found]
    assert gce.get(f"zones/{ZONE}/machineTypes/e2-micro")["isSharedCpu"] is True


def test_quotas_show_what_is_used(gce):
    gce.insert(kind="g2-standard-4", scheduling={"onHostMaintenance": "TERMINATE"})
    region = {one["metric"]: one for one in gce.get("regions/us-central1")["quotas"]}
    assert (region["NVIDIA_L4_GPUS"]["usage"], region["NVIDIA_L4_GPUS"]["limit"]) == (1.0, 8.0)
    assert region["DISKS_TOTAL_GB"]["usage"] == 10.0
    root = f"/compute/v1/projects/{gce.cloud.project}"
    project = {one["metric"]: one["usage"] for one in gce.root.ok("GET", root)["quotas"]}
    assert (project["GPUS_ALL_REGIONS"], project["CPUS_ALL_REGIONS"]) == (1.0, 4.0)


def test_a_family_has_its_newest_image(gce):
    path = "/compute/v1/projects/ubuntu-os-cloud/global/images"
    image = gce.root.ok("GET", f"{path}/family/ubuntu-2204-lts")
    assert (image["name"], image["diskSizeGb"]) == ("ubuntu-2204-jammy-v20260110", "10")
    assert len(gce.root.ok("GET", path)["items"]) == 3
    status, _ = gce.root.send("GET", f"{path}/family/none")
    assert status == 404


def skus(gce: Gce) -> dict[str, dict[str, Any]]:
    found, token = {}, ""
    while True:
        page = gce.root.ok("GET", f"/v1/services/{SERVICE}/skus", pageSize="7", pageToken=token)
        found |= {one["description"]: one for one in page["skus"]}
        token = page["nextPageToken"]
        if not token:
            return found


def nanos(sku: dict[str, Any]) -> int:
    [rate] = sku["pricingInfo"][0]["pricingExpression"]["tieredRates"]
    return int(rate["unitPrice"]["units"]) * 10**9 + int(rate["unitPrice"]["nanos"])


def test_the_price_list_explains_the_bill(cloud, gce):
    gce.insert(kind="g2-standard-8", scheduling={"onHostMaintenance": "TERMINATE"})
    cloud.advance(3600.0)
    prices = skus(gce)
    parts = ((8, "G2 Instance Core"), (32, "G2 Instance Ram"), (1, "Nvidia L4 GPU"))
    expected = sum(count * nanos(prices[f"{name} running in Americas"]) for count, name in parts)
    assert cloud.bill().items[0].amount_micros == round(expected / 1000)


def test_spot_machines_cost_less(gce):
    prices = skus(gce)
    spot = prices["Spot Preemptible N1 Predefined Instance Core running in Americas"]
    assert spot["category"]["usageType"] == "Preemptible"
    assert nanos(spot) < nanos(prices["N1 Predefined Instance Core running in Americas"])


def test_prices_can_be_missing(cloud, gce):
    cloud.faults.unpriced_types = ["a3"]
    assert not [one for one in skus(gce) if one.startswith("A3 ")]


def test_a_stopped_instance_costs_its_disk(cloud, gce):
    gce.insert()
    cloud.advance(100.0)
    gce.wire.ok("POST", f"zones/{ZONE}/instances/worker/stop")
    cloud.advance(900.0)
    charged = {one.charge.value: one.seconds for one in cloud.bill().items}
    assert charged == {"machine": 100, "public address": 100, "disk": 1000}
    assert gce.instance()["status"] == "TERMINATED"


def test_an_instance_that_is_preempted_in_its_first_minute_is_free(cloud, gce):
    gce.insert(scheduling={"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"})
    cloud.interrupt("worker")
    cloud.advance(60.0)
    assert cloud.bill().items[0].amount_micros == 0


def test_traffic_and_static_addresses_are_charged(cloud, gce):
    gce.insert(networkInterfaces=[{}])
    cloud.host.add_egress(cloud.find("worker").id, 2 * 2**30)
    gce.wire.ok("POST", "regions/us-central1/addresses", {"name": "fixed", "labels": {"grid": "a"}})
    cloud.advance(7200.0)
    listed = gce.get("aggregated/addresses", filter="labels.grid=a")
    assert names(listed, "addresses") == ["fixed"]
    gce.wire.ok("DELETE", "regions/us-central1/addresses/fixed")
    cloud.advance(7200.0)
    charged = {one.charge.value: one.amount_micros for one in cloud.bill().items}
    assert (charged["egress"], charged["public address"]) == (240_000, 10_000)


def test_limited_rates_are_a_fault(cloud, gce):
    cloud.faults.throttling = True
    gce.get("zones")
    assert cloud.buckets.left("lists") == 1499.0
    now = cloud.clock.now()
    assert cloud.buckets.take("lists", now, size=1500.0, per_second=25.0, count=1499)
    assert gce.refused("GET", "zones") == (403, "rateLimitExceeded")
    cloud.advance(0.05)
    gce.get("zones")


def test_server_errors_have_the_dialect_of_google(cloud, gce):
    cloud.faults.fail("instances.aggregatedList", "backendError", status=503)
    assert gce.refused("GET", "aggregated/instances") == (503, "backendError")
    cloud.faults.fail("oauth2.token", "internal", status=500)
    assert grant(cloud).status_code == 500


def test_an_operation_is_waited_for_in_real_time():
    with simulated_gce() as cloud:
        gce = Gce(cloud)
        cloud.faults.pending_seconds = 0.2
        operation = gce.insert()
        path = f"zones/{ZONE}/operations/{operation['name']}/wait"
        assert gce.wire.ok("POST", path)["status"] == "DONE"
        gce.close()


METADATA = {"instance/id": "1", "instance/preempted": "FALSE", "instance/attributes/ssh-keys": "a"}
FLAVOR = {"Metadata-Flavor": "Google"}


def test_the_metadata_server_needs_its_header():
    path = "/computeMetadata/v1/instance/preempted"
    assert answer(METADATA, path, {})[0] == 403
    assert answer(METADATA, path, FLAVOR | {"X-Forwarded-For": "1.2.3.4"})[0] == 403
    assert answer(METADATA, path, FLAVOR) == (200, b"FALSE")
    assert answer(None, path, FLAVOR)[0] == 404


def test_the_metadata_server_lists_folders_and_trees():
    root = "/computeMetadata/v1/instance/"
    assert answer(METADATA, root, FLAVOR) == (200, b"attributes/\nid\npreempted\n")
    tree = b'{"id": "1", "preempted": "FALSE", "attributes": {"ssh-keys": "a"}}'
    assert answer(METADATA, f"{root}?recursive=true", FLAVOR) == (200, tree)
    assert answer(METADATA, f"{root}none", FLAVOR)[0] == 404


def test_a_disk_is_at_least_as_large_as_its_image(gce):
    disk = {"boot": True, "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "5"}}
    assert gce.refused_insert(disks=[disk]) == (400, "invalid")
    disk["initializeParams"]["diskSizeGb"] = "100"
    gce.insert(disks=[disk])
    assert gce.instance()["disks"][0]["diskSizeGb"] == "100"
