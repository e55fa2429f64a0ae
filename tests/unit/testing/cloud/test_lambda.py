"""The simulated Lambda Cloud behaves as documented, and has faults and a bill."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.kit.wire import Wire

from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.cloud_faults import Outcome, PlannedFault
from gridmill.testing.cloud.lambda_cloud.simulation import LambdaSimulation, simulated_lambda

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICN me"
TYPE, REGION = "gpu_1x_a10", "us-east-1"


@pytest.fixture
def cloud() -> Iterator[LambdaSimulation]:
    with simulated_lambda(clock=FakeClock()) as made:
        yield made


@pytest.fixture
def api(cloud: LambdaSimulation) -> Iterator["Api"]:
    made = Api(cloud)
    yield made
    made.wire.close()


class Api:
    """The requests of these tests."""

    def __init__(self, cloud: LambdaSimulation) -> None:
        headers = {"Authorization": f"Bearer {cloud.api_key}"}
        self.wire = Wire(f"{cloud.endpoint_url}/api/v1/", headers)

    def get(self, path: str) -> Any:
        return self.wire.ok("GET", path)["data"]

    def add_key(self, name: str = "mine") -> str:
        return str(self.wire.ok("POST", "ssh-keys", {"name": name, "public_key": KEY})["data"]["id"])

    def launch_request(self, **changes: Any) -> dict[str, Any]:
        fields = {"region_name": REGION, "instance_type_name": TYPE, "ssh_key_names": ["mine"]}
        return fields | changes

    def launch(self, **changes: Any) -> str:
        answer = self.wire.ok("POST", "instance-operations/launch", self.launch_request(**changes))
        return str(answer["data"]["instance_ids"][0])

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        status, answer = self.wire.send(method, path, body)
        assert status >= 400, answer
        return status, answer["error"]["code"]

    def refused_launch(self, **changes: Any) -> tuple[int, str]:
        return self.refused("POST", "instance-operations/launch", self.launch_request(**changes))

    def terminate(self, *ids: str) -> Any:
        answer = self.wire.ok("POST", "instance-operations/terminate", {"instance_ids": list(ids)})
        return answer["data"]["terminated_instances"]


def test_an_instance_boots_runs_and_ends(cloud, api):
    cloud.faults.pending_seconds, cloud.faults.shutting_down_seconds = 120.0, 30.0
    api.add_key()
    made = api.launch(name="one", tags=[{"key": "grid", "value": "a"}], user_data="#!/bin/sh\n")
    booting = api.get(f"instances/{made}")
    assert (booting["status"], booting["name"], "ip" in booting) == ("booting", "one", False)
    assert booting["tags"] == [{"key": "grid", "value": "a"}]
    cloud.advance(120.0)
    [active] = api.get("instances")
    assert (active["status"], active["ip"]) == ("active", cloud.machines()[0].public_address)
    [ending] = api.terminate(made)
    assert ending["status"] == "terminating"
    assert api.terminate(made)[0]["status"] == "terminating"
    cloud.advance(30.0)
    assert api.get("instances") == []
    assert api.get(f"instances/{made}")["status"] == "terminated"
    cloud.advance(7200.0)
    assert api.refused("GET", f"instances/{made}") == (404, "global/object-does-not-exist")


def test_user_data_and_keys_reach_the_machine(cloud, api):
    started = []
    start = cloud.host.start
    cloud.host.start = lambda spec, ended: (started.append(spec), start(spec, ended))
    api.add_key()
    api.launch(user_data="#cloud-config\n", hostname="head")
    [spec] = started
    assert (spec.user_data, spec.host_name) == (b"#cloud-config\n", "head")
    assert spec.public_keys == (("mine", KEY),)
    assert [(one.first_port, one.last_port) for one in spec.ingress] == [(22, 22)]


def test_credentials_are_a_bearer_or_a_basic_header(cloud):
    encoded = base64.b64encode(f"{cloud.api_key}:".encode()).decode()
    statuses = {}
    for header in (f"Bearer {cloud.api_key}", f"Basic {encoded}", f"Basic {cloud.api_key}", "Bearer other"):
        answer = httpx.get(f"{cloud.endpoint_url}/api/v1/instances", headers={"Authorization": header})
        statuses[header] = answer.status_code
    assert list(statuses.values()) == [200, 200, 200, 401]
    assert httpx.get(f"{cloud.endpoint_url}/api/v1/instances").status_code == 401


def test_revoked_keys_and_inactive_accounts_are_refused(cloud, api):
    cloud.revoke()
    assert api.refused("GET", "instances") == (401, "global/invalid-api-key")
    cloud.restore()
    cloud.set_active(False)
    assert api.refused("GET", "instances") == (403, "global/account-inactive")
    cloud.set_active(True)
    assert api.get("instances") == []


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"quantity": 2}, (400, "global/invalid-parameters")),
        ({"region_name": "moon-1"}, (400, "global/invalid-parameters")),
        ({"instance_type_name": "gpu_9x_none"}, (404, "global/object-does-not-exist")),
        ({"ssh_key_names": []}, (400, "global/invalid-parameters")),
        ({"ssh_key_names": ["other"]}, (404, "global/object-does-not-exist")),
        ({"image": {"family": "none"}}, (404, "global/object-does-not-exist")),
        (
            {"image": {"family": "ubuntu-lts"}, "instance_type_name": "gpu_1x_gh200"},
            (400, "global/invalid-parameters"),
        ),
        ({"tags": [{"key": "Grid", "value": "a"}]}, (400, "global/invalid-parameters")),
        ({"name": "n" * 65}, (400, "global/invalid-parameters")),
        ({"user_data": "#" * 1_000_001}, (400, "global/invalid-parameters")),
        ({"hostname": "UPPER"}, (400, "global/invalid-parameters")),
        ({"firewall_rulesets": [{"id": "none"}]}, (404, "global/object-does-not-exist")),
        ({"nonsense": 1}, (400, "global/invalid-parameters")),
        ({"file_system_names": ["mine"]}, (501, "simulation/not-implemented")),
        (
            {"instance_type_name": "gpu_8x_h100_sxm5"},
            (400, "instance-operations/launch/insufficient-capacity"),
        ),
    ],
)
def test_wrong_launches_are_refused(cloud, api, changes, refusal):
    api.add_key()
    assert api.refused_launch(**changes) == refusal
    assert cloud.running() == []


def test_two_keys_of_one_name_are_accepted_and_then_launches_fail(cloud, api):
    ids = [api.add_key(), api.add_key()]
    assert api.refused_launch() == (500, "global/unknown")
    api.wire.ok("DELETE", f"ssh-keys/{ids[0]}")
    assert api.refused("DELETE", f"ssh-keys/{ids[0]}") == (400, "global/invalid-parameters")
    api.launch()
    assert [one["name"] for one in api.get("ssh-keys")] == ["mine"]
    assert len(cloud.leftovers()) == 2


def test_a_key_pair_is_made_if_no_public_key_is_given(api):
    made = api.wire.ok("POST", "ssh-keys", {"name": "new"})["data"]
    assert made["private_key"].startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert made["public_key"].startswith("ssh-ed25519 ")
    assert "private_key" not in api.get("ssh-keys")[0]


def test_types_have_prices_and_the_regions_with_a_free_machine(cloud, api):
    cloud.faults.capacity = {f"{TYPE}@{REGION}": 1, "gpu_8x_a100@*": 0}
    types = api.get("instance-types")
    assert types[TYPE]["instance_type"]["price_cents_per_hour"] == 75
    assert types["gpu_8x_a100"]["regions_with_capacity_available"] == []
    api.add_key()
    api.launch()
    free = [one["name"] for one in api.get("instance-types")[TYPE]["regions_with_capacity_available"]]
    assert REGION not in free
    assert "us-west-1" in free
    assert api.refused_launch() == (400, "instance-operations/launch/insufficient-capacity")


def test_the_quota_counts_all_instances(cloud, api):
    cloud.faults.quotas = {"instances": 1}
    api.add_key()
    api.launch()
    assert api.refused_launch(region_name="us-west-1") == (400, "global/quota-exceeded")


def test_images_are_those_of_all_regions(api):
    images = api.get("images")
    here = [one for one in images if one["region"]["name"] == REGION and one["architecture"] == "arm64"]
    assert [one["family"] for one in here] == ["lambda-stack-22-04"]
    api.add_key()
    api.launch(image={"id": here[0]["id"]}, instance_type_name="gpu_1x_gh200")


def test_rates_are_limited(cloud, api):
    api.add_key()
    cloud.faults.throttling = True
    assert api.wire.send("GET", "instances")[0] == 200
    assert api.wire.send("GET", "instances")[0] == 429
    cloud.advance(1.0)
    api.launch()
    cloud.advance(11.0)
    assert api.wire.send("POST", "instance-operations/launch", api.launch_request())[0] == 429
    assert api.get("instances")
    cloud.advance(1.0)
    api.launch()


def test_rules_of_the_account_and_rulesets_open_ports(cloud, api):
    rule = {"protocol": "tcp", "port_range": [80, 81], "source_network": "10.0.0.0/8", "description": "web"}
    ruleset = api.wire.ok("POST", "firewall-rulesets", {"name": "web", "region": REGION, "rules": [rule]})[
        "data"
    ]
    api.add_key()
    made = api.launch(firewall_rulesets=[{"id": ruleset["id"]}])
    other = api.launch(region_name="us-south-1")

    def ports(machine: str) -> list[tuple[int, int]]:
        return [(one.first_port, one.last_port) for one in cloud.host.ingress[machine]]

    assert (ports(made), ports(other)) == ([(22, 22), (80, 81)], [(1, 65_535)])
    assert api.wire.ok("PUT", "firewall-rules", {"data": [rule]})["data"] == [rule]
    assert ports(made) == [(80, 81), (80, 81)]
    assert api.get(f"firewall-rulesets/{ruleset['id']}")["instance_ids"] == [made]
    refused = api.refused("DELETE", f"firewall-rulesets/{ruleset['id']}")
    assert refused == (400, "firewall-rulesets/firewall-ruleset-in-use")
    api.terminate(made)
    api.wire.ok("DELETE", f"firewall-rulesets/{ruleset['id']}")
    assert api.get("firewall-rulesets") == []


def test_a_wrong_rule_is_refused(api):
    for change in ({"protocol": "tcp"}, {"protocol": "icmp", "port_range": [1, 2]}, {"source_network": "x"}):
        rule = {
            "protocol": "tcp",
            "port_range": [1, 2],
            "source_network": "1.2.3.4",
            "description": "",
        } | change
        if change == {"protocol": "tcp"}:
            del rule["port_range"]
        refused = api.refused("PUT", "firewall-rules", {"data": [rule]})
        assert refused == (400, "global/invalid-parameters")


def test_whole_minutes_are_charged_from_the_boot_on(cloud, api):
    cloud.faults.pending_seconds = 200.0
    api.add_key()
    made = api.launch()
    cloud.advance(200.0)
    assert cloud.bill().total_micros == 0
    cloud.advance(61.0)
    cloud.shut_down(made)
    assert api.get(f"instances/{made}")["status"] == "unhealthy"
    cloud.advance(3539.0)
    api.terminate(made)
    cloud.advance(999.0)
    [item] = cloud.bill().items
    assert (item.seconds, item.amount_micros, item.is_running) == (3600, 750_000, False)


def test_lists_lag_and_new_resources_are_invisible(cloud, api):
    cloud.faults.invisible_seconds = 60.0
    api.add_key()
    made = api.launch()
    assert (api.get("instances"), api.get("ssh-keys")) == ([], [])
    assert api.refused("GET", f"instances/{made}") == (404, "global/object-does-not-exist")
    cloud.advance(60.0)
    assert [one["id"] for one in api.get("instances")] == [made]
    cloud.faults.list_lag_seconds = 1e9
    assert api.get("instances") == []


def test_an_answer_is_lost_before_or_after_the_effect(cloud, api):
    api.add_key()
    cloud.faults.plan(PlannedFault(action="launchInstance", outcome=Outcome.LOST_BEFORE))
    cloud.faults.lose_answers("launchInstance")
    for count in (0, 1):
        with pytest.raises(httpx.RemoteProtocolError):
            api.launch()
        assert len(cloud.running()) == count


def test_server_errors_have_the_dialect_of_lambda(cloud, api):
    cloud.faults.fail("listInstances", "", status=500)
    assert api.refused("GET", "instances") == (500, "global/internal-error")
    cloud.faults.fail("listInstances", "provider/internal-unavailable", status=503)
    assert api.refused("GET", "instances") == (503, "provider/internal-unavailable")


def test_regions_can_be_down_or_gone(cloud, api):
    api.add_key()
    cloud.faults.regions_down = [REGION]
    assert api.refused_launch() == (503, "provider/internal-unavailable")
    cloud.faults.regions_down, cloud.faults.regions_gone = [], [REGION]
    assert api.refused_launch() == (400, "global/invalid-parameters")
    assert REGION not in str(api.get("instance-types"))


def test_a_machine_that_dies_is_unhealthy_until_somebody_ends_it(cloud, api):
    cloud.faults.lifetime_seconds = 100.0
    api.add_key()
    made = api.launch()
    cloud.advance(10_000.0)
    assert api.get(f"instances/{made}")["status"] == "unhealthy"
    assert [one.id for one in cloud.running()] == [made]
    cloud.terminate_by_hand(made)
    assert cloud.running() == []


def test_the_name_of_an_instance_can_be_changed(api):
    api.add_key()
    made = api.launch(name="one")
    assert api.wire.ok("POST", f"instances/{made}", {"name": "two"})["data"]["name"] == "two"


def test_scripts_control_the_simulation(cloud):
    url = f"{cloud.endpoint_url}/_simulation/"
    assert httpx.post(f"{url}faults", json={"pending_seconds": 5}).json()["pending_seconds"] == 5
    assert httpx.post(f"{url}bill").json() == {"currency": "USD", "total_micros": 0, "items": []}
    assert httpx.post(f"{url}machines").json() == []
    assert httpx.post(f"{url}advance", json={"seconds": 1}).json() == {}
    assert httpx.post(f"{url}nothing").status_code == 400
