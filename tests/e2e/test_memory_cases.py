"""One table of kinds of memory: cgroups and the guard measure the same, and hold the same limits."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.pod_protocol import Start
from gridmill.domain.states import AttemptState, Cause
from gridmill.pod.cgroups import destroy, own_hierarchies
from tests.kit.control_end import Grid

pytestmark = pytest.mark.e2e

SIZE = 150 * MIB
OWN_PAGES = 16 * MIB
"""The pages that up to four forked interpreters copy when they write: about 2 to 4 MiB each."""
HEAD = f"import mmap, os, sys, time\nSIZE = {SIZE}\n"
HOLD = "\ntime.sleep(0.5)"
FILL = "\nfor at in range(0, SIZE, 4096): m[at] = 1"
READ = "\nsum(m[at] for at in range(0, SIZE, 4096))"
WRITTEN = "\nblock = b'x' * 2**20\nfor _ in range(SIZE // 2**20): f.write(block)\nf.flush()"
SHM = "f = open(sys.argv[1], 'w+b', 0)"
MEMFD = "f = open(os.memfd_create('a'), 'w+b', 0)"
CASES = {
    "nothing": ("pass", 0),
    "anonymous": ("b = bytearray(SIZE)\nfor at in range(0, SIZE, 4096): b[at] = 1", SIZE),
    "shared by forked processes": (
        "b = bytearray(SIZE)\nfor at in range(0, SIZE, 4096): b[at] = 1\nos.fork()\nos.fork()",
        SIZE,
    ),
    "page cache": (f"f = open('file', 'w+b', 0){WRITTEN}\nf.seek(0)\nwhile f.read(2**20): pass", 0),
    "mapped file": (
        f"f = open('file', 'w+b', 0){WRITTEN}\nm = mmap.mmap(f.fileno(), SIZE, prot=mmap.PROT_READ){READ}",
        0,
    ),
    "file in /dev/shm, closed": (f"{SHM}{WRITTEN}\ntime.sleep(0.1)\nf.close()", SIZE),
    "file in /dev/shm, mapped by two": (
        f"{SHM}\nf.truncate(SIZE)\nm = mmap.mmap(f.fileno(), SIZE){FILL}\nos.fork() or f.close(){READ}",
        SIZE,
    ),
    "memfd, written": (f"{MEMFD}{WRITTEN}", SIZE),
    "memfd, shared by two": (
        f"{MEMFD}\nf.truncate(SIZE)\nm = mmap.mmap(f.fileno(), SIZE){FILL}\nos.fork()",
        SIZE,
    ),
    "anonymous, shared by two": (f"m = mmap.mmap(-1, SIZE){FILL}\nos.fork()", SIZE),
}


@pytest.fixture
def shared_memory():
    """Names of files in /dev/shm, which are removed in the end."""
    paths = []

    def path(name):
        paths.append(Path(f"/dev/shm/gridmill-test-{uuid4().hex}-{name}"))
        return paths[-1]

    yield path
    for one in paths:
        one.unlink(missing_ok=True)


@pytest.fixture(params=["cgroups", "guard"])
def grid(request, tmp_path):
    grid = Grid(tmp_path, cgroups=request.param == "cgroups")
    grid.site.bring_up([grid.pod_order(capacity=Amounts(cpus=2, memory_bytes=4096 * MIB))])
    try:
        yield grid
    finally:
        grid.close()


def order(grid, attempt_id, script, shared, memory=512):
    given = Amounts(cpus=1, memory_bytes=memory * MIB)
    command = ("python", "-c", HEAD + script + HOLD, str(shared))
    return grid.command(attempt_id, command, given=given)


def test_each_kind_of_memory_is_measured_for_what_it_is(grid, shared_memory):
    orders = {
        name: order(grid, f"p-1.j{number}.1", script, shared_memory(f"{number}"))
        for number, (name, (script, _)) in enumerate(CASES.items())
    }
    peaks = {}
    for one in orders.values():
        grid.control.send(Start(order=one))
    for name, one in orders.items():
        outcome = grid.control.outcome(one.attempt_id)
        assert outcome.state == AttemptState.SUCCEEDED, (name, grid.control.log(one.attempt_id, "err"))
        peaks[name] = outcome.use.peak_memory_bytes
    base = peaks.pop("nothing")
    assert base < 32 * MIB
    wrong = {
        name: round(peak / MIB)
        for name, peak in peaks.items()
        if abs(peak - base - CASES[name][1]) > max(0.05 * CASES[name][1], OWN_PAGES)
    }
    assert wrong == {}


@pytest.mark.parametrize("name", ["mapped file", "page cache"])
def test_files_that_the_kernel_can_take_back_end_no_job(grid, shared_memory, name):
    outcome = grid.control.run(order(grid, "p-1.j.1", CASES[name][0], shared_memory("a"), memory=64))
    assert outcome.state == AttemptState.SUCCEEDED


@pytest.mark.parametrize("name", ["file in /dev/shm, closed", "memfd, written"])
def test_shared_memory_over_the_limit_ends_the_job_and_its_neighbour_goes_on(grid, shared_memory, name):
    grid.control.send(Start(order=grid.command("p-1.k.1", "exec sleep 0.3")))
    outcome = grid.control.run(order(grid, "p-1.j.1", CASES[name][0], shared_memory("a"), memory=64))
    assert (outcome.state, outcome.cause) == (AttemptState.FAILED, Cause.MEMORY)
    assert grid.control.outcome("p-1.k.1").state == AttemptState.SUCCEEDED


def test_a_job_within_its_size_in_a_pod_without_memory_is_not_to_blame(tmp_path):
    grid = Grid(tmp_path)
    grid.site.bring_up([grid.pod_order(capacity=Amounts(cpus=2, memory_bytes=128 * MIB))])
    try:
        grid.control.wait(lambda: grid.control.hellos)
        if not any("memory" in line for line in (tmp_path / "pods/r-1.0/cgroups").read_text().splitlines()):
            pytest.skip("no cgroup of this machine can hold memory limits")
        outcome = grid.control.run(order(grid, "p-1.j.1", CASES["anonymous"][0], "", memory=512))
    finally:
        grid.close()
    assert (outcome.state, outcome.cause) == (AttemptState.LOST, Cause.SHORTAGE)
    assert outcome.message.startswith("the pod of its resource ran out of memory; the job used ")


IN_GROUPS = """
import os, sys
from pathlib import Path
from gridmill.domain.amounts import MIB, Amounts
from gridmill.pod.cgroups import PodGroups, _limit_memory
from gridmill.pod.limits import AttemptMeter
outer, pod_folder, machine, pod, job = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
(outer / "cgroup.procs").write_text("0")
_limit_memory(outer, machine * MIB)
groups = PodGroups.make(pod_folder, Amounts(cpus=2, memory_bytes=pod * MIB))
group = groups.attempt("p-1.j.1", job * MIB)
meter = AttemptMeter(job * MIB, group, 0.0)
meter.sample((), 0.01)
pid = os.fork()
if pid == 0:
    for procs in group.joins:
        Path(procs).write_text("0")
    block = bytearray(1)
    for _ in range(150):
        block += os.urandom(MIB)
    os._exit(0)
meter.ended(pid, os.waitpid(pid, 0)[1])
print(meter.shortage)
groups.release(group)
groups.remove()
"""


@pytest.mark.parametrize(
    ("machine", "pod", "job", "shortage"),
    [
        (1000, 900, 64, "ATTEMPT"),
        (1000, 64, 900, "POD"),
        (100, 900, 500, "MACHINE"),
        (1000, 900, 500, "None"),
    ],
)
def test_the_kernel_says_whose_memory_ran_out(tmp_path, machine, pod, job, shortage):
    """A group around the pod stands for the machine."""
    memory = own_hierarchies().v1.get("memory")
    if memory is None or not os.access(memory, os.W_OK):
        pytest.skip("no cgroup of version 1 in which this user may make others")
    outer = memory / f"gridmill-test-{uuid4().hex}"
    outer.mkdir()
    try:
        command = (sys.executable, "-c", IN_GROUPS, outer, tmp_path, machine, pod, job)
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.stdout.strip().removeprefix("MemoryShortage.") == shortage, done.stderr
    finally:
        destroy(outer)


READER = """
import sys, time
while True:
    try:
        file = open(sys.argv[1])
        break
    except OSError:
        time.sleep(0.01)
input()
"""


def test_what_a_job_leaves_in_shared_memory_is_freed_and_nothing_else(grid, shared_memory):
    mine, theirs, kept, other = (shared_memory(name) for name in ("mine", "theirs", "kept", "other"))
    theirs.write_bytes(b"1" * MIB)
    script = f"{SHM}{WRITTEN}\nt = open({str(theirs)!r}, 'ab', 0)\nt.write(block)\n"
    script += f"k = open({str(kept)!r}, 'w+b', 0)\nk.write(block)"
    with subprocess.Popen((sys.executable, "-c", READER, str(kept)), stdin=subprocess.PIPE) as process:
        outcome = grid.control.run(order(grid, "p-1.j.1", script, mine))
        other.write_bytes(b"1")
        process.communicate(b"\n")
    assert outcome.state == AttemptState.SUCCEEDED
    assert [mine.exists(), theirs.exists(), kept.exists(), other.exists()] == [False, True, True, True]
    assert "150 MiB that it left in /dev/shm were deleted" in grid.control.log("p-1.j.1", "err")


def test_a_job_that_says_how_many_cpus_it_wants_has_so_many(grid):
    script = "import os; print(len(os.sched_getaffinity(0)))"
    grid.control.run(grid.command("p-1.j.1", ("python", "-c", script), cpus=1.0))
    assert grid.control.log("p-1.j.1") == "1\n"
