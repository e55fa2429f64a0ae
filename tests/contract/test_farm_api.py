"""A farm's controller over real TLS: who is let in, what is refused, and pods that go on without it."""

import fcntl
import http.client
import os
import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.farms import Listener, Visitor, farm, member, open_folder, visitor

from gridmill.codec import decode, decode_passed, encode_passed
from gridmill.domain.amounts import Amounts
from gridmill.domain.farm_protocol import ChunkHashes, DeployRequest, FileEntry, Manifest, PlaceTree, PodNames
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pod_protocol import AttemptOrder, Events, Hello, PodOrder, Start, Welcome
from gridmill.errors import InputError
from gridmill.farm.deployment import AttemptRecord, PodPlacement, TenantDeployment, TenantDeploymentState
from gridmill.farm.deployment_requests import deploy
from gridmill.farm.join import invite, revoke
from gridmill.farm.main import RunningFarm
from gridmill.farm.store import RecordStore
from gridmill.farm.tenant import Invitation, LastContact, Tenant
from gridmill.ports.site import PodReport, PodReports, PodStatus
from gridmill.transfer.stream import Chunk, hash_of
from gridmill.transfer.stream import decode as decode_frames
from gridmill.transfer.stream import encode as encode_frames

PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def running() -> Iterator[RunningFarm]:
    with open_folder() as place, farm(place / "h") as one:
        yield one


@pytest.fixture
def place() -> Iterator[Path]:
    with open_folder() as made:
        yield made


@pytest.fixture(scope="module")
def home(running: RunningFarm, tmp_path_factory: pytest.TempPathFactory) -> Visitor:
    return member(running, tmp_path_factory.mktemp("home"))


def pod_order(pod: str, **more: object) -> PodOrder:
    given = PodOrder(
        pod_id=pod,
        deployment_id=pod.rpartition(".")[0],
        type="command",
        secret="of the pod",
        home="",
        link="",
        capacity=Amounts(cpus=1, memory_bytes=2**28),
        keep_seconds=600,
    )
    return replace(given, **more)


def attempt(name: str, command: str, root: str) -> Start:
    order = AttemptOrder(
        attempt_id=name,
        token="t",
        run_id="r",
        pipeline="p",
        job=Job(name="j", command=CommandSpec(run=command)),
        given=Amounts(cpus=1, memory_bytes=2**27),
        root=root,
        output_uri=f"out/{name}",
    )
    return Start(order=order)


def hear(listener: Listener, kind: type) -> tuple[int, object]:
    while (line := listener.next(PATIENCE_SECONDS)) is not None:
        channel, message = decode_passed(line)
        if isinstance(message, kind):
            return channel, message
    raise AssertionError("the session is over")


def outcome(listener: Listener) -> str:
    while True:
        _, message = hear(listener, Events)
        assert isinstance(message, Events)
        for event in message.events:
            if event.type == "ended":
                return str(event.body["outcome"]["state"])


def test_who_has_no_certificate_or_no_token_is_let_in_nowhere(home: Visitor, tmp_path: Path) -> None:
    for stranger in (
        Visitor(home.port, tmp_path, token=home.token),
        replace(home, token=""),
        replace(home, token="wrong"),
        replace(home, token="é"),
    ):
        for method, path in (("GET", "/v1/farm"), ("POST", "/v1/relay"), ("GET", "/nowhere")):
            answer = stranger.ask(method, path)
            assert (answer.status, answer.told["place"]) == (401, "Authorization")
    assert home.ask("GET", "/v1/farm").status == 200
    assert Visitor(home.port, tmp_path).ask("GET", "/healthz").status == 200


def test_a_certificate_of_another_authority_is_refused_before_anything_is_said(
    place: Path, home: Visitor, tmp_path: Path
) -> None:
    with farm(place / "other") as other:
        stranger = member(other, tmp_path / "stranger")
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        Visitor(home.port, stranger.folder, home.token, True).ask("GET", "/v1/farm")


def test_a_secret_is_used_once_and_not_for_ever(running: RunningFarm, home: Visitor, tmp_path: Path) -> None:
    records, now = running.farm.records, running.farm.now()
    one = visitor(running, tmp_path / "one")
    assert one.join("wrong").status == 422
    secret = invite(records, now - 4000)
    assert "expired" in one.join(secret, "late").told["message"]
    secret = invite(records, now)
    assert one.join(secret, "home").told["code"] == "conflict"  # and it still holds
    wrong = one.join(secret, "other", version="9.9.9").told
    assert "9.9.9" in wrong["message"]
    assert [len(one.hash) for one in records.all(Invitation) if not one.key] == [64]
    if running.farm.one_user:
        told = one.join(secret, "other").told
        assert "one tenant only" in told["message"]
        return
    assert one.join(secret, "other").status == 200
    assert visitor(running, tmp_path / "three").join(secret, "third").status == 422


def test_rotated_credentials_replace_the_old_ones(place: Path, tmp_path: Path) -> None:
    with farm(place / "h") as running:
        before = member(running, tmp_path / "before")
        after = visitor(running, tmp_path / "after")
        secret = invite(running.farm.records, running.farm.now(), "home")
        assert before.ask("GET", "/v1/farm").status == 200
        assert after.join(secret, "elsewhere").status == 422
        assert after.join(secret, "home").status == 200
        assert before.ask("GET", "/v1/farm").status == 401
        assert after.ask("GET", "/v1/farm").status == 200


def test_many_wrong_secrets_are_too_many(place: Path, tmp_path: Path) -> None:
    with farm(place / "h") as running:
        one = visitor(running, tmp_path / "one")
        assert [one.join("wrong").status for _ in range(11)] == [422] * 10 + [429]
        assert one.join(invite(running.farm.records, running.farm.now())).status == 429


def test_a_tenant_sees_the_line_the_disk_and_its_nodes(home: Visitor) -> None:
    told = home.ask("GET", "/v1/farm").told
    assert told["disk_free_bytes"] > 0
    assert told["queue"] == []
    assert told["utilization"].keys() == {node["name"] for node in told["nodes"]}
    gpus = {node["name"]: node["capacity"]["gpus"] for node in told["nodes"]}
    assert all(len(look["seats"]) == gpus[name] for name, look in told["utilization"].items())


def test_who_waits_is_told_its_place_and_about_how_long(place: Path, tmp_path: Path) -> None:
    """Told from how long deployments stayed here, of whomever; of pods that only stand in its records."""
    with farm(place / "h") as one:
        home = member(one, tmp_path / "home")
        (node,) = home.ask("GET", "/v1/farm").told["nodes"]
        one.tick_loop.close()  # it would see that none of them is there
        now, whole = one.farm.now(), 2**32
        for number in range(5):
            order = pod_order(f"d{number}.0", capacity=Amounts(cpus=1, memory_bytes=whole))
            deployment = TenantDeployment(
                id=f"d{number}",
                tenant="home" if number > 3 else "other",
                number=number,
                request=DeployRequest(orders=(order,), lease_seconds=600),
                since=now,
            )
            if number < 4:
                berth = PodPlacement(pod_id=order.pod_id, node=node["name"])
                began = replace(
                    deployment.to(TenantDeploymentState.STARTING, now - 7200), placements=(berth,)
                )
                deployment = began if number == 3 else began.to(TenantDeploymentState.GONE, now + 3600)
            one.farm.records.put(deployment)
        told = home.ask("GET", "/v1/farm").told
        assert told["waiting"] == 1
        (waits,) = told["queue"]
        assert (waits["deployment"], waits["position"]) == ("d4", 0)
        assert 3000 < waits["seconds"] <= 3600
        assert told["future_capacity"][0]["seconds"] > waits["seconds"]
        sights = decode(home.ask("POST", "/v1/pods/observe", PodNames(pods=("d4.0",))).body, PodReports)
        told = sights.reports["d4.0"]
        assert told.status == PodStatus.QUEUED
        assert re.fullmatch(r"waits for room on the farm; next in the queue, about \d+ min", told.message)


def test_a_probe_takes_and_gives_bytes_for_nothing(home: Visitor) -> None:
    answer = home.ask("POST", "/v1/probe?back=70000", b"x" * 70_000)
    assert (answer.status, len(answer.body)) == (200, 70_000)
    assert home.ask("POST", "/v1/probe").body == b""
    assert home.ask("POST", f"/v1/probe?back={2**40}").status == 422


def test_what_is_wrong_or_too_much_is_one_clear_error(home: Visitor) -> None:
    assert home.ask("PUT", "/v1/deployments/x", b"{").status == 422
    assert home.ask("PUT", "/v1/deployments/x", DeployRequest(orders=(), lease_seconds=1)).status == 422
    traversal = pod_order("x.0", pod_id="../../x")
    answer = home.ask("PUT", "/v1/deployments/x", DeployRequest(orders=(traversal,), lease_seconds=1))
    assert (answer.status, answer.told["code"]) == (422, "invalid-input")
    huge = pod_order("x.0", capacity=Amounts(cpus=1, memory_bytes=2**50))
    answer = home.ask("PUT", "/v1/deployments/x", DeployRequest(orders=(huge,), lease_seconds=1))
    assert answer.told["code"] == "no-capacity"
    assert home.ask("POST", "/v1/pods/observe", PodNames(pods=("../x",))).status == 422
    assert home.ask("GET", "/v1/farm", **{"Gridmill-Version": "9.0.0"}).status == 409
    assert home.ask("POST", "/v1/pods/observe", **{"Content-Length": str(2**40)}).status == 413


def test_who_is_refused_renews_no_lease(running: RunningFarm, home: Visitor) -> None:
    assert home.ask("GET", "/v1/farm").status == 200
    before = running.farm.last_contacts["home"]
    assert home.ask("GET", "/v1/farm", **{"Gridmill-Version": "9.0.0"}).status == 409
    assert replace(home, token="wrong").ask("GET", "/v1/farm").status == 401
    assert running.farm.last_contacts["home"] == before
    assert home.ask("GET", "/v1/farm").status == 200
    assert running.farm.last_contacts["home"] > before


def test_an_endless_body_is_cut(home: Visitor) -> None:
    connection = home.dial()
    connection.putrequest("POST", "/v1/join")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    try:
        for _ in range(100):
            connection.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        connection.send(b"0\r\n\r\n")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException):
        status = 413  # the connection was closed under it
    assert status in (413, 422)
    connection.close()


def test_a_job_of_a_tenant_runs_and_its_words_come_home(home: Visitor) -> None:
    wanted = DeployRequest(orders=(pod_order("works-1.0"),), lease_seconds=600)
    listener = Listener(home)
    for _ in range(2):
        assert home.ask("PUT", "/v1/deployments/works-1", wanted).status == 204
    channel, hello = hear(listener, Hello)
    assert isinstance(hello, Hello)
    assert (hello.pod_id, hello.secret) == ("works-1.0", "of the pod")
    root = home.ask("GET", "/v1/farm").told["root"]
    lines = [encode_passed(channel, Welcome(acknowledged=0))]
    lines += [encode_passed(channel, attempt("a1", "echo hello", root))]
    path = f"/v1/relay/{listener.name}"
    for _ in range(2):  # the second is what was said already
        assert home.ask("POST", path, b"\n".join(lines), Sequence="1").status == 204
    assert outcome(listener) == "succeeded"
    assert home.ask("POST", path, b'[1,["hello",{}]]').status == 422
    for _ in range(2):
        assert home.ask("POST", "/v1/pods/end", PodNames(pods=("works-1.0",))).status == 204
    seen = decode(home.ask("POST", "/v1/pods/observe", PodNames(pods=("works-1.0",))).body, PodReports)
    assert seen.reports["works-1.0"].status == PodStatus.GONE
    assert home.ask("PUT", "/v1/deployments/works-1", wanted).status == 204  # late: nothing comes of it
    seen = decode(home.ask("POST", "/v1/pods/observe", PodNames(pods=("works-1.0",))).body, PodReports)
    assert seen.reports["works-1.0"].status == PodStatus.GONE


def framed(*contents: bytes) -> bytes:
    return b"".join(encode_frames(Chunk(hash=hash_of(one), data=one) for one in contents))


def tree_of(contents: dict[str, bytes]) -> Manifest:
    files = (
        FileEntry(path=path, size_bytes=len(data), chunks=(hash_of(data),)) for path, data in contents.items()
    )
    return Manifest(files=tuple(files), chunk_bytes=1024)


def test_what_is_carried_there_is_used_and_results_come_home(home: Visitor) -> None:
    contents = {"rows/a": b"one two", "rows/b": b"three"}
    manifest = tree_of(contents)
    hashes = [file.chunks[0] for file in manifest.files]
    place = PlaceTree(uri="in/data", manifest=manifest, attempt_id="c1")
    assert home.ask("POST", "/v1/staging/place", place).told["chunks"] == hashes
    assert home.ask("POST", "/v1/staging/chunks", framed(contents["rows/a"])).status == 204
    assert (
        home.ask("POST", "/v1/staging/missing", ChunkHashes(chunks=tuple(hashes))).told["chunks"]
        == hashes[1:]
    )
    assert home.ask("POST", "/v1/staging/chunks", framed(contents["rows/b"])).status == 204
    assert home.ask("POST", "/v1/staging/place", place).told["chunks"] == []

    listener = Listener(home)
    wanted = DeployRequest(orders=(pod_order("carry-1.0"),), lease_seconds=600)
    assert home.ask("PUT", "/v1/deployments/carry-1", wanted).status == 204
    channel, _ = hear(listener, Hello)
    root = home.ask("GET", "/v1/farm").told["root"]
    command = f"mkdir -p {root}/out/c1 && cat {root}/in/data/rows/* > {root}/out/c1/all"
    said = [Welcome(acknowledged=0), attempt("c1", command, root)]
    lines = b"\n".join(encode_passed(channel, one) for one in said)
    assert home.ask("POST", f"/v1/relay/{listener.name}", lines, Sequence="1").status == 204
    assert outcome(listener) == "succeeded"

    result = decode(home.ask("POST", "/v1/staging/scan", {"uri": "out/c1"}).body, Manifest)
    assert [(file.path, file.size_bytes) for file in result.files] == [("all", 12)]
    frames = home.ask("POST", "/v1/staging/fetch", ChunkHashes(chunks=result.files[0].chunks)).body
    assert [chunk.data for chunk in decode_frames([frames])] == [b"one twothree"]
    for _ in range(2):
        assert home.ask("DELETE", "/v1/staging/attempts/c1").status == 204
    assert not (Path(root) / "out/c1").exists()
    assert not (Path(root) / "in/data").exists()
    assert home.ask("POST", "/v1/staging/scan", {"uri": "out/c1"}).status == 404
    assert home.ask("POST", "/v1/pods/end", PodNames(pods=("carry-1.0",))).status == 204


def test_what_is_carried_wrongly_is_refused(home: Visitor) -> None:
    damaged = framed(b"content")[:-1] + b"X"
    for body, status in ((damaged, 422), (framed(b"content")[:-1], 422), (b"rubbish" * 20, 422)):
        assert home.ask("POST", "/v1/staging/chunks", body).status == status
    wrong = hash_of(b"content")
    assert home.ask("POST", "/v1/staging/missing", ChunkHashes(chunks=(wrong,))).told["chunks"] == [wrong]
    assert home.ask("POST", "/v1/staging/fetch", ChunkHashes(chunks=(wrong,))).status == 404
    for uri in ("../home/secret", "/etc", "a/../../b", "", "."):
        assert home.ask("POST", "/v1/staging/scan", {"uri": uri}).told["code"] == "unsafe-path"
        place = PlaceTree(uri=uri, manifest=tree_of({"a": b"a"}), attempt_id="w1")
        assert home.ask("POST", "/v1/staging/place", place).told["code"] == "unsafe-path"
    traversal = PlaceTree(uri="x", manifest=tree_of({"../../a": b"a"}), attempt_id="w1")
    assert home.ask("POST", "/v1/staging/place", traversal).told["code"] == "unsafe-path"
    assert home.ask("DELETE", "/v1/staging/attempts/..%2Fx").status in (404, 422)


def test_a_new_session_ends_the_one_before_it(home: Visitor) -> None:
    first = Listener(home)
    second = Listener(home)
    assert first.wait_until_over(PATIENCE_SECONDS)
    assert home.ask("POST", f"/v1/relay/{first.name}").status == 404
    assert home.ask("GET", f"/v1/relay/{second.name}").status == 409
    assert home.ask("POST", f"/v1/relay/{second.name}").status == 204
    assert Listener(home).answer.status == 200
    assert second.wait_until_over(PATIENCE_SECONDS)


def test_a_pod_goes_on_when_the_controller_is_another(place: Path, tmp_path: Path) -> None:
    home_folder = place / "h"
    with farm(home_folder) as running:
        home = member(running, tmp_path / "home")
        listener = Listener(home)
        wanted = DeployRequest(orders=(pod_order("lives-1.0"),), lease_seconds=600)
        assert home.ask("PUT", "/v1/deployments/lives-1", wanted).status == 204
        channel, _ = hear(listener, Hello)
        root = home.ask("GET", "/v1/farm").told["root"]
        gate = place / "gate"
        os.mkfifo(gate)
        gate.chmod(0o644)
        said = [Welcome(acknowledged=0), attempt("a1", f"read line < {gate}", root)]
        lines = b"\n".join(encode_passed(channel, one) for one in said)
        assert home.ask("POST", f"/v1/relay/{listener.name}", lines, Sequence="1").status == 204
        hear(listener, Events)
    assert listener.wait_until_over(PATIENCE_SECONDS)
    with farm(home_folder) as running:
        home.port = visitor(running, tmp_path).port
        listener = Listener(home)
        channel, hello = hear(listener, Hello)
        assert isinstance(hello, Hello)
        assert hello.attempts == {"a1": "running"}
        path = f"/v1/relay/{listener.name}"
        assert home.ask("POST", path, encode_passed(channel, Welcome(acknowledged=0))).status == 204
        gate.write_text("go on\n")
        assert outcome(listener) == "succeeded"
        assert home.ask("POST", "/v1/pods/end", PodNames(pods=("lives-1.0",))).status == 204


def test_a_revoked_tenant_has_nothing_left(place: Path, tmp_path: Path) -> None:
    with farm(place / "h") as running:
        home = member(running, tmp_path / "home")
        listener = Listener(home)
        wanted = DeployRequest(orders=(pod_order("out-1.0"),), lease_seconds=600)
        assert home.ask("PUT", "/v1/deployments/out-1", wanted).status == 204
        hear(listener, Hello)
        beside = RecordStore(place / "h" / "farm" / "records.db")  # as a command does
        revoke(beside, "home")
        beside.close()
        assert home.ask("GET", "/v1/farm").status == 401
        assert listener.wait_until_over(PATIENCE_SECONDS)
        running.tick_loop.close()
        running.tick_loop.tick()
        assert not (place / "h" / "farm" / "tenants" / "home").exists()
        assert running.farm.records.all(Invitation) == ()


def test_what_a_tenant_asked_before_it_was_revoked_comes_to_nothing(place: Path, tmp_path: Path) -> None:
    with farm(place / "h") as running:
        member(running, tmp_path / "home")
        running.tick_loop.close()
        records = running.farm.records
        asked = records.find(Tenant, "home")  # its request was let in, and is not read yet
        assert asked is not None
        wanted = DeployRequest(orders=(pod_order("late-1.0"),), lease_seconds=600)
        revoke(records, "home")
        for _ in range(2):
            with pytest.raises(InputError, match="no tenant with"):
                deploy(running.farm, asked, "late-1", wanted)
            with pytest.raises(InputError, match="no tenant with"):
                running.farm.sandbox_of(asked)
            running.tick_loop.tick()
        member(running, tmp_path / "another")  # of the same name
        with pytest.raises(InputError, match="no tenant with"):
            deploy(running.farm, asked, "late-1", wanted)
        assert records.all(TenantDeployment) == ()


def test_what_is_noted_of_a_tenant_that_was_removed_goes(place: Path, tmp_path: Path) -> None:
    with farm(place / "h") as running:
        home = member(running, tmp_path / "home")
        running.tick_loop.close()
        records, now = running.farm.records, running.farm.now()
        mine = TenantDeployment(
            id="d", tenant="home", number=1, request=DeployRequest(orders=(), lease_seconds=9e9), since=now
        )
        work = AttemptRecord(attempt_id="a", tenant="home", time=now)
        records.put(*(one for noun in (mine, work) for one in (noun, replace(noun, tenant="gone"))))
        running.farm.last_contacts["gone"] = now
        clocks_of(running)(60)
        running.tick_loop.tick()
        kept = (*records.all(TenantDeployment), *records.all(AttemptRecord), *records.all(LastContact))
        assert {one.tenant for one in kept} == {"home"}
        assert home.ask("GET", "/v1/farm").status == 200


def test_a_clock_that_is_set_back_makes_no_lease_longer(place: Path, tmp_path: Path) -> None:
    with farm(place / "h") as running:
        member(running, tmp_path / "home")
        running.tick_loop.close()
        now = running.farm.now()
        running.farm.now = lambda: now - 10_000
        running.tick_loop.tick()
        [contact] = running.farm.last_contacts.values()
        assert now - 10_060 < contact <= now - 10_000


def test_a_deployment_that_comes_up_in_part_leaves_no_pod(place: Path, tmp_path: Path) -> None:
    with farm(place / "h") as running:
        home = member(running, tmp_path / "home")
        running.tick_loop.close()
        tenant = running.farm.records.all(Tenant)[0]
        pods = running.farm.sandbox_of(tenant).settings.home / "pods"
        pods.mkdir(exist_ok=True)
        (pods / "part-1.1").touch()  # by one of its jobs
        wanted = DeployRequest(orders=(pod_order("part-1.0"), pod_order("part-1.1")), lease_seconds=600)
        assert home.ask("PUT", "/v1/deployments/part-1", wanted).status == 204
        running.tick_loop.tick()
        assert "part-1.1" in gone(home, "part-1.0").message
        assert running.farm.sandbox_of(tenant).observe(["part-1.0"])["part-1.0"].status == PodStatus.GONE


def test_a_lease_that_is_over_ends_its_pods(place: Path, tmp_path: Path) -> None:
    with farm(place / "h") as running:
        home = member(running, tmp_path / "home")
        listener = Listener(home)
        wanted = DeployRequest(orders=(pod_order("short-1.0"),), lease_seconds=1000)
        assert home.ask("PUT", "/v1/deployments/short-1", wanted).status == 204
        channel, _ = hear(listener, Hello)
        idle = DeployRequest(orders=(pod_order("idle-1.0"),), lease_seconds=1000)
        assert home.ask("PUT", "/v1/deployments/idle-1", idle).status == 204
        hear(listener, Hello)
        root = home.ask("GET", "/v1/farm").told["root"]
        place_there(home, "in/l1", "l1", b"read")
        made = f"mkdir -p {root}/out/l1 && echo made > {root}/out/l1/file"
        said = [Welcome(acknowledged=0), attempt("l1", made, root)]
        lines = b"\n".join(encode_passed(channel, one) for one in said)
        assert home.ask("POST", f"/v1/relay/{listener.name}", lines, Sequence="1").status == 204
        assert outcome(listener) == "succeeded"
        running.tick_loop.close()
        set_clocks = clocks_of(running)
        set_clocks(1001)
        running.tick_loop.tick()
        assert "the tenant sent no request" in gone(home, "short-1.0").message
        set_clocks(1001 + 3599)
        running.tick_loop.tick()
        assert (Path(root) / "out/l1/file").exists()
        assert not (Path(root) / "in/l1").exists()
        assert list((place / "h/farm/tenants/home/chunks/pins").iterdir()) == []
        assert home.ask("GET", "/v1/farm").told["warnings"] == []
        set_clocks(1001 + 3601)
        running.tick_loop.tick()
        [told] = home.ask("GET", "/v1/farm").told["warnings"]  # nothing of the idle one is lost
        assert told == "the results of l1 on the farm were not downloaded within 1 h 00 m and are deleted"
        assert gone(home, "short-1.0").message == told
        assert not (Path(root) / "out/l1").exists()
        assert not (place / "h/farm/tenants/home/home/pods/short-1.0").exists()


def clocks_of(running: RunningFarm) -> Callable[[float], None]:
    """Returns a function that sets both clocks of a farm to a number of seconds after the present time."""
    now, uptime = running.farm.now(), running.farm.uptime()

    def set_to(seconds: float) -> None:
        running.farm.now, running.farm.uptime = lambda: now + seconds, lambda: uptime + seconds

    return set_to


def place_there(home: Visitor, uri: str, name: str, content: bytes) -> None:
    wanted = PlaceTree(uri=uri, manifest=tree_of({"a": content}), attempt_id=name)
    assert home.ask("POST", "/v1/staging/place", wanted).told["chunks"]
    assert home.ask("POST", "/v1/staging/chunks", framed(content)).status == 204
    assert home.ask("POST", "/v1/staging/place", wanted).told["chunks"] == []


def test_a_pod_whose_controller_stays_away_ends_when_its_lease_is_over(place: Path, tmp_path: Path) -> None:
    with farm(place / "h") as running:
        home = member(running, tmp_path / "home")
        running.tick_loop.close()
        wanted = DeployRequest(orders=(pod_order("alone-1.0", keep_seconds=60),), lease_seconds=1)
        assert home.ask("PUT", "/v1/deployments/alone-1", wanted).status == 204
        running.tick_loop.tick()
    folder = place / "h/farm/tenants/home/home/pods/alone-1.0"
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # the pod holds it until it has ended
    assert "no control node reached the pod within its lease" in (folder / "log").read_text()


def gone(home: Visitor, pod: str) -> PodReport:
    answer = home.ask("POST", "/v1/pods/observe", PodNames(pods=(pod,)))
    sight = decode(answer.body, PodReports).reports[pod]
    assert sight.status == PodStatus.GONE
    return sight


def test_nothing_secret_is_written_in_clear(running: RunningFarm, home: Visitor) -> None:
    written = b"".join(
        path.read_bytes() for path in (running.farm.settings.home / "farm").glob("records.db*")
    )
    assert home.token.encode() not in written
