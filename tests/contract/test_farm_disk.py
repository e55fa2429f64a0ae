"""A farm on a small disk: a full disk of one tenant is not another's, and nothing is to be done by hand."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.test_farm_api import attempt, framed, hash_of, hear, pod_order
from tests.contract.test_farm_api import tree_of as small_tree_of
from tests.kit.farms import Answer, Listener, Visitor, farm, member
from tests.kit.small_disks import fill, free_bytes, small_disk

from gridmill.codec import encode_passed
from gridmill.domain.confinement import Isolation
from gridmill.domain.farm_protocol import DeployRequest, FileEntry, Manifest, PlaceTree, PodNames
from gridmill.domain.pod_protocol import Events, Hello, Welcome
from gridmill.farm.deployment import TenantDeployment, TenantDeploymentState
from gridmill.farm.disk import TenantLimits
from gridmill.farm.main import RunningFarm

MIB = 2**20
CHUNK_BYTES = MIB


@pytest.fixture
def disk() -> Iterator[Path]:
    with small_disk(40 * MIB) as place:
        yield place


@pytest.fixture
def running(disk: Path) -> Iterator[RunningFarm]:
    with farm(disk / "h", quota_bytes=50 * 2**30) as one:
        yield one


def apart(running: RunningFarm) -> RunningFarm:
    """With a Unix user for each tenant, also where others may not start this Python: no job of them runs."""
    running.farm.one_user, running.farm.isolation = "", Isolation(groups="v1", namespaces=True)
    return running


def random_files(count: int, seed: str) -> dict[str, bytes]:
    """Files of a megabyte that no other seed has."""
    return {f"{seed}/{at}": hashlib.shake_128(f"{seed}{at}".encode()).digest(MIB) for at in range(count)}


def tree_of(files: dict[str, bytes]) -> Manifest:
    return replace(small_tree_of(files), chunk_bytes=CHUNK_BYTES)


def place(home: Visitor, name: str, manifest: Manifest) -> Answer:
    wanted = PlaceTree(uri=f"in/{name}", manifest=manifest, attempt_id=name)
    return home.ask("POST", "/v1/staging/place", wanted)


def carry(home: Visitor, name: str, files: dict[str, bytes], at_once: int = 1) -> Answer:
    """As far as the farm takes it; the answer to what it did not take, or to the last one."""
    manifest = tree_of(files)
    answer = place(home, name, manifest)
    if answer.status != 200:
        return answer
    lacking = set(answer.told["chunks"])
    contents = [content for content in files.values() if hash_of(content) in lacking]
    for first in range(0, len(contents), at_once):
        answer = home.ask("POST", "/v1/staging/chunks", framed(*contents[first : first + at_once]))
        if answer.status != 204:
            return answer
    return place(home, name, manifest)


def test_an_input_larger_than_the_disk_is_refused_before_its_first_byte(
    running: RunningFarm, disk: Path, tmp_path: Path
) -> None:
    home = member(running, tmp_path / "a", "a")
    before = free_bytes(disk)
    hashes = tuple(hash_of(str(at).encode()) for at in range(50))
    large = FileEntry(path="large", size_bytes=50 * MIB, chunks=hashes)
    answer = place(home, "job", Manifest(files=(large,), chunk_bytes=CHUNK_BYTES))
    assert answer.status == 409 or answer.status == 507, answer
    assert (
        "do not fit on the farm's disk, which has 40 MiB, of which 2 MiB stay free" in answer.told["message"]
    )
    assert before - free_bytes(disk) < MIB


def test_chunks_that_nothing_uses_go_for_another_tenants_job(
    running: RunningFarm, disk: Path, tmp_path: Path
) -> None:
    apart(running)
    greedy, neighbour = member(running, tmp_path / "a", "a"), member(running, tmp_path / "b", "b")
    assert carry(greedy, "a1", random_files(30, "a")).told["chunks"] == []
    assert greedy.ask("DELETE", "/v1/staging/attempts/a1").status == 204
    assert free_bytes(disk) < 10 * MIB  # its chunks stay, as they may be of use again
    assert carry(neighbour, "b1", random_files(20, "b")).told["chunks"] == []
    assert free_bytes(disk) >= 2 * MIB
    assert running.farm.disk.room.evicted_bytes >= 10 * MIB


@pytest.mark.long
def test_inodes_of_chunks_that_nothing_uses_go_for_another_tenants_job(tmp_path: Path) -> None:
    with small_disk(40 * MIB, inodes=3300) as disk, farm(disk / "h") as running:
        apart(running)
        greedy, neighbour = member(running, tmp_path / "a", "a"), member(running, tmp_path / "b", "b")
        many = {f"{at}": f"a{at}".encode() for at in range(1500)}
        others = {f"{at}": f"b{at}".encode() for at in range(1000)}
        answer = carry(greedy, "a1", many, at_once=500)
        assert answer.told == {"chunks": []}, answer.told
        answer = place(neighbour, "b1", tree_of(others))
        assert answer.status == 503
        assert "in 1,000 files wait for room" in answer.told["message"]
        assert greedy.ask("DELETE", "/v1/staging/attempts/a1").status == 204
        answer = carry(neighbour, "b1", others, at_once=500)
        if answer.status == 503:  # here links need inodes too: it was found out on the way
            assert "data waits for room: the farm's disk has" in answer.told["message"]
            answer = carry(neighbour, "b1", others, at_once=500)
        assert answer.told == {"chunks": []}


@pytest.mark.long
def test_what_is_in_use_stays_and_the_other_waits_with_the_reason(
    running: RunningFarm, disk: Path, tmp_path: Path
) -> None:
    apart(running)
    first, second = member(running, tmp_path / "a", "a"), member(running, tmp_path / "b", "b")
    assert carry(first, "a1", random_files(25, "a")).told["chunks"] == []
    answer = carry(second, "b1", random_files(20, "b"))
    assert answer.status == 503, answer
    told = answer.told["message"]
    assert told.startswith("20 MiB in 20 files wait for room: the farm's disk has"), told
    assert "its reserve is 2 MiB" in told, told
    assert free_bytes(disk) > 8 * MIB  # nothing of it came
    assert first.ask("DELETE", "/v1/staging/attempts/a1").status == 204
    assert carry(second, "b1", random_files(20, "b")).told["chunks"] == []


def test_transfers_that_begin_together_do_not_stop_each_other_half_way(
    running: RunningFarm, tmp_path: Path
) -> None:
    apart(running)
    first, second = member(running, tmp_path / "a", "a"), member(running, tmp_path / "b", "b")
    mine, others = random_files(25, "a"), random_files(25, "b")
    assert place(first, "a1", tree_of(mine)).status == 200
    answer = place(second, "b1", tree_of(others))
    assert answer.status == 503
    assert "are reserved for running transfers" in answer.told["message"]
    assert carry(first, "a1", mine).told["chunks"] == []


def test_a_short_disk_holds_deployments_back_with_the_reason_and_they_start_once_there_is_room(
    running: RunningFarm, disk: Path, tmp_path: Path
) -> None:
    home = member(running, tmp_path / "a", "a")
    home.ask("GET", "/v1/farm")
    listener = Listener(home)
    ballast = fill(disk, left_bytes=MIB)
    wanted = DeployRequest(orders=(pod_order("d-1.0"),), lease_seconds=600)
    assert home.ask("PUT", "/v1/deployments/d-1", wanted).status == 204
    running.tick_loop.tick()
    told = home.ask("POST", "/v1/pods/observe", PodNames(pods=("d-1.0",))).told["reports"]["d-1.0"]
    assert told["status"] == "queued"
    assert "waits for room on the farm; the farm's disk has" in told["message"]
    assert "its reserve is 2 MiB; tenant a uses" in told["message"]
    warnings = home.ask("GET", "/v1/farm").told["warnings"]
    assert any("its reserve is 2 MiB" in one for one in warnings)
    nothing_new = place(home, "job", tree_of({}))
    assert nothing_new.told["message"].startswith("a new transfer waits for room: the farm's disk has")
    ballast.unlink()
    hear(listener, Hello)
    assert home.ask("POST", "/v1/pods/end", PodNames(pods=("d-1.0",))).status == 204


def test_caches_of_a_tenant_that_runs_nothing_go_when_the_disk_is_short(
    running: RunningFarm, disk: Path, tmp_path: Path
) -> None:
    home = member(running, tmp_path / "a", "a")
    home.ask("GET", "/v1/farm")
    (sandbox,) = running.farm.sandboxes.values()
    cache = sandbox.settings.home / "cache" / "environments"
    cache.mkdir(parents=True)
    (cache / "large").write_bytes(b"1" * 4 * MIB)
    fill(disk, left_bytes=MIB)
    running.tick_loop.tick()
    assert not cache.exists()
    assert free_bytes(disk) >= 4 * MIB


def test_a_tenant_above_its_limit_is_held_and_its_neighbour_is_not(disk: Path, tmp_path: Path) -> None:
    limits = TenantLimits(size_bytes=4 * MIB, files=1000)
    with farm(disk / "h", quota_bytes=2**30, limits=limits) as running:
        apart(running)
        greedy, neighbour = member(running, tmp_path / "a", "a"), member(running, tmp_path / "b", "b")
        root = Path(greedy.ask("GET", "/v1/farm").told["root"])
        (root / "left").write_bytes(os.urandom(6 * MIB))
        disk_of_farm = running.farm.disk
        while not disk_of_farm.why_over("a"):
            disk_of_farm.measure(1000)
        for name, home in (("a", greedy), ("b", neighbour)):
            wanted = DeployRequest(orders=(pod_order(f"{name}-1.0"),), lease_seconds=600)
            assert home.ask("PUT", f"/v1/deployments/{name}-1", wanted).status == 204
        running.tick_loop.tick()
        states = {one.tenant: one.state for one in running.farm.records.all(TenantDeployment)}
        assert states["a"] == TenantDeploymentState.WAITING
        assert states["b"] != TenantDeploymentState.WAITING
        told = greedy.ask("POST", "/v1/pods/observe", PodNames(pods=("a-1.0",))).told["reports"]["a-1.0"]
        assert "tenant a uses 6 MiB of the farm's disk; its limit is 4 MiB" in told["message"]
        assert "--tenant-disk" in told["message"]
        assert neighbour.ask("POST", "/v1/pods/end", PodNames(pods=("b-1.0",))).status == 204


@pytest.mark.long
def test_files_without_content_count_by_their_inodes(disk: Path, tmp_path: Path) -> None:
    with farm(disk / "h", limits=TenantLimits(size_bytes=0, files=50)) as running:
        home = member(running, tmp_path / "a", "a")
        root = Path(home.ask("GET", "/v1/farm").told["root"])
        for number in range(60):
            (root / str(number)).touch()
        while not running.farm.disk.why_over("a"):
            running.farm.disk.measure(1000)
        assert "its limit is 50 (`gridmill up --light --tenant-files`" in running.farm.disk.why_over("a")


@pytest.mark.long
def test_a_job_that_writes_more_than_its_tenant_may_is_ended_and_the_next_one_runs(
    disk: Path, tmp_path: Path
) -> None:
    with farm(disk / "h", limits=TenantLimits(size_bytes=10 * MIB)) as running:
        home = member(running, tmp_path / "a", "a")
        wanted = DeployRequest(orders=(pod_order("w-1.0"),), lease_seconds=600)
        listener = Listener(home)
        assert home.ask("PUT", "/v1/deployments/w-1", wanted).status == 204
        channel, _ = hear(listener, Hello)
        root = home.ask("GET", "/v1/farm").told["root"]
        path = f"/v1/relay/{listener.name}"
        write = "dd if=/dev/urandom of=$GRIDMILL_OUTPUT/large bs=1M count=20; sleep 60"
        orders = [Welcome(acknowledged=0), attempt("a1", write, root)]
        lines = b"\n".join(encode_passed(channel, one) for one in orders)
        assert home.ask("POST", path, lines, Sequence="1").status == 204
        ended = outcome_of(listener)
        assert (ended["state"], ended["cause"]) == ("failed", "disk"), ended
        assert "its limit is 10 MiB" in ended["message"], ended
        assert "--tenant-disk" in ended["hint"]
        assert not (Path(root) / "out/a1/large").exists()
        again = encode_passed(channel, attempt("a2", "echo well > $GRIDMILL_OUTPUT/file", root))
        assert home.ask("POST", path, again, Sequence="2").status == 204
        assert outcome_of(listener)["state"] == "succeeded"
        assert home.ask("POST", "/v1/pods/end", PodNames(pods=("w-1.0",))).status == 204


def outcome_of(listener: Listener) -> dict[str, str]:
    while True:
        _, message = hear(listener, Events)
        assert isinstance(message, Events)
        for event in message.events:
            if event.type == "ended":
                return dict(event.body["outcome"])
