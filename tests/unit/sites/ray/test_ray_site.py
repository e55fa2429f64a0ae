"""The Ray site without Ray: addresses, its bridge's life, notes, and what a node must have."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contract.test_site_ray import NoDoors

from gridmill.cli.join import read_cpus, read_memory, read_rules
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.naming import read_address
from gridmill.domain.owner_idle import within
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError, UnavailableError
from gridmill.settings import read_settings
from gridmill.sites.ray.bridge import PlacementNote, PlacementNotes
from gridmill.sites.ray.pod_keeper import NodeCapacity, why_unfit, why_unseen
from gridmill.sites.ray.site import _want_answer, make, speaks


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.5",
        ":6379",
        "h:",
        "h:port",
        "h:65536",
        "h:-1",
        "h:٣",
        "http://h:1",
        "a b:1",
        "::1:5",
        "[::1",
        "[::1]x:5",
        "[h]:5",
    ],
)
def test_what_is_no_address_is_said_where_it_stands(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_address(text, place="site lab: address")
    assert caught.value.place == "site lab: address"


def test_addresses_are_read() -> None:
    assert read_address("h:6379") == ("h", 6379)
    assert read_address("[::1]:80") == ("::1", 80)
    assert read_address("h", port=7) == ("h", 7)
    assert read_address("[::1]", port=7) == ("::1", 7)


def a_site(address: str, **settings: str) -> Site:
    return Site(name="lab", kind=SiteKind.RAY, address=address, settings=settings)


@pytest.mark.parametrize(
    ("address", "settings", "place"),
    [
        ("10.0.0.5", {}, "address"),
        ("ray://", {}, "address"),
        ("ray://h", {}, "address"),
        ("127.0.0.1:99999", {}, "address"),
        ("127.0.0.1:1", {"control": ":70000"}, "settings.control"),
        ("127.0.0.1:1", {"control": "h:x"}, "settings.control"),
    ],
)
def test_a_site_with_a_wrong_address_is_refused(
    tmp_path: Path, address: str, settings: dict[str, str], place: str
) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError) as caught:
        make(read_settings({"GRIDMILL_HOME": str(tmp_path)}), a_site(address, **settings), NoDoors())
    assert caught.value.place == f"site lab: {place}"


def with_bridge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Callable[[], object]:
    """A site whose bridge is that program; what opens it, asks for its nodes and closes it."""
    pytest.importorskip("ray")
    monkeypatch.setattr("gridmill.sites.ray.site._want_answer", lambda address: None)
    monkeypatch.setattr("gridmill.sites.ray.site._BRIDGE", ["-c", program])
    return make(read_settings({"GRIDMILL_HOME": str(tmp_path)}), a_site("127.0.0.1:1"), NoDoors())


SILENT = "import sys; sys.stdin.readline(); print('{}', flush=True); sys.stdin.read()"


def test_closing_waits_for_no_answer_and_no_bridge_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = with_bridge(tmp_path, monkeypatch, SILENT)
    told: list[str] = []

    def ask() -> None:
        try:
            site.nodes()
        except UnavailableError as error:
            told.append(error.message)

    asking = threading.Thread(target=ask)
    asking.start()
    while site._bridge is None:
        assert asking.is_alive()
    bridge = site._bridge
    site.close()
    asking.join(120.0)
    assert len(told) == 1
    assert bridge.returncode is not None
    with pytest.raises(UnavailableError, match="closed"):
        site.nodes()
    assert site._bridge is None


def test_a_bridge_that_only_closes_its_output_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = with_bridge(tmp_path, monkeypatch, "import os, time; os.close(1); time.sleep(60)")
    with pytest.raises(UnavailableError, match="ended"):
        site.nodes()
    assert site._bridge is None


def test_notes_of_pods_that_are_long_gone_go(tmp_path: Path) -> None:
    notes = PlacementNotes(tmp_path)
    for name, at, over in (("old", 1.0, True), ("young", 9.0, True), ("lives", 1.0, False)):
        notes.write(name, PlacementNote(node="n", group=name, at=at, over=over))
    notes.remove_ended(5.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lives", "young"]


def an_order() -> PodOrder:
    return PodOrder(
        pod_id="p",
        deployment_id="d",
        type="command",
        secret="",
        home="/h",
        link="",
        capacity=Amounts(cpus=1.0, memory_bytes=4 * GIB),
        keep_seconds=1.0,
        orphan_seconds=1.0,
    )


def test_a_node_that_sees_no_root_or_has_less_memory_says_so(tmp_path: Path) -> None:
    mark = tmp_path / "root" / ".sites" / "mark"
    order = an_order()
    assert f"the storage root {tmp_path / 'root'} does not exist on host" in why_unseen(mark)
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert why_unseen(mark) == ""
    assert why_unfit(order, NodeCapacity(memory_bytes=4 * GIB)) == ""
    assert "has 2 GiB of memory and not the 4 GiB" in why_unfit(order, NodeCapacity(memory_bytes=2 * GIB))
    two = NodeCapacity(memory_bytes=7 * GIB, claimed_bytes=4 * GIB)
    assert "has 7 GiB of memory, 4 GiB of it reserved for other pods, and not the 4 GiB" in why_unfit(
        order, two
    )


@pytest.mark.parametrize(
    ("given", "gpus", "said"),
    [
        ("", 0, ""),
        ("0", 0, "has 0 GPUs and not GPU number 0, which Ray assigned"),
        ("0,1", 2, ""),
        ("1,2", 2, "has 2 GPUs and not GPU number 2"),
        ("3", None, ""),  # another maker's
        ("MIG-e6b7", 1, ""),
    ],
)
def test_gpus_that_a_node_only_claims_are_told(given: str, gpus: int | None, said: str) -> None:
    told = why_unfit(an_order(), NodeCapacity(memory_bytes=8 * GIB, gpus=gpus), given)
    assert (said in told) if said else told == ""


def test_what_cannot_be_given_is_refused() -> None:
    assert read_memory("4GiB", 8 * GIB) == 4 * GIB
    with pytest.raises(InputError, match="this machine has 8 GiB"):
        read_memory("16GiB", 8 * GIB)
    assert (read_cpus(None, 2), read_cpus(2.0, 2)) == (None, 2)
    for cpus in (3.0, 1.5):
        with pytest.raises(InputError, match=rf"--cpus {cpus:g} cannot be lent: this machine has 2 CPUs"):
            read_cpus(cpus, 2)
    with pytest.raises(InputError, match="not FROM-TO"):
        read_rules(False, "5m", "25-3")
    with pytest.raises(InputError, match="--hours needs --idle-only"):
        read_rules(False, "5m", "19-07")
    assert read_rules(True, "5m", "0-24").hours == (0, 0)
    assert all(within((0, 0), hour) for hour in range(24))


def test_another_service_at_the_port_is_told_at_once() -> None:
    """Ray itself would try for a minute, and say nothing of use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            for said in (b"SSH-2.0-OpenSSH_9.2\r\n", bytes(9), bytes([0, 0, 18, 4, 0, 0, 0, 0, 0])):
                with server.accept()[0] as one:
                    one.recv(1)
                    one.sendall(said)
                    one.recv(2**16)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UnavailableError, match="is not a Ray cluster"):
            _want_answer(f"127.0.0.1:{port}")
        assert [speaks("127.0.0.1", port), speaks("127.0.0.1", port)] == [False, True]
        thread.join(120)
