"""Tenants beside each other: how long a job takes beside attacks of another tenant of the same farm.

`python -m bench.neighbours` enters control groups that bound it as a whole first: no attack passes them.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.measure import ROUNDS, Result, at_most, row, save
from gridmill.codec import encode
from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.confinement import Confinement
from gridmill.farm.unix_users import end_processes, first_number
from gridmill.pod.cgroups import destroy

AREA = "Tenants of a farm beside each other"
PYTHON = "/usr/bin/python3"
"""One that every user may start."""
PROCESSES, MEMORY_BYTES = 700, 3 * 2**30
NODE = Amounts(cpus=2.0, memory_bytes=1024 * MIB)
SIZE = Amounts(cpus=1.0, memory_bytes=256 * MIB)
FARM = "gridmill-farm-bench"
START_SECONDS = 1.0
HOW = f"""
Two pods of different tenants, each of 1 CPU and 256 MiB, are started confined as a farm starts them, on 2
CPUs. One computes, or writes 48 MiB with an fsync after each 4 MiB; the other one, which began
{START_SECONDS:g} s before, does the same (an ordinary job) or attacks. Rounds alternate; a value is the
median of the ratios of a round. The bench as a whole is held to {PROCESSES} processes and 3 GiB.
"""

COMPUTES = """
import time
begin = time.perf_counter()
for _ in range(ROUNDS):
    sum(i * i for i in range(200_000))
print(time.perf_counter() - begin)
"""
WRITES = """
import os, time
begin = time.perf_counter()
with open("/tmp/file", "wb") as file:
    for at in range(ROUNDS):
        file.write(os.urandom(2**20))
        if at % 4 == 3:
            file.flush()
            os.fsync(file.fileno())
print(time.perf_counter() - begin)
"""
FORKS = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
GROWS = """
import os
while True:
    if os.fork() == 0:
        held = [bytearray(os.urandom(1) * 2**20) for _ in range(2**14)]
    os.wait()
"""
OPENS = """
import os
for _ in range(3):
    os.fork()
held = []
while True:
    try:
        held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        held.clear() if len(held) < 9 else [os.close(held.pop()) for _ in range(len(held))]
"""
FILLS = """
import os
while True:
    for at in range(200):
        with open(f"/tmp/{at}", "wb") as file:
            file.write(bytes(2**18))
            os.fsync(file.fileno())
    for at in range(200):
        os.unlink(f"/tmp/{at}")
"""
FOR_EVER = "10**9"
ORDINARY = {"computes": COMPUTES, "writes": WRITES}
ATTACKS = {
    "computes": {"fork bomb": FORKS, "memory bomb": GROWS, "descriptor bomb": OPENS},
    "writes": {"disk bomb": FILLS, "fork bomb": FORKS},
}
LIMITS = {"computes": 1.1, "writes": 2.0}
AMOUNT = {"computes": "60", "writes": "48"}


def main() -> None:
    if why := why_not():
        print(f"not measured: {why}")
        return
    with bounded(), tempfile.TemporaryDirectory(prefix="gm-bench-", dir="/var/tmp") as made:
        place = Path(made)
        place.chmod(0o711)
        results = [result for kind in ORDINARY for result in measured(kind, place)]
    save("neighbours", results, how=HOW)


def why_not() -> str:
    """What is missing; empty where it can be measured."""
    if os.geteuid() != 0:
        return "control groups and namespaces need root"
    if not Path("/sys/fs/cgroup/pids").is_dir():
        return "the bench bounds itself by control groups of version 1"
    return "" if Path(PYTHON).exists() else f"there is no {PYTHON}"


@contextmanager
def bounded() -> Iterator[None]:
    """This process and all that it starts have limits of their own."""
    limits = {"pids": ("pids.max", PROCESSES), "memory": ("memory.limit_in_bytes", MEMORY_BYTES)}
    with ExitStack() as stack:
        for group, (file, limit) in limits.items():
            top = Path("/sys/fs/cgroup") / group
            folder = top / f"gridmill-bench-{os.getpid()}"
            folder.mkdir()
            stack.callback(destroy, folder)
            (folder / file).write_text(str(limit))
            (folder / "cgroup.procs").write_text("0")
            stack.callback((top / "cgroup.procs").write_text, "0")
        yield


def measured(kind: str, place: Path) -> list[Result]:
    """The lines of the page of one kind of job."""
    ratios: dict[str, list[float]] = {name: [] for name in ATTACKS[kind]}
    ordinary: list[float] = []
    for _ in range(ROUNDS):
        usual = beside(kind, ORDINARY[kind].replace("ROUNDS", FOR_EVER), place)
        ordinary.append(usual)
        for name, code in ATTACKS[kind].items():
            ratios[name].append(beside(kind, code, place) / usual)
    lines = [row(AREA, f"a job that {kind}, beside an ordinary one", statistics.median(ordinary), "s")]
    for name, values in ratios.items():
        what = f"a job that {kind}, beside a {name} / beside an ordinary one"
        spread = {"low": min(values), "high": max(values), "runs": len(values)}
        lines.append(at_most(LIMITS[kind], AREA, what, statistics.median(values), "x", **spread))
    return lines


def beside(kind: str, other: str, place: Path) -> float:
    """Seconds of a job while another tenant's runs."""
    first = first_number().next
    attack = start(first, "other", other, place)
    try:
        time.sleep(START_SECONDS)
        job = start(first + 1, "job", ORDINARY[kind].replace("ROUNDS", AMOUNT[kind]), place)
        written, _ = job.communicate(timeout=300)
        return float(written)
    finally:
        attack.kill()
        attack.wait()
        end_processes(first)
        subprocess.run([*PROGRAM, "--clear", str(place / "other.record")], check=False)


PROGRAM = (sys.executable, "-P", "-m", "gridmill.pod.confined")


def start(user: int, pod: str, code: str, place: Path) -> subprocess.Popen[bytes]:
    """A pod of that user which runs the code."""
    confinement = Confinement(
        user=user,
        farm=FARM,
        pod=pod,
        capacity=SIZE,
        node=NODE,
        command=(PYTHON, "-I", "-S", "-c", code),
        folder="/",
        record=str(place / f"{pod}.record"),
        scratch=str(place / f"{pod}-scratch"),
    )
    return subprocess.Popen([*PROGRAM, encode(confinement).decode()], stdout=subprocess.PIPE)


if __name__ == "__main__":
    main()
