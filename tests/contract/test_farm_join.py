"""Whoever joins a farm may not hear its answer: then it asks again, and nobody else can."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.farms import farm, open_folder, visitor

from gridmill.codec import decode
from gridmill.domain.farm_protocol import JoinRequest, JoinResponse
from gridmill.errors import AwayError
from gridmill.farm.join import invite
from gridmill.farm.main import RunningFarm
from gridmill.farm.tenant import Tenant
from gridmill.sites.farm.client import member
from gridmill.sites.farm.credentials import keeping
from gridmill.sites.farm.join import become_tenant
from gridmill.version import __version__


@pytest.fixture
def running() -> Iterator[RunningFarm]:
    with open_folder() as folder, farm(folder / "farm") as made:
        yield made


def secret_of(running: RunningFarm, name: str = "") -> str:
    return invite(running.farm.records, running.farm.now(), name)


def port_of(running: RunningFarm) -> int:
    return int(running.server.address.rpartition(":")[2])


@contextmanager
def deaf(port: int, is_deaf: Callable[[], bool]) -> Iterator[int]:
    """The port of a line to that one, on which nothing comes back any more once it is deaf."""

    def pump(tenant: socket.socket, target: socket.socket, *, back: bool) -> None:
        with suppress(OSError):
            while (data := tenant.recv(65536)) and not (back and is_deaf()):
                target.sendall(data)
        for end in (tenant, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def take() -> None:
        with suppress(OSError):  # closed
            while True:
                near, far = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
                for ends, back in (((near, far), False), ((far, near), True)):
                    threading.Thread(target=pump, args=ends, kwargs={"back": back}, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=take, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_home_that_did_not_hear_the_answer_uses_its_line_again(
    running: RunningFarm, tmp_path: Path
) -> None:
    line = f"{running.farm.authority.fingerprint}:{secret_of(running)}"
    with (
        deaf(port_of(running), lambda: bool(running.farm.records.all(Tenant))) as port,
        pytest.raises(AwayError),
    ):
        become_tenant(tmp_path, "far", f"127.0.0.1:{port}", line)
    assert not keeping(tmp_path, "far").is_kept
    become_tenant(tmp_path, "far", f"127.0.0.1:{port_of(running)}", line)
    controller = member(keeping(tmp_path, "far"))
    assert controller.status().version == __version__
    controller.close()
    assert [path.name for path in (tmp_path / "clusters").iterdir()] == ["far"]


def test_the_same_secret_holds_for_the_same_key_alone(running: RunningFarm, tmp_path: Path) -> None:
    home, secret = visitor(running, tmp_path / "home"), secret_of(running)
    wanted = JoinRequest(tenant="home", secret=secret, request=home.request("home"), version=__version__)
    first, again = (decode(home.ask("POST", "/v1/join", wanted).body, JoinResponse) for _ in range(2))
    for joined, status in ((first, 401), (again, 200)):
        (home.folder / "crt").write_text(joined.certificate)
        known = replace(home, token=joined.token, certified=True)
        assert known.ask("GET", "/v1/farm").status == status
    thief = visitor(running, tmp_path / "thief")
    assert thief.join(secret, "home").status == 422
    assert thief.join(secret, "other").status == 422
    assert home.ask("POST", "/v1/join", replace(wanted, tenant="other")).status == 422
    assert thief.join(secret_of(running, "home"), "home").status == 200  # its owner has rotated it
    assert home.ask("POST", "/v1/join", wanted).status == 422
