"""Calls between the clients of a home and its control node: who is here, what ends with whom, and when it
ends."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.pod_protocol import event_id
from gridmill.domain.states import RunState
from gridmill.errors import InputError, NotFoundError, UnavailableError, UnreachedError
from gridmill.ports.usecases import use_case
from gridmill.rpc import server
from gridmill.rpc.client import SOCKET, ClientLink, ask_to_end, connect_to, differences
from gridmill.rpc.protocol import (
    REQUEST_BYTES,
    BrokenFrameError,
    Hello,
    peer_pid,
    receive_frame,
    send_frame,
)
from gridmill.settings import as_variables, chosen_variables, read_settings
from gridmill.testing.fake_grid import Act, FakeGrid
from gridmill.testing.local_calls import ServedGrid
from gridmill.version import __version__

DEMO = Pipeline(name="demo", jobs=(Job(name="first", command=CommandSpec(run="true")),))
HELLO = Hello(command="gridmill run demo.yaml", environment={"TZ": "Etc/here"})


@pytest.fixture
def fake() -> FakeGrid:
    return FakeGrid(acts={"first": Act.HANG})


@pytest.fixture
def served(fake: FakeGrid, tmp_path: Path) -> Iterator[ServedGrid]:
    it = ServedGrid(fake, tmp_path, stays=False)
    yield it
    it.stop()


def dial(home: Path, hello: Hello = HELLO, warn: Callable[[str], None] = print) -> ClientLink:
    return connect_to(home / SOCKET, hello, warn)


def keeping(served: ServedGrid) -> threading.Thread:
    """What ends a control node when nobody is here."""
    thread = threading.Thread(target=served.attendance.keep, args=(lambda: False,))
    thread.start()
    return thread


def test_a_run_that_its_client_waits_for_ends_with_it(
    fake: FakeGrid, served: ServedGrid, tmp_path: Path
) -> None:
    first, second = dial(tmp_path), dial(tmp_path)
    mine = first.grid(attend=True).start_run(DEMO).run.id
    other = second.grid(attend=True).start_run(replace(DEMO, name="other")).run.id
    loose = first.grid().start_run(replace(DEMO, name="loose")).run.id
    assert served.runs.environments[mine] == {"TZ": "Etc/here"}
    assert {view.runs for view in served.attendance.views()} == {(mine,), (other,)}
    keeper = keeping(served)
    first._sign.close()  # as by SIGKILL
    while fake.run(mine).run.state != RunState.STOPPED:
        assert keeper.is_alive()
    assert [fake.run(run).run.state for run in (other, loose)] == [RunState.ACTIVE] * 2
    fake.stop_run(other)
    leaving = threading.Thread(target=second.close)
    leaving.start()
    keeper.join(30)
    assert not keeper.is_alive(), "it ends with its last client"
    assert leaving.is_alive(), "which waits for that"
    served.stop()
    leaving.join(30)
    assert not leaving.is_alive()


def test_a_client_that_goes_well_is_waited_for_to_no_purpose_only_where_others_are_here(
    served: ServedGrid, tmp_path: Path
) -> None:
    first, second = dial(tmp_path), dial(tmp_path)
    first.close()  # at once: the control node stays for the second
    last = threading.Thread(target=second.close)
    last.start()
    third = dial(tmp_path)  # it comes while the second waits for the end, and the control node stays
    last.join(30)
    assert not last.is_alive()
    assert third.grid().runs().items == ()
    assert len(served.attendance.views()) == 1


def test_whom_the_end_meets_asks_the_next_one(served: ServedGrid, tmp_path: Path) -> None:
    link = dial(tmp_path)
    assert link.grid().runs().items == ()
    served.attendance.end()
    with pytest.raises(UnreachedError):
        link.grid().start_run(DEMO)
    with pytest.raises(UnreachedError):
        dial(tmp_path)
    served.stop()
    assert link.wait_for_end(10)
    assert link.has_ended()
    link.close()


def test_a_call_under_way_is_finished_before_the_end(
    fake: FakeGrid, served: ServedGrid, tmp_path: Path
) -> None:
    run = fake.start_run(DEMO).run.id
    link, found = dial(tmp_path), list[object]()
    waiting = threading.Thread(
        target=lambda: found.append(link.grid().events(run, after=event_id(99), wait_seconds=0.3))
    )
    waiting.start()
    while not served.attendance._calls:
        assert waiting.is_alive()
    served.attendance.end()
    waiting.join()
    assert found == [()]


def test_runs_of_a_client_that_is_back_are_its_own_again(
    fake: FakeGrid, served: ServedGrid, tmp_path: Path
) -> None:
    run = fake.start_run(DEMO).run.id
    link = dial(tmp_path, replace(HELLO, attends=(run,)))
    assert served.runs.environments[run] == HELLO.environment
    assert [view.runs for view in served.attendance.views()] == [(run,)]
    fake.stop_run(run)
    assert [view.runs for view in served.attendance.views()] == [()], "it has ended"
    link._sign.close()


def test_who_starts_it_is_waited_for(served: ServedGrid) -> None:
    release = served.attendance.hold()
    keeper = keeping(served)
    keeper.join(0.2)
    assert keeper.is_alive()
    release()
    keeper.join(30)
    assert not keeper.is_alive()


def test_a_client_does_not_wait_for_a_control_node_that_stays_for_rented_machines(
    served: ServedGrid, tmp_path: Path
) -> None:
    before, after = dial(tmp_path), dial(tmp_path)
    keeper = keeping(served)
    release = served.attendance.stay()
    before.close()
    after.close()  # the last one; without `stay`, it waits until the process has ended
    assert keeper.is_alive()
    assert served.attendance.views() == ()
    release()
    keeper.join(30)
    assert not keeper.is_alive()


def test_a_client_that_waits_for_the_end_leaves_when_the_control_node_begins_to_stay(
    served: ServedGrid, tmp_path: Path
) -> None:
    link = dial(tmp_path)
    leaving = threading.Thread(target=link.close)
    leaving.start()
    while served.attendance.views():
        assert leaving.is_alive()
    served.attendance.stay()
    leaving.join(30)
    assert not leaving.is_alive()


def test_one_that_comes_to_stay_asks_for_way(served: ServedGrid, tmp_path: Path) -> None:
    ask_to_end(dial(tmp_path))
    assert served.ended_for_server


def test_warnings_reach_clients(served: ServedGrid, tmp_path: Path) -> None:
    said: list[str] = []
    link = dial(tmp_path, warn=said.append)
    while not said:  # it is told once it is welcome
        served.attendance.warn_clients("the disk is full")
        link.grid().runs()
    assert set(said) == {"the disk is full"}


def test_errors_arrive_as_what_they_are(served: ServedGrid, tmp_path: Path) -> None:
    grid = dial(tmp_path).grid()
    with pytest.raises(NotFoundError, match="none-1"):
        grid.run("none-1")
    with pytest.raises(InputError, match="unknown use case"):
        use_case("close")
    with pytest.raises(InputError, match="unknown use case"):
        use_case("_private")


def test_a_bundle_goes_as_it_is(fake: FakeGrid, served: ServedGrid, tmp_path: Path) -> None:
    grid = dial(tmp_path).grid()
    grid.put_bundle("ab" * 32, bytes(range(256)))
    assert fake._bundles["ab" * 32] == bytes(range(256))


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1\xff\xff\xff\xff", b"\0\0\0\1\0\0\0\2no", b""]
)
def test_what_is_no_client_is_turned_away(served: ServedGrid, tmp_path: Path, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(tmp_path / SOCKET))
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(30)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    with pytest.raises(UnreachedError):
        connect_to(tmp_path / SOCKET, Hello(client="of another control node"), print)
    assert dial(tmp_path).grid().runs().items == ()
    assert (tmp_path / SOCKET).stat().st_mode & 0o777 == 0o600


def test_a_frame_that_ends_early_or_is_too_large_is_broken() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            send_frame(ours, [b"one", b"", b"three"])
            assert receive_frame(theirs) == [b"one", b"", b"three"]
            send_frame(ours, [b"x" * 100])
            with pytest.raises(BrokenFrameError):
                receive_frame(theirs, 99)
        theirs.recv(100)  # what is left of the large one, and the half of a number
        assert receive_frame(theirs, REQUEST_BYTES) is None
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(b"\0\0")
        ours.close()
        with pytest.raises(BrokenFrameError):
            receive_frame(theirs)


def test_an_answer_that_does_not_come_is_not_known(
    served: ServedGrid, tmp_path: Path, fake: FakeGrid
) -> None:
    run = fake.start_run(DEMO).run.id
    link, failed = dial(tmp_path), list[Exception]()

    def wait() -> None:
        try:
            link.grid().events(run, after=event_id(99), wait_seconds=1)
        except UnavailableError as error:
            failed.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not served.attendance._calls:
        assert waiting.is_alive()
    served._server.cut()  # as by SIGKILL
    waiting.join(30)
    assert not isinstance(failed[0], UnreachedError)
    fake.stop_run(run)


def test_a_child_that_a_client_forked_does_not_keep_it_here(served: ServedGrid, tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from gridmill.rpc.client import connect_to\n"
        "from gridmill.rpc.protocol import Hello\n"
        "link = connect_to(Path(sys.argv[1]), Hello(), print)\n"
        "if os.fork() == 0: time.sleep(600)\n"
        "print('forked', flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / SOCKET)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as client:
        assert client.stdout is not None
        client.stdout.readline()
        assert [view.pid for view in served.attendance.views()] == [client.pid]
        client.kill()
        client.wait()
        keeper = keeping(served)
        keeper.join(30)
        os.killpg(client.pid, 9)
        assert not keeper.is_alive()


def test_a_client_that_ends_before_it_is_looked_at_is_gone_whoever_holds_its_connection(
    served: ServedGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_ended, looked = threading.Event(), threading.Event()

    def slow_pid(sock: socket.socket) -> int:
        pid = peer_pid(sock)
        assert has_ended.wait(30)
        looked.set()
        return pid

    monkeypatch.setattr(server, "peer_pid", slow_pid)
    script = (
        "import os, socket, sys, time\n"
        "from gridmill.rpc.protocol import send_frame\n"
        "from gridmill.rpc.protocol import Hello\n"
        "from gridmill.codec import encode\n"
        "sock = socket.socket(socket.AF_UNIX)\n"
        "sock.connect(sys.argv[1])\n"
        "send_frame(sock, [encode(Hello())])\n"
        "if os.fork() == 0: time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / SOCKET)]
    with subprocess.Popen(command, start_new_session=True) as client:
        client.wait()
        has_ended.set()
        assert looked.wait(30)
        keeper = keeping(served)
        keeper.join(30)
        os.killpg(client.pid, 9)
        assert not keeper.is_alive()


def test_a_child_that_was_forked_is_a_client_of_its_own(served: ServedGrid, tmp_path: Path) -> None:
    script = (
        "import os, sys, gridmill\n"
        "from gridmill import CommandSpec, Job, Pipeline\n"
        "demo = Pipeline(name='demo', jobs=(Job(name='first', command=CommandSpec(run='true')),))\n"
        "with gridmill.connect(sys.argv[1], embed=False) as client:\n"
        "    run = client.attend(lambda grid: grid.start_run(demo)).run.id\n"
        "    if child := os.fork():\n"
        "        assert os.waitpid(child, 0)[1] == 0\n"
        "    else:\n"
        "        assert client.list_runs()\n"
        "        client.close()\n"
        "        os._exit(0)\n"
        "    assert client.status(run).run.state == 'active'\n"
        "    client.stop(run)\n"
        "os._exit(0)\n"
    )
    keep = threading.Thread(target=served.attendance.keep, args=(served.ended.is_set,))
    served.attendance.stays = True
    keep.start()
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    served.ended.set()
    served.attendance.wake()
    keep.join(30)


def test_settings_as_variables_are_read_as_the_same(tmp_path: Path) -> None:
    given = {
        "GRIDMILL_HOME": str(tmp_path),
        "GRIDMILL_ROOT": str(tmp_path / "root"),
        "GRIDMILL_OBSERVE": "0.2",
        "GRIDMILL_HISTORY": "400d",
        "GRIDMILL_MEMORY": "1.5GiB",
        "GRIDMILL_CPUS": "2.5",
        "GRIDMILL_BUCKET_HOSTS": "a, b",
        "GRIDMILL_CGROUPS": "0",
        "GRIDMILL_GRACE": "",
    }
    given.pop("GRIDMILL_GRACE")
    settings = read_settings(given)
    assert read_settings({"GRIDMILL_HOME": str(tmp_path), **as_variables(settings)}) == settings
    plain = read_settings({"GRIDMILL_HOME": str(tmp_path)})
    assert read_settings({"GRIDMILL_HOME": str(tmp_path), **as_variables(plain)}) == plain
    assert set(chosen_variables({**given, "GRIDMILL_TOKEN": "t", "PATH": "/"})) == given.keys() - {
        "GRIDMILL_HOME"
    }


def test_settings_that_differ_are_told_and_which_ones_count(tmp_path: Path) -> None:
    ours = read_settings({"GRIDMILL_HOME": str(tmp_path), "GRIDMILL_CPUS": "4"})
    same = Hello(version=__version__, python=sys.prefix, settings=as_variables(ours))
    assert differences(ours, same, stays=False) == ()
    other = replace(
        same, settings={**as_variables(ours), "GRIDMILL_CPUS": "2", "GRIDMILL_STORE": "postgresql://u:p@h/d"}
    )
    told = differences(ours, other, stays=False)
    assert [line.split()[0] for line in told] == ["GRIDMILL_STORE", "GRIDMILL_CPUS"]
    assert told[1].startswith("GRIDMILL_CPUS is 2 here and 4 at the running control node")
    assert "u:p" not in told[0]
    assert differences(ours, other, stays=True) == (), "`gridmill up` was told what counts"
    assert differences(ours, replace(other, chosen=("GRIDMILL_CPUS",)), stays=True) == told[1:]
    assert "Python" in differences(ours, replace(same, python="/elsewhere"), stays=True)[0]
    linked = tmp_path / "linked"
    linked.symlink_to(ours.root.parent)
    root = {**as_variables(ours), "GRIDMILL_ROOT": str(linked / "storage")}
    assert differences(ours, replace(same, settings=root), stays=False) == ()
