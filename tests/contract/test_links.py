"""The three links pass the suite, and what is special about each."""

import contextlib
import os
import select
import socket
import ssl
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.kit.ports import free_port

from gridmill.codec import encode_message
from gridmill.errors import HomeInUseError, InputError, StorageError, UnavailableError
from gridmill.testing.clock import FakeClock
from gridmill.testing.link_suite import LinkHarness, LinkSuite, hello, log_event
from gridmill.transport import pod_side, spool, tls, unix
from gridmill.transport.certificate import make_certificate
from gridmill.transport.server import PodLinkServer
from gridmill.transport.spool import SpoolFolder

NOW = 1_700_000_000.0


class UnixHarness(LinkHarness):
    def __init__(self, path: Path):
        super().__init__()
        self.path = path

    def make_server(self, on_ready):
        server = PodLinkServer(on_ready)
        server.listen_unix(self.path)
        return server

    def make_pod(self):
        return pod_side.make_unix(str(self.path))

    def say_raw(self, data):
        sock = unix.dial(self.path)
        return _push(sock, data)


class TlsHarness(LinkHarness):
    def __init__(self, folder: Path):
        super().__init__()
        self.certfile, self.keyfile = make_certificate(folder, NOW)
        self.fingerprint = tls.fingerprint_of(self.certfile)
        self.port = free_port()

    def make_server(self, on_ready):
        server = PodLinkServer(on_ready)
        assert server.listen_tls("127.0.0.1", self.port, self.certfile, self.keyfile) == (
            self.port,
            self.fingerprint,
        )
        return server

    def make_pod(self):
        return tls.make(f"127.0.0.1:{self.port}#{self.fingerprint}")

    def say_raw(self, data):
        context = ssl.create_default_context(cafile=str(self.certfile))
        context.check_hostname = False
        sock = context.wrap_socket(socket.create_connection(("127.0.0.1", self.port)))
        return _push(sock, data)


class SpoolHarness(LinkHarness):
    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder

    def make_server(self, on_ready):
        server = PodLinkServer(on_ready)
        server.watch_spool(self.folder)
        return server

    def make_pod(self):
        return spool.make(str(self.folder))

    def say_raw(self, data):
        connection = self.folder / (self.folder / "epoch").read_text() / os.urandom(4).hex()
        beside = connection.with_name(f".{connection.name}")
        for part in (beside, beside / "in", beside / "out"):
            part.mkdir()
        spool.write_whole(beside / "out", "1", data)
        beside.rename(connection)  # whole at once: it is looked at as soon as it is seen


def _push(sock, data):
    """From a thread, because the server may stop reading and close at any byte."""

    def push():
        sock.setblocking(True)
        with contextlib.suppress(OSError):
            sock.sendall(data)

    thread = threading.Thread(target=push)
    thread.start()
    thread.join(10)
    return sock


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "home"


class TestUnix(LinkSuite):
    @pytest.fixture
    def harness(self, folder):
        harness = UnixHarness(folder / "links.sock")
        yield harness
        harness.close()

    def test_only_the_user_can_reach_it(self, harness):
        harness.start()
        assert stat.S_IMODE(harness.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(harness.path.parent.stat().st_mode) == 0o700

    def test_the_file_goes_with_the_server(self, harness):
        harness.start().close()
        assert list(harness.path.parent.iterdir()) == []

    def test_a_file_left_by_a_killed_server_is_replaced(self, harness):
        harness.path.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(harness.path))
        harness.start()
        harness.greet("p-1.0")

    def test_a_server_that_answers_is_not_replaced(self, harness):
        harness.start()
        with pytest.raises(HomeInUseError, match=r"links\.sock: a control node runs in this home"):
            unix.listen(harness.path)
        harness.greet("p-1.0")

    def test_the_next_servers_file_is_left_alone(self, harness):
        first = harness.start()
        harness.path.unlink()
        harness.start()
        first.close()
        harness.greet("p-1.0")

    def test_another_file_is_not_removed(self, harness):
        harness.path.parent.mkdir()
        harness.path.write_text("mine")
        with pytest.raises(StorageError, match="is not a socket"):
            unix.listen(harness.path)
        assert harness.path.read_text() == "mine"

    def test_a_control_loop_that_is_behind_lets_pods_wait(self, folder):
        ready = threading.Event()
        server = PodLinkServer(ready.set, receive_limit_bytes=2**20)
        server.listen_unix(folder / "links.sock")
        link = pod_side.make_unix(str(folder / "links.sock"))
        assert link.connect()
        said = [log_event(number, "x" * 2**20) for number in range(8)]
        assert link.send([hello("p-1.0"), *said])
        while select.select([], [link.fileno()], [], 0.2)[1]:
            assert link.flush()
        assert link.pending()
        came = []
        while len(came) < 9:
            came += server.receive()
            link.flush()
            ready.wait(0.002)
            ready.clear()
        assert [got.message for got in came] == [hello("p-1.0"), *said]
        link.close()
        server.close()

    def test_strangers_are_not_trusted(self):
        ours, theirs = socket.socketpair()
        assert unix.peer_uid(ours) == os.geteuid()
        assert unix.is_trusted(os.geteuid())
        assert unix.is_trusted(0)
        assert not unix.is_trusted(os.geteuid() + 1)
        ours.close()
        theirs.close()


class TestUnixWithALongPath(LinkSuite):
    @pytest.fixture
    def harness(self, folder):
        harness = UnixHarness(folder / ("long" * 30) / ("longer" * 20) / "links.sock")
        yield harness
        harness.close()


class TestTls(LinkSuite):
    @pytest.fixture
    def harness(self, folder):
        harness = TlsHarness(folder)
        yield harness
        harness.close()

    def test_another_certificate_is_refused(self, harness, tmp_path):
        harness.start()
        other, _ = make_certificate(tmp_path / "other", NOW)
        link = tls.make(f"127.0.0.1:{harness.port}#{tls.fingerprint_of(other)}")
        assert not link.connect()
        assert not link.connect()
        harness.greet("p-1.0")
        assert [got.message for got in harness.came] == [hello("p-1.0")]

    def test_one_who_speaks_no_tls_is_closed(self, harness):
        harness.start()
        with socket.create_connection(("127.0.0.1", harness.port), timeout=120) as sock:
            sock.sendall(encode_message(hello("p-1.0")) + b"\n" * 100)
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(4096):
                    pass
        harness.greet("p-1.1")
        assert [got.message for got in harness.came] == [hello("p-1.1")]

    def test_one_who_answers_nothing_holds_up_a_pod_only_briefly(self):
        clock = FakeClock()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            link = tls.make(f"127.0.0.1:{silent.getsockname()[1]}#{'0' * 64}", clock.monotonic)
            assert not link.connect()
            first, _ = silent.accept()
            clock.advance(11)
            assert not link.connect()  # gives the attempt up
            with first:
                first.settimeout(120)
                while first.recv(4096):
                    pass

    def test_the_key_is_the_users_alone_and_is_kept(self, harness, folder):
        assert stat.S_IMODE(harness.keyfile.stat().st_mode) == 0o600
        make_certificate(folder, NOW + 1e6)
        assert tls.fingerprint_of(harness.certfile) == harness.fingerprint

    @pytest.mark.parametrize(
        "address", ["", "host:1", "host#" + "0" * 64, ":1#" + "0" * 64, "host:1#12", "host:x#" + "0" * 64]
    )
    def test_bad_addresses_are_explained(self, address):
        with pytest.raises(InputError, match="HOST:PORT#FINGERPRINT"):
            tls.make(address)

    def test_addresses(self):
        assert tls.parse_address("[::1]:7#" + "AB:" * 31 + "AB") == ("::1", 7, "ab" * 32)

    def test_bad_certificates_and_ports_are_explained(self, harness, tmp_path):
        server = harness.start()
        (tmp_path / "x").write_text("x")
        with pytest.raises(InputError, match="certificate"):
            server.listen_tls("127.0.0.1", 0, tmp_path / "x", tmp_path / "x")
        with pytest.raises(InputError, match="not a certificate"):
            tls.fingerprint_of(tmp_path / "x")
        with pytest.raises(UnavailableError, match="cannot listen"):
            server.listen_tls("127.0.0.1", harness.port, harness.certfile, harness.keyfile)


class TestSpool(LinkSuite):
    @pytest.fixture
    def harness(self, folder):
        harness = SpoolHarness(folder)
        yield harness
        harness.close()

    def test_what_a_killed_pod_left_half_written_is_ignored(self, harness):
        harness.start()
        end, channel = harness.greet("p-1.0")
        end.link.send([log_event(1, "whole")])
        (connection,) = _connections(harness.folder)
        (connection / "out" / ".000000000003").write_bytes(encode_message(hello("half"))[:20])
        harness.wait(lambda: len(harness.by(channel)) == 2, "the whole one has come")
        assert harness.by(channel)[1:] == [log_event(1, "whole")]

    def test_a_killed_control_nodes_epoch_ends_with_the_next_ones(self, harness):
        """The first is not closed, as if it had been killed."""
        first = harness.start()
        end, _ = harness.greet("p-1.0")
        harness.start()
        harness.wait(lambda: end.ended, "the pod sees the end")
        harness.connect(end)
        end.came.clear()
        harness.welcome(end, "p-1.0")
        first.close()

    def test_nothing_is_left_of_an_ended_connection(self, harness):
        harness.start()
        end, channel = harness.greet("p-1.0")
        end.link.close()
        harness.wait(lambda: None in harness.by(channel), "the end is seen")
        assert _connections(harness.folder) == []

    def test_only_the_user_can_enter(self, harness):
        harness.folder.mkdir(mode=0o755)
        harness.start()
        assert stat.S_IMODE(harness.folder.stat().st_mode) == 0o700

    def test_a_place_that_cannot_be_a_folder_is_explained(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError, match="cannot be used as a spool"):
            SpoolFolder(tmp_path / "file", FakeClock().monotonic)

    def test_polling_slows_down_with_age(self, folder):
        clock = FakeClock()
        watched = SpoolFolder(folder, clock.monotonic)
        polls = 0
        while clock.monotonic() < 60:
            clock.advance(max(0.0, watched.due_seconds()))
            watched.poll()
            polls += 1
        assert 115 < polls < 150
        assert 0.4 < watched.due_seconds() <= 0.5
        watched.stir()
        assert watched.due_seconds() < 0.006


def _connections(folder):
    return [
        path for path in (folder / (folder / "epoch").read_text()).iterdir() if not path.name.startswith(".")
    ]


def test_a_pod_spares_what_a_unix_link_does_not_need():
    heavy = "('ssl', 'asyncio', 'cryptography', 'pydantic')"
    code = f"import sys, gridmill.transport.pod_side; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_socket_takes_at_most_so_many_connections_and_silent_ones_go_first(folder: Path) -> None:
    with contextlib.closing(PodLinkServer(lambda: None)) as server:
        server.listen_unix(folder / "links.sock", most=3)
        opened = [unix.dial(folder / "links.sock") for _ in range(9)]
        try:
            for one in opened:
                one.setblocking(True)
                one.settimeout(60.0)
            for one in opened[:6]:
                assert one.recv(1) == b""  # closed, for later ones came
            for one in opened[6:]:
                one.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    one.recv(1)
        finally:
            for one in opened:
                one.close()
