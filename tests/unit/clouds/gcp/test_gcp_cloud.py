from dataclasses import replace

import httpx
import pytest
from tests.kit.google_api import PROJECT, GoogleApi, refusal, service_account_key, settings
from tests.unit.clouds.gcp.test_gcp_launch import REQUEST

from gridmill.clouds.gcp.cloud import GcpCloud, make
from gridmill.clouds.gcp.firewalls import rule_name
from gridmill.clouds.gcp.images import WITH_DRIVER, image_for, newest_of, path_of
from gridmill.clouds.gcp.launch import description_of, instance_name, labels_of
from gridmill.clouds.gcp.own_images import image_name, insert_body
from gridmill.clouds.gcp.requests import GcpRequests
from gridmill.domain.machine import Leftover, MachineState, SelfEnd
from gridmill.errors import (
    ConflictError,
    CredentialsError,
    InputError,
    NoMachineError,
    QuotaError,
    RefusedError,
    UnavailableError,
)
from gridmill.ports.cloud import EndCommands, ImageRequest

BASE = f"/compute/v1/projects/{PROJECT}"
ZONE = f"{BASE}/zones/us-central1-a"
NAME = instance_name(REQUEST)
INSERT, GET = f"POST {ZONE}/instances", f"GET {ZONE}/instances/{NAME}"
RULES = f"POST {BASE}/global/firewalls"
IMAGE = "GET /compute/v1/projects/deeplearning-platform-release/global/images"
DONE = {"name": "op-1", "status": "DONE", "zone": "z/us-central1-a"}
MACHINES = f"GET {BASE}/aggregated/instances"


def _image(cuda, ubuntu, day, **changes):
    family = f"common-cu{cuda}-ubuntu-{ubuntu}-nvidia-580"
    created = f"2026-01-{day:02}T00:00:00.000-08:00"
    image = {"name": f"{family}-v{day}", "family": family, "creationTimestamp": created, "diskSizeGb": "50"}
    return image | {"architecture": "X86_64"} | changes


def _images(**changes):
    return {"items": [_image(128, 2404, 5, **changes)]}


def _instance(request=REQUEST, **changes):
    return {
        "name": instance_name(request),
        "zone": "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a",
        "machineType": "zones/us-central1-a/machineTypes/g2-standard-8",
        "status": "PROVISIONING",
        "labels": labels_of(request),
        "description": description_of(request),
        **changes,
    }


def _api(**answers):
    return GoogleApi(
        {
            IMAGE: _images(),
            RULES: {"name": "op-0", "status": "DONE"},
            INSERT: DONE,
            GET: _instance(),
            **answers,
        }
    )


def _cloud(api, **changes):
    return GcpCloud(settings(**changes), launch_seconds=0.05, transport=api.transport)


def _failed(code):
    return {**DONE, "error": {"errors": [{"code": code, "message": "no"}]}, "httpErrorStatusCode": 400}


def test_a_launch_returns_the_machine_when_the_provider_has_decided():
    running = {"name": "op-1", "status": "RUNNING", "zone": "z/us-central1-a"}
    wait = f"POST {ZONE}/operations/op-1/wait"
    api = _api(**{INSERT: running, wait: DONE})
    cloud = _cloud(api)
    machine = cloud.launch(REQUEST)
    assert (machine.id, machine.token, machine.state) == (NAME, REQUEST.token, MachineState.PENDING)
    assert api.calls == [IMAGE, RULES, INSERT, wait, GET]
    (insert,) = [one for one in api.requests if f"{one.method} {one.url.path}" == INSERT]
    assert insert.url.params["requestId"]
    assert api.body(INSERT)["tags"]["items"] == [rule_name("grid-a", "lease-1")]
    cloud.close()


def test_a_repeated_launch_returns_the_machine_of_the_first():
    cloud = _cloud(_api(**{INSERT: refusal(409, "alreadyExists"), RULES: refusal(409, "alreadyExists")}))
    assert cloud.launch(REQUEST).id == NAME
    with pytest.raises(ConflictError, match="other parameters"):
        cloud.launch(replace(REQUEST, disk_bytes=1))
    cloud.close()


@pytest.mark.parametrize("answer", [refusal(409, "alreadyExists"), DONE])
def test_a_repeated_launch_after_the_end_of_the_machine_is_a_conflict(answer):
    cloud = _cloud(_api(**{INSERT: answer, GET: refusal(404, "notFound")}))
    with pytest.raises(ConflictError, match="has ended"):
        cloud.launch(REQUEST)
    cloud.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (_failed("ZONE_RESOURCE_POOL_EXHAUSTED"), NoMachineError),
        (_failed("QUOTA_EXCEEDED"), QuotaError),
        (refusal(403, "quotaExceeded"), QuotaError),
        (refusal(403, "forbidden"), RefusedError),
        (refusal(400, "invalid"), RefusedError),
    ],
)
def test_a_refused_launch_has_its_class_unless_the_machine_exists(answer, error):
    api = _api(**{INSERT: answer, GET: refusal(404, "notFound")})
    cloud = _cloud(api)
    with pytest.raises(error):
        cloud.launch(REQUEST)
    api.answers[GET] = _instance()
    assert cloud.launch(REQUEST).id == NAME
    cloud.close()


@pytest.mark.parametrize(
    "answer", [httpx.ReadTimeout("slow"), refusal(503, "backendError"), (502, "<html>"), (200, "<html>"), {}]
)
def test_a_launch_without_an_answer_may_have_started_a_machine(answer):
    cloud = _cloud(_api(**{INSERT: answer}))
    with pytest.raises(UnavailableError):
        cloud.launch(REQUEST)
    cloud.close()


def test_a_launch_that_the_provider_does_not_decide_is_repeated():
    running = {"name": "op-1", "status": "RUNNING", "zone": "z/us-central1-a"}
    wait = f"POST {ZONE}/operations/op-1/wait"
    api = _api(**{INSERT: running, wait: running, GET: refusal(404, "notFound")})
    cloud = _cloud(api)
    with pytest.raises(UnavailableError, match="not yet decided"):
        cloud.launch(REQUEST)
    api.answers[GET] = _instance()
    assert cloud.launch(REQUEST).state is MachineState.PENDING
    cloud.close()


@pytest.mark.parametrize(
    "answer",
    [refusal(404, "notFound"), refusal(403, "forbidden"), refusal(400, "invalid"), refusal(503, "x")],
)
def test_a_launch_whose_operation_cannot_be_read_may_have_started_a_machine(answer):
    running = {"name": "op-1", "status": "RUNNING", "zone": "z/us-central1-a"}
    wait = f"POST {ZONE}/operations/op-1/wait"
    cloud = _cloud(_api(**{INSERT: running, wait: answer, GET: refusal(404, "notFound")}))
    with pytest.raises(UnavailableError):
        cloud.launch(REQUEST)
    cloud.close()


def test_a_firewall_rule_that_is_refused_costs_no_machine():
    api = _api(**{RULES: _failed("QUOTA_EXCEEDED"), GET: refusal(404, "notFound")})
    cloud = _cloud(api)
    with pytest.raises(QuotaError):
        cloud.launch(REQUEST)
    assert INSERT not in api.calls
    cloud.close()


def test_given_network_tags_need_no_firewall_rule():
    api = _api()
    cloud = _cloud(api, network_tags=("allow-ssh",))
    cloud.launch(REQUEST)
    assert RULES not in api.calls
    assert api.body(INSERT)["tags"]["items"] == ["allow-ssh"]
    cloud.close()


def test_regions_that_are_not_permitted_are_refused():
    api = _api()
    cloud = _cloud(api, regions=("europe-",))
    with pytest.raises(RefusedError, match="us-central1"):
        cloud.launch(REQUEST)
    assert api.calls == []
    cloud.close()


def test_machines_of_all_pages_and_zones_are_listed():
    other = replace(REQUEST, token="t2", owner="grid-b")
    pages = [
        {
            "items": {
                "zones/us-central1-a": {"instances": [_instance()]},
                "zones/us-central1-b": {"warning": {"code": "NO_RESULTS_ON_PAGE"}},
            },
            "nextPageToken": "next",
        },
        {"items": {"zones/us-central1-a": {"instances": [_instance(other)]}}},
    ]
    api = _api(**{MACHINES: lambda request: pages[request.url.params.get("pageToken") == "next"]})
    cloud = _cloud(api)
    assert [one.token for one in cloud.machines()] == [REQUEST.token, "t2"]
    assert [one.token for one in cloud.machines("grid-b")] == ["t2"]
    assert [one.url.params["filter"] for one in api.requests][-1] == "labels.gridmill-owner=grid-b"
    cloud.close()


@pytest.mark.parametrize(
    "page",
    [
        {"items": {"zones/us-central1-a": {"warning": {"code": "UNREACHABLE"}}}},
        {"items": {}, "unreachables": ["projects/p/zones/us-central1-a"]},
        {"items": {}, "unreachables": ["zones/us-central1-a"]},
        {"items": {}, "warning": {"code": "UNREACHABLE"}},
    ],
)
def test_a_zone_without_an_answer_is_never_an_empty_list(page):
    cloud = _cloud(_api(**{MACHINES: page}))
    with pytest.raises(UnavailableError):
        cloud.machines()
    cloud.close()


def test_zones_outside_of_the_permitted_regions_need_not_answer():
    page = {"items": {"zones/asia-east1-a": {"warning": {"code": "UNREACHABLE"}}}}
    cloud = _cloud(_api(**{MACHINES: page}), regions=("us-",))
    assert cloud.machines() == ()
    cloud.close()


def test_a_machine_that_does_not_exist_counts_as_ended():
    api = _api(**{MACHINES: {"items": {"zones/us-central1-a": {"instances": [_instance()]}}}})
    cloud = _cloud(api)
    (machine,) = cloud.machines()
    cloud.terminate(machine)
    assert api.calls[-1] == f"DELETE {ZONE}/instances/{NAME}"
    api.answers[api.calls[-1]] = refusal(403, "forbidden")
    with pytest.raises(CredentialsError, match="forbidden"):
        cloud.terminate(machine)
    cloud.close()


def _leftovers_api():
    labels = labels_of(REQUEST)
    disk = {"name": NAME, "zone": "z/us-central1-a", "labels": labels, "description": description_of(REQUEST)}
    fixed = {"name": "fixed", "region": "r/us-central1", "labels": labels}
    everywhere = {"name": "everywhere", "labels": labels}
    rule = {"name": rule_name("grid-a", "lease-1"), "description": description_of(REQUEST, is_shared=True)}
    build = ImageRequest(name="base", lease="lease-1", owner="grid-a", version="1")
    image = insert_body(build, "zones/us-central1-a/disks/d")
    foreign = {"name": "default-allow-ssh", "description": "Allow SSH from anywhere"}
    return _api(
        **{
            f"GET {BASE}/aggregated/disks": {"items": {"zones/us-central1-a": {"disks": [disk]}}},
            f"GET {BASE}/aggregated/addresses": {
                "items": {
                    "regions/us-central1": {"addresses": [fixed]},
                    "global": {"addresses": [everywhere]},
                }
            },
            f"GET {BASE}/global/firewalls": {"items": [rule, foreign]},
            f"GET {BASE}/global/images": {"items": [image]},
            MACHINES: {},
        }
    )


def test_everything_with_labels_and_the_firewall_rules_are_left_over():
    api = _leftovers_api()
    cloud = _cloud(api)
    found = cloud.leftovers("grid-a")
    assert [(one.kind, one.region) for one in found] == [
        ("disk", "us-central1"),
        ("address", "us-central1"),
        ("address", "global"),
        ("firewall-rule", "global"),
        ("image", "global"),
    ]
    assert {(one.lease, one.owner) for one in found} == {("lease-1", "grid-a")}
    for one in found:
        cloud.delete(one)
    assert [one for one in api.calls if one.startswith("DELETE")] == [
        f"DELETE {ZONE}/disks/{NAME}",
        f"DELETE {BASE}/regions/us-central1/addresses/fixed",
        f"DELETE {BASE}/global/addresses/everywhere",
        f"DELETE {BASE}/global/firewalls/{found[3].id}",
        f"DELETE {BASE}/global/images/{image_name('grid-a', 'base')}",
    ]
    assert cloud.leftovers("grid-b") == ()
    cloud.close()


def test_the_firewall_rule_of_a_running_machine_is_kept():
    api = _leftovers_api()
    api.answers[MACHINES] = {"items": {"zones/us-central1-a": {"instances": [_instance()]}}}
    cloud = _cloud(api)
    with pytest.raises(ConflictError, match="in use"):
        cloud.delete(cloud.leftovers()[3])
    assert not any(one.startswith("DELETE") for one in api.calls)
    cloud.close()


def test_an_unknown_kind_of_leftover_is_named():
    cloud = _cloud(_api())
    with pytest.raises(Exception, match="no 'key'"):
        cloud.delete(Leftover(kind="key", id="k", region="r", lease="", owner=""))
    cloud.close()


def test_a_refused_token_is_renewed_with_the_present_key():
    api = _api(**{MACHINES: {}})
    changing = {"project": PROJECT, "service_account_key": "key"}
    keys = {"key": service_account_key()}
    cloud = make(changing, keys.__getitem__)
    cloud._requests._transport = api.transport
    assert cloud.machines() == ()
    api.refused_tokens.add("token-1")
    keys["key"] = service_account_key("other")
    with pytest.raises(CredentialsError):
        cloud.machines()
    assert cloud.machines() == ()
    assert api.tokens == 2
    cloud.close()


def test_a_refused_key_is_an_error_of_the_credentials_and_a_lost_token_is_not():
    transport = httpx.MockTransport(lambda request: httpx.Response(400, json={"error": "invalid_grant"}))
    cloud = GcpCloud(settings(), transport=transport)
    with pytest.raises(CredentialsError, match="invalid_grant"):
        cloud.machines()
    cloud.close()

    def lost(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route")

    cloud = GcpCloud(settings(), transport=httpx.MockTransport(lost))
    with pytest.raises(UnavailableError) as caught:
        cloud.machines()
    assert not isinstance(caught.value, CredentialsError)
    cloud.close()


def test_a_call_during_which_the_connections_are_closed_is_an_error_of_gridmill():
    def answer(request: httpx.Request) -> httpx.Response:
        requests.close()
        return httpx.Response(200, json={"access_token": "t", "expires_in": 3600})

    requests = GcpRequests(settings(), transport=httpx.MockTransport(answer))
    with pytest.raises(UnavailableError, match="closed"):
        requests.compute("instances.get", "/zones/z/instances/i")


def test_missing_credentials_are_explained(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none"))
    cloud = make({}, str)
    with pytest.raises(CredentialsError) as caught:
        cloud.machines()
    assert "service_account_key" in caught.value.hint
    cloud.close()


def test_a_machine_ends_itself_by_a_call_only_with_a_service_account():
    api = _api()
    timer, own = _cloud(api), _cloud(api, service_accounts=("end@p.iam.gserviceaccount.com",))
    assert isinstance(timer, EndCommands)
    assert timer.traits.self_end is SelfEnd.PROVIDER_TIMER
    assert own.traits.self_end is SelfEnd.OWN_CALL
    assert "DELETE" in own.end_command("t")
    assert timer.end_command("t")
    assert "DELETE" not in timer.end_command("t")
    for cloud in (timer, own):
        assert "poweroff" not in cloud.end_command("t")
        assert "shutdown" not in cloud.end_command("t")


def test_images_by_their_short_names():
    assert image_for("", "g2-standard-8") == WITH_DRIVER
    assert image_for("", "n1-standard-4+1xnvidia-tesla-t4") == WITH_DRIVER
    assert image_for("", "n2-standard-8").endswith("amd64")
    assert image_for("", "t2a-standard-1").endswith("arm64")
    assert image_for("mine", "g2-standard-8") == "mine"
    assert path_of("mine", "p") == "projects/p/global/images/mine"
    assert path_of("family/mine", "p") == "projects/p/global/images/family/mine"
    assert path_of("other/mine", "p") == "projects/other/global/images/mine"
    url = "https://www.googleapis.com/compute/v1/projects/o/global/images/family/f"
    assert path_of(url, "p") == path_of("projects/o/global/images/family/f", "p")
    assert path_of(url, "p") == "projects/o/global/images/family/f"
    with pytest.raises(InputError):
        path_of("a/b/c/d", "p")


def test_the_newest_image_for_the_newest_ubuntu_is_used():
    images = [
        _image(128, 2404, 5),
        _image(129, 2404, 9),
        _image(129, 2204, 20),
        _image(130, 2404, 25, deprecated={"state": "DEPRECATED"}),
        _image(130, 2604, 25, family="common-cu130-debian-13"),
    ]
    newest = newest_of(images)
    assert newest is not None
    assert newest["name"] == "common-cu129-ubuntu-2404-nvidia-580-v9"
    assert newest_of([]) is None


def test_an_image_that_does_not_fit_is_refused_before_renting():
    api = _api(**{IMAGE: _images(architecture="ARM64"), GET: refusal(404, "notFound")})
    cloud = _cloud(api)
    with pytest.raises(RefusedError, match="arm64"):
        cloud.launch(REQUEST)
    api.answers[IMAGE] = {}
    with pytest.raises(RefusedError, match="no image of Ubuntu"):
        cloud.launch(REQUEST)
    with pytest.raises(RefusedError, match="does not exist"):
        cloud.launch(replace(REQUEST, image="no-such-image"))
    assert INSERT not in api.calls
    cloud.close()
