"""One pod, its jobs as real processes, and a control end that takes what it says."""

import contextlib
import os
import signal
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.artifact import Artifact, ArtifactKind, Input, Output
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder, EventType, Goodbye, Start, Stop
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Source
from gridmill.domain.states import AttemptState, Cause
from gridmill.pod import processes
from gridmill.ports.site import PodStatus
from gridmill.storage.bundle import make_bundle
from tests.kit.control_end import ControlEnd, Grid
from tests.kit.ports import free_port

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["cgroups", "guard"])
def any_grid(request, tmp_path):
    """A grid whose limits are held by cgroups where there are some, and one that never uses them."""
    yield from started(tmp_path, cgroups=request.param == "cgroups")


@pytest.fixture
def grid(tmp_path):
    yield from started(tmp_path)


def started(home, pod_changes=(), **settings):
    grid = Grid(home, **settings)
    grid.site.bring_up([grid.pod_order(**dict(pod_changes))])
    try:
        grid.control.wait(lambda: grid.control.hellos)
        yield grid
    finally:
        grid.close()


def pod_pid(grid, pod_id="r-1.0"):
    return int((grid.home / "pods" / pod_id / "pid").read_text().split()[0])


def started_pid(grid, attempt_id):
    grid.control.wait(lambda: grid.control.of(attempt_id, EventType.STARTED))
    return grid.control.of(attempt_id, EventType.STARTED)[0].body["pid"]


@contextlib.contextmanager
def package_index(kind):
    """The address of a package index without packages: one that answers, or fails, or is not there."""
    if kind == "closed":
        yield f"http://127.0.0.1:{free_port()}/simple"
        return

    class Index(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(503 if kind == "failing" else 404)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


def is_gone(pid):
    return processes.stat(pid) is None


@pytest.mark.parametrize("first", ["job", "pod"])
def test_of_a_job_that_was_ended_with_its_pod_no_end_is_said(grid, first):
    """Why both were ended the site knows better: a batch system ends all processes, in any order."""
    grid.control.send(Start(order=grid.command("p-1.j.1", "exec sleep 300")))
    pids = {"job": started_pid(grid, "p-1.j.1"), "pod": pod_pid(grid)}
    for name in sorted(pids, key=lambda name: name != first):
        with contextlib.suppress(ProcessLookupError):  # its pod may have ended it already
            os.kill(pids[name], signal.SIGTERM)
    grid.control.wait(lambda: grid.site.observe(["r-1.0"])["r-1.0"].status == PodStatus.GONE)
    assert is_gone(pids["job"])
    said = [*grid.control.events, *grid.site.undelivered_events("r-1.0")]
    assert EventType.ENDED not in [event.type for event in said]


def test_a_job_that_was_told_to_end_by_somebody_else_has_failed(grid):
    grid.control.send(Start(order=grid.command("p-1.j.1", "exec sleep 300")))
    os.kill(started_pid(grid, "p-1.j.1"), signal.SIGTERM)
    outcome = grid.control.outcome("p-1.j.1")
    assert (outcome.state, outcome.message) == (AttemptState.FAILED, "killed by SIGTERM")


def test_a_command_runs_and_its_files_are_kept(grid):
    outcome = grid.control.run(
        grid.command(
            "p-1.j.1", "echo hello; echo oops >&2; mkdir $GRIDMILL_OUTPUT/d; echo 123 > $GRIDMILL_OUTPUT/d/f"
        )
    )
    assert (outcome.state, outcome.exit_code) == (AttemptState.SUCCEEDED, 0)
    assert outcome.outputs[0].size_bytes == 4
    assert outcome.outputs[0].details == {"files": 1}
    assert grid.control.log("p-1.j.1") == "hello\n"
    assert grid.control.log("p-1.j.1", "err") == "oops\n"
    assert {event.token for event in grid.control.events} == {"token of p-1.j.1"}
    assert [event.number for event in grid.control.events] == list(range(1, grid.control.last + 1))


def test_an_input_of_a_job_without_files_is_empty_and_nothing_of_others(grid):
    others = grid.home / "storage/files/p/other/file"
    others.parent.mkdir(parents=True)
    others.write_text("theirs")
    nothing = Output(kind=ArtifactKind.FILES, uri="")
    made = Artifact(id="p/a@1", name="p/a", number=1, output=nothing, fingerprint="")
    order = grid.command(
        "p-1.j.1", 'rm -rf "$GRIDMILL_INPUT_A"/* "$GRIDMILL_INPUT_B"/*; ls -A "$GRIDMILL_INPUT_A"'
    )
    job = replace(order.job, needs=("a", "b"))
    order = replace(order, job=job, inputs=(Input(name="a", artifact=made),))
    assert grid.control.run(order).state == AttemptState.SUCCEEDED
    assert (grid.control.log("p-1.j.1"), others.read_text()) == ("", "theirs")


def test_links_in_an_output_are_kept_as_what_they_point_to(any_grid):
    """With thousands of files they are collected beside the pod's loop, which goes on."""
    run = """
    cd "$GRIDMILL_OUTPUT"; echo weights > model-2; ln -s model-2 latest; echo scratch > "$TMPDIR/x"
    ln -s "$TMPDIR/x" x; mkdir many; cd many; seq 3000 | xargs touch
    """
    outcome = any_grid.control.run(any_grid.command("p-1.j.1", run))
    assert (outcome.state, outcome.message) == (AttemptState.SUCCEEDED, "")
    assert outcome.outputs[0].details == {"files": 3003}
    folder = any_grid.home / "storage" / outcome.outputs[0].uri
    assert [(folder / name).is_symlink() for name in ("latest", "x")] == [False, False]
    assert [(folder / name).read_text() for name in ("latest", "x")] == ["weights\n", "scratch\n"]
    assert "2 links in the output were replaced" in any_grid.control.log("p-1.j.1", "err")


BAD_OUTPUTS = [
    ('ln -s /nowhere "$GRIDMILL_OUTPUT/x"', {}, "a link x to /nowhere, which does not exist"),
    ('ln -s /etc/passwd "$GRIDMILL_OUTPUT/x"', {}, "which does not belong to the job and may change"),
    ('rmdir "$GRIDMILL_OUTPUT"', {}, "the command removed its output folder"),
    ('rmdir "$GRIDMILL_OUTPUT"; ln -s /tmp "$GRIDMILL_OUTPUT"', {}, "with a link to /tmp"),
    ("true", {"outputs": ("model.bin",)}, "the command did not write its output 'model.bin'"),
]


@pytest.mark.parametrize(("run", "said", "problem"), BAD_OUTPUTS)
def test_an_output_that_cannot_be_kept_fails_the_job(grid, run, said, problem):
    outcome = grid.control.run(grid.command("p-1.j.1", run, **said))
    assert (outcome.state, outcome.cause, outcome.outputs) == (AttemptState.FAILED, Cause.OUTPUT, ())
    assert problem in outcome.message


LINES = [
    ("cd /nowhere\necho on", {}, False),
    ("false; echo on", {}, False),
    ("if false; then :; fi; false || true; ! true && echo on; echo on", {}, True),
    ("false | true\necho on", {}, True),
    ("false | true\necho on", {"shell": "bash -eo pipefail"}, False),
    ("false\necho on", {"shell": "sh"}, True),
]


@pytest.mark.parametrize(("run", "said", "goes_on"), LINES)
def test_a_command_ends_at_its_first_line_that_fails(grid, run, said, goes_on):
    outcome = grid.control.run(grid.command("p-1.j.1", run, **said))
    assert (outcome.state == AttemptState.SUCCEEDED, "on" in grid.control.log("p-1.j.1")) == (
        goes_on,
        goes_on,
    )


@pytest.mark.parametrize("scheme", ["tls", "spool"])
def test_every_link_carries_jobs(tmp_path, scheme):
    grid = Grid(tmp_path)
    try:
        link = grid.control.listen_elsewhere(scheme)
        grid.site.bring_up([grid.pod_order(link=link)])
        grid.control.wait(lambda: grid.control.hellos)
        for number in range(3):
            assert grid.control.run(grid.command(f"p-1.j.{number}", "seq 1000")).exit_code == 0
            assert grid.control.log(f"p-1.j.{number}").endswith("999\n1000\n")
    finally:
        grid.close()


def test_what_python_writes_comes_before_its_end(grid):
    outcome = grid.control.run(grid.command("p-1.j.1", ("python", "-c", "print('x' * 10); 1 / 0")))
    assert outcome.message == "exit code 1"
    assert grid.control.log("p-1.j.1") == "x" * 10 + "\n"
    assert "ZeroDivisionError" in grid.control.log("p-1.j.1", "err")


def test_reports_through_the_events_descriptor(grid):
    script = """import os
with os.fdopen(int(os.environ["GRIDMILL_EVENTS_FD"]), "w") as events:
    print('{"type": "metric", "name": "loss", "value": 0.5, "step": 1}', file=events)
    print('{"type": "progress", "done": 1, "total": 2}', file=events)
    print("nonsense", file=events)"""
    grid.control.run(grid.command("p-1.j.1", ("python", "-c", script)))
    metric, progress = (grid.control.of("p-1.j.1", kind) for kind in (EventType.METRIC, EventType.PROGRESS))
    assert metric[0].body == {"name": "loss", "value": 0.5, "step": 1.0}
    assert progress[-1].body["done"] == 1.0
    assert grid.control.log("p-1.j.1", "pod") == "nonsense\n"
    assert grid.control.events[-1].type == EventType.ENDED


def test_an_attempt_is_started_once_for_ever(grid):
    mark = grid.home / "mark"
    order = grid.command("p-1.j.1", f"echo x >> {mark}")
    grid.control.run(order)
    grid.control.send(Start(order=order))
    grid.control.run(grid.command("p-1.j.2", "true"))
    assert mark.read_text() == "x\n"
    assert len(grid.control.of("p-1.j.1", EventType.ENDED)) == 1


def test_a_stop_before_the_start_is_answered_and_remembered(grid):
    grid.control.send(Stop(attempt_id="p-1.j.1", reason="not needed"))
    outcome = grid.control.outcome("p-1.j.1")
    assert (outcome.state, outcome.message) == (AttemptState.STOPPED, "not needed")
    grid.control.send(Start(order=grid.command("p-1.j.1", f"touch {grid.home}/mark")))
    grid.control.run(grid.command("p-1.j.2", "true"))
    assert not (grid.home / "mark").exists()


def test_no_process_is_left_behind(any_grid):
    pids = any_grid.home / "pids"
    script = f"""
        for i in 1 2; do setsid sh -c 'echo $$ >> {pids}; exec sleep 300' & done
        sleep 300 & echo $! >> {pids}
        while [ $(wc -l < {pids}) -lt 3 ]; do sleep 0.01; done"""
    outcome = any_grid.control.run(any_grid.command("p-1.j.1", script))
    assert outcome.state == AttemptState.SUCCEEDED
    assert all(is_gone(int(pid)) for pid in pids.read_text().split())
    any_grid.control.run(
        any_grid.command("p-1.j.2", "true")
    )  # tidying is done by the time the next one starts
    assert not (any_grid.home / "attempts" / "p-1.j.1" / "work").exists()


def spares_of(grid):
    """The processes that wait to become the next command: one for any, one for simple ones, and the process
    that forks the latter. The one that tidies up may be there for a moment."""
    waiting = []

    def complete():
        waiting[:] = [pid for pid in processes.children(pod_pid(grid)) if not is_gone(pid)]
        return len(waiting) == 3

    grid.control.wait(complete)
    return set(waiting)


def test_a_command_becomes_a_process_that_was_forked_ahead(any_grid):
    spares = spares_of(any_grid)
    outcome = any_grid.control.run(any_grid.command("p-1.j.1", "echo $$"))
    assert outcome.state == AttemptState.SUCCEEDED
    became = int(any_grid.control.log("p-1.j.1"))
    assert became in spares
    assert len(spares_of(any_grid) & spares) == 2
    assert processes.stat(became) is None


def test_a_simple_command_that_cannot_be_executed_says_why(any_grid):
    for number, run in enumerate((("nowhere-to-be-found",), ("/",), ("a\0b",)), 1):
        outcome = any_grid.control.run(any_grid.command(f"p-1.j.{number}", run))
        assert (outcome.state, outcome.cause) == (AttemptState.FAILED, Cause.INPUT)
        assert ("there is no program 'nowhere-to-be-found'", "cannot be executed", "cannot be executed")[
            number - 1
        ] in outcome.message


def test_a_waiting_process_that_is_killed_is_missed_by_nobody(any_grid):
    for number in range(1, 6):  # after some deaths no more are forked ahead
        for spare in processes.children(pod_pid(any_grid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(spare, signal.SIGKILL)
            any_grid.control.wait(lambda pid=spare: is_gone(pid))
        outcome = any_grid.control.run(any_grid.command(f"p-1.j.{number}", "echo $GRIDMILL_JOB"))
        assert outcome.state == AttemptState.SUCCEEDED
        assert any_grid.control.log(f"p-1.j.{number}") == "my-job\n"


def test_waiting_processes_end_with_their_pod(any_grid):
    spares = spares_of(any_grid)
    any_grid.control.send(Goodbye(reason="enough"))
    any_grid.control.wait(lambda: all(map(is_gone, spares)))


def test_waiting_processes_end_with_a_pod_that_is_killed(any_grid):
    spares = spares_of(any_grid)
    os.kill(pod_pid(any_grid), signal.SIGKILL)
    any_grid.control.wait(lambda: all(map(is_gone, spares)))


def started_ahead(grid):
    """The process that waits to become the next pod."""
    before = processes.children(os.getpid())
    grid.site.prepare()
    [ahead] = set(processes.children(os.getpid())) - set(before)
    return ahead


def test_a_pod_started_ahead_that_died_is_missed_by_nobody(tmp_path):
    grid = Grid(tmp_path)
    ahead = started_ahead(grid)
    os.kill(ahead, signal.SIGKILL)
    grid.control.wait(lambda: is_gone(ahead))
    grid.site.bring_up([grid.pod_order()])
    try:
        outcome = grid.control.run(grid.command("p-1.j.1", "true"))
        assert outcome.state == AttemptState.SUCCEEDED
        assert is_gone(ahead)
    finally:
        grid.close()


def test_a_pod_started_ahead_that_nobody_needs_ends_with_its_site(tmp_path):
    grid = Grid(tmp_path)
    ahead = started_ahead(grid)
    grid.site.close()
    assert is_gone(ahead)
    grid.close()


def test_a_stop_ends_gently_then_firmly(any_grid):
    gentle = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done"
    any_grid.control.send(Start(order=any_grid.command("p-1.j.1", gentle)))
    any_grid.control.wait(lambda: any_grid.control.log("p-1.j.1"))
    any_grid.control.send(Stop(attempt_id="p-1.j.1", reason="enough", grace_seconds=300.0))
    outcome = any_grid.control.outcome("p-1.j.1")
    assert (outcome.state, outcome.message) == (AttemptState.STOPPED, "enough")
    assert any_grid.control.log("p-1.j.1") == "up\nbye\n"
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.01; done"
    any_grid.control.send(Start(order=any_grid.command("p-1.k.1", stubborn)))
    any_grid.control.wait(lambda: any_grid.control.log("p-1.k.1"))
    any_grid.control.send(Stop(attempt_id="p-1.k.1", reason="enough", grace_seconds=0.1))
    assert any_grid.control.outcome("p-1.k.1").state == AttemptState.STOPPED


def test_a_job_over_its_time_is_ended(any_grid):
    outcome = any_grid.control.run(any_grid.command("p-1.j.1", "sleep 300", timeout_seconds=0.2))
    assert (outcome.cause, outcome.message) == (Cause.TIMEOUT, "ran longer than 200 ms")


def test_a_job_that_was_suspended_hears_of_its_end(any_grid):
    run = "trap 'echo bye; exit 1' TERM; echo up; kill -STOP $$; sleep 300"
    outcome = any_grid.control.run(any_grid.command("p-1.j.1", run, timeout_seconds=0.2))
    assert outcome.message == "ran longer than 200 ms"
    assert any_grid.control.log("p-1.j.1") == "up\nbye\n"


def test_a_job_over_its_memory_is_ended_and_its_neighbour_goes_on(any_grid):
    any_grid.control.send(Start(order=any_grid.command("p-1.k.1", "echo up; exec sleep 300")))
    script = "import time; b = []\nfor _ in range(60): b.append(b'x' * 10_000_000)\ntime.sleep(600)"
    outcome = any_grid.control.run(any_grid.command("p-1.j.1", ("python", "-c", script)))
    assert outcome.cause == Cause.MEMORY
    assert outcome.message.startswith("used more than 256 MiB")
    assert outcome.use.peak_memory_bytes >= 256 * MIB
    assert not any_grid.control.of("p-1.k.1", EventType.ENDED)


EAT = "python -c \"b = []\nfor _ in range(60): b.append(b'x' * 10_000_000)\""
POOL = """
import multiprocessing, time
def eat(number):
    if number == 1:
        b = []
        for _ in range(60):
            b.append(b"x" * 10_000_000)
    return number
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print("parts done", len(pool.map(eat, range(3), chunksize=1)))
"""


@pytest.mark.parametrize(
    "command",
    [f"{EAT} | tee /dev/null | tail -1", f"{EAT}; true", ("python", "-c", POOL)],
    ids=["pipe", "next-command", "pool-that-would-hang"],
)
def test_a_job_that_lost_any_process_to_its_memory_limit_has_failed_at_once(any_grid, command):
    outcome = any_grid.control.run(any_grid.command("p-1.j.1", command))
    assert (outcome.state, outcome.cause) == (AttemptState.FAILED, Cause.MEMORY)
    assert outcome.message.startswith("used more than 256 MiB")


def test_what_a_job_used_is_measured(any_grid):
    script = "import time; b = b'x' * 100_000_000; t = time.process_time()\n"
    script += "while time.process_time() < t + 0.3: pass"
    use = any_grid.control.run(any_grid.command("p-1.j.1", ("python", "-c", script))).use
    assert 100_000_000 < use.peak_memory_bytes < 200_000_000
    assert 0.3 <= use.cpu_seconds < 3.0
    assert use.wall_seconds >= 0.3


@pytest.mark.skipif(os.geteuid() == 0, reason="no folder is closed to root")
def test_a_folder_of_the_path_that_is_closed_hides_no_missing_command(grid, tmp_path: Path):
    (tmp_path / "closed").mkdir(mode=0o000)
    path = os.pathsep.join((str(tmp_path / "closed"), os.environ["PATH"]))
    outcome = grid.control.run(grid.command("p-1.a.1", ("nope",), env={"PATH": path}))
    assert "there is no program 'nope'" in outcome.message


def test_declarations_that_cannot_work_are_input_errors(grid):
    wrong = {
        "there is no program 'nope'": grid.command("p-1.a.1", ("nope",)),
        "does not exist": grid.command("p-1.b.1", "true", folder="/no/such/folder"),
        "is outside the project": grid.command("p-1.c.1", "true", folder=".."),
        "not on this machine": grid.command("p-1.d.1", "true", bundle="0" * 64),
        "cannot be set": grid.command("p-1.f.1", "true", env={"A=B": "1"}),
        "nothing to run": grid.command("p-1.g.1", ()),
        "cannot be read": grid.command("p-1.e.1", "true", environment="requirements.txt"),
    }
    for text, order in wrong.items():
        outcome = grid.control.run(order)
        assert text in outcome.message
        assert outcome.cause in (Cause.INPUT, Cause.STORAGE)


def bundle(home, files):
    for name, text in files.items():
        path = home / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return make_bundle(home / "project", home / "bundles").hash


def test_each_attempt_has_its_own_copy_of_the_code(grid):
    name = bundle(grid.home, {"src/a.txt": "original\n"})
    command = "cat a.txt; echo changed > a.txt"
    for attempt_id in ("p-1.j.1", "p-1.j.2"):
        grid.control.run(grid.command(attempt_id, command, bundle=name, folder="src"))
        assert grid.control.log(attempt_id) == "original\n"


def test_an_environment_is_built_once(grid):
    name = bundle(grid.home, {"requirements.txt": "# nothing to install\n"})
    command = "python -c 'import sys; print(sys.prefix)'"
    for attempt_id in ("p-1.j.1", "p-1.j.2"):
        order = grid.command(attempt_id, command, bundle=name, environment="requirements.txt")
        assert grid.control.run(order).state == AttemptState.SUCCEEDED
        assert str(grid.home / "cache" / "environments") in grid.control.log(attempt_id)
    assert "building the environment" in grid.control.log("p-1.j.1", "pod")
    assert "building the environment" not in grid.control.log("p-1.j.2", "pod")


def test_an_environment_that_cannot_be_built_says_why(grid):
    name = bundle(grid.home, {"requirements.txt": "./no-such-package\n"})
    outcome = grid.control.run(grid.command("p-1.j.1", "true", bundle=name, environment="requirements.txt"))
    assert outcome.cause == Cause.INPUT
    assert "could not be built" in outcome.message
    assert "no-such-package" in outcome.message


@pytest.mark.parametrize("index", ["closed", "failing", "empty"])
def test_an_index_that_does_not_answer_is_told_apart_from_a_package_that_it_lacks(
    tmp_path, monkeypatch, index
):
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with package_index(index) as url:
        for grid in started(tmp_path):
            text = f"--index-url {url}\nno-such-package-of-gridmill\n"
            name = bundle(grid.home, {"requirements.txt": text})
            order = grid.command("p-1.j.1", "true", bundle=name, environment="requirements.txt")
            outcome = grid.control.run(order)
    if index == "empty":
        assert outcome.cause == Cause.INPUT
        assert "No matching distribution found" in outcome.message
    else:
        assert outcome.cause == Cause.ENVIRONMENT
        assert outcome.message.startswith("the package index did not answer: ")


def test_an_installer_that_is_killed_does_not_blame_the_requirements(grid):
    kill = """
import os
pid = os.getpid()
while b"requirements.txt" not in open(f"/proc/{pid}/cmdline", "rb").read():
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
os.kill(pid, 9)
"""  # the pip that the pod has started
    files = {
        "requirements.txt": "./pkg\n",
        "pkg/pyproject.toml": "[build-system]\nrequires = []\nbackend-path = ['.']\nbuild-backend = 'own'\n",
        "pkg/own.py": kill,
    }
    name = bundle(grid.home, files)
    outcome = grid.control.run(grid.command("p-1.j.1", "true", bundle=name, environment="requirements.txt"))
    assert outcome.cause == Cause.ENVIRONMENT
    assert outcome.message == "the installer of the environment was killed by SIGKILL"


def test_a_control_node_that_was_away_misses_nothing(grid):
    go = grid.home / "go"
    order = grid.command("p-1.j.1", f"echo one; while [ ! -e {go} ]; do sleep 0.01; done; seq 1000")
    grid.control.send(Start(order=order))
    grid.control.wait(lambda: grid.control.log("p-1.j.1"))
    kept = grid.control.events
    grid.control.close()
    go.touch()
    grid.control = ControlEnd(grid.home)
    grid.control.events = kept
    grid.control.outcome("p-1.j.1")
    assert grid.control.log("p-1.j.1") == "one\n" + "".join(f"{n}\n" for n in range(1, 1001))
    assert [event.number for event in kept] == list(range(1, len(kept) + 1))


def test_what_is_not_acknowledged_is_sent_again(grid):
    grid.control.acknowledging = False
    grid.control.run(grid.command("p-1.j.1", "seq 100"))
    assert (grid.home / "attempts" / "p-1.j.1").exists()
    first = grid.control.events
    grid.control.close()
    grid.control = ControlEnd(grid.home)
    grid.control.outcome("p-1.j.1")
    assert grid.control.events == first
    assert grid.control.hellos[-1].attempts == {"p-1.j.1": AttemptState.SUCCEEDED}
    grid.control.wait(lambda: not (grid.home / "attempts" / "p-1.j.1").exists())


def test_a_flood_of_output_arrives_whole(grid):
    outcome = grid.control.run(grid.command("p-1.j.1", "seq 300000"))
    assert outcome.state == AttemptState.SUCCEEDED
    assert grid.control.log("p-1.j.1") == "".join(f"{n}\n" for n in range(1, 300_001))


def test_a_work_folder_of_many_files_is_removed_too(grid):
    grid.control.run(grid.command("p-1.j.1", "for i in $(seq 500); do echo > $i; done"))
    grid.control.run(grid.command("p-1.j.2", "true"))  # tidying is done by the time the next one starts
    assert not (grid.home / "attempts" / "p-1.j.1" / "work").exists()
    trash = grid.home / "pods" / "r-1.0" / "trash"
    grid.control.wait(lambda: not list(trash.iterdir()))
    assert grid.control.run(grid.command("p-1.j.2", "true")).state == AttemptState.SUCCEEDED


def test_a_stop_that_comes_after_the_end_changes_nothing(grid):
    grid.control.send(Start(order=grid.command("p-1.j.1", "true")))
    assert grid.control.outcome("p-1.j.1").state == AttemptState.SUCCEEDED
    grid.control.send(Stop(attempt_id="p-1.j.1", reason="late"))
    grid.control.run(grid.command("p-1.j.2", "true"))
    assert len(grid.control.of("p-1.j.1", EventType.ENDED)) == 1


def test_many_jobs_at_once(grid):
    for number in range(30):
        grid.control.send(Start(order=grid.command(f"p-1.j{number}.1", f"echo {number}")))
    for number in range(30):
        assert grid.control.outcome(f"p-1.j{number}.1").state == AttemptState.SUCCEEDED
        assert grid.control.log(f"p-1.j{number}.1") == f"{number}\n"


def test_goodbye_ends_the_pod_and_its_jobs(grid):
    grid.control.send(Start(order=grid.command("p-1.j.1", "sleep 300")))
    pid = started_pid(grid, "p-1.j.1")
    grid.control.send(Goodbye(reason="the deployment does not exist any more"))
    grid.control.wait(lambda: grid.site.observe(["r-1.0"])["r-1.0"].status == PodStatus.GONE)
    assert is_gone(pid)


def test_a_pod_without_a_control_node_ends_after_its_orphan_time(tmp_path):
    for grid in started(tmp_path, pod_changes={"orphan_seconds": 0.5}):
        grid.control.close()
        grid.control.wait(lambda g=grid: g.site.observe(["r-1.0"])["r-1.0"].status == PodStatus.GONE)
        assert (tmp_path / "pods" / "r-1.0" / "ended").exists()


def sink(grid, attempt_id, path):
    return AttemptOrder(
        attempt_id=attempt_id,
        token="t",
        run_id="p-1",
        pipeline="p",
        job=Job(name="s", sink=SinkSpec(source=Source(path=path))),
        given=Amounts(cpus=1, memory_bytes=512 * MIB),
        root=str(grid.home / "storage"),
        output_uri=f"sinks/p/s-{attempt_id}",
        table_uri="sinks/p/s",
        folder=str(grid.home),
    )


@pytest.fixture(params=["zygote", "cold"])
def sink_grid(request, tmp_path):
    yield from started(tmp_path, pod_changes={"type": "sink"}, zygote=request.param == "zygote")


def test_a_built_in_job_runs_warm_and_cold(sink_grid):
    (sink_grid.home / "a.csv").write_text("a,b\n1,2\n3,4\n")
    outcome = sink_grid.control.run(sink(sink_grid, "p-1.s.1", "a.csv"))
    assert (outcome.state, outcome.message) == (AttemptState.SUCCEEDED, "")
    assert outcome.outputs[0].rows == 2
    assert outcome.use.peak_memory_bytes > 0
    missing = sink_grid.control.run(sink(sink_grid, "p-1.s.2", "missing.csv"))
    assert missing.cause == Cause.INPUT


def test_requests_wait_for_the_zygote_and_outlive_its_death(tmp_path):
    for grid in started(tmp_path, pod_changes={"type": "sink"}):
        (tmp_path / "a.csv").write_text("a,b\n1,2\n")
        for number in range(3):
            grid.control.send(Start(order=sink(grid, f"p-1.s{number}.1", "missing.csv")))
        for number in range(3):
            assert grid.control.outcome(f"p-1.s{number}.1").cause == Cause.INPUT
        zygote = next(pid for pid in processes.children(pod_pid(grid)) if not is_gone(pid))
        os.kill(zygote, signal.SIGKILL)
        outcome = grid.control.run(sink(grid, "p-1.after.1", "a.csv"))
        assert outcome.state == AttemptState.SUCCEEDED or "it was forked" in outcome.message
        assert grid.control.run(sink(grid, "p-1.later.1", "missing.csv")).cause == Cause.INPUT


def test_nothing_is_left_of_a_pod_that_ended(grid):
    grid.control.run(grid.command("p-1.j.1", "true"))
    folders = [Path(line) for line in (grid.home / "pods" / "r-1.0" / "cgroups").read_text().splitlines()]
    grid.site.tear_down(["r-1.0"])
    assert not any(folder.exists() for folder in folders)
    assert list((grid.home / "attempts").iterdir()) == []
