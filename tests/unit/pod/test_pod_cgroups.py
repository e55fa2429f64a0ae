import signal
from pathlib import Path

import pytest

from gridmill.domain.amounts import MIB
from gridmill.pod import outcome
from gridmill.pod.cgroups import AttemptGroup, GroupUse, _limit_memory, read_hierarchies
from gridmill.pod.limit_events import LimitEvents
from gridmill.pod.limits import AttemptMeter, shortage_in
from gridmill.pod.outcome import MemoryShortage

HYBRID_MOUNTS = """\
30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def test_a_hybrid_machine():
    found = read_hierarchies(HYBRID_MOUNTS, "4:memory:/a/b\n1:cpu,cpuacct:/\n0::/c\n")
    assert found.unified == Path("/sys/fs/cgroup/unified/c")
    assert found.v1["memory"] == Path("/sys/fs/cgroup/memory/a/b")
    assert found.v1["cpu"] == found.v1["cpuacct"] == Path("/sys/fs/cgroup/cpu,cpuacct")


def test_version_2_alone():
    mounts = "26 20 0:24 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    found = read_hierarchies(mounts, "0::/user.slice/user-1000.slice/user@1000.service/app.slice\n")
    assert found.unified == Path("/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice")
    assert found.v1 == {}


def test_a_container_that_sees_only_its_part():
    mounts = "32 30 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    found = read_hierarchies(mounts, "4:memory:/docker/abc/inner\n")
    assert found.v1["memory"] == Path("/sys/fs/cgroup/memory/inner")


def group(folder):
    return AttemptGroup(memory=folder, tracker=folder, cpuacct=None, events=LimitEvents(folder))


def test_figures_of_version_2(tmp_path):
    (tmp_path / "memory.stat").write_text(f"anon {3 * MIB}\nfile {9 * MIB}\nshmem {MIB}\n")
    (tmp_path / "memory.events").write_text("low 0\nmax 7\noom 1\noom_kill 2\n")
    (tmp_path / "memory.peak").write_text(f"{8 * MIB}\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    found = group(tmp_path)
    assert found.use() == GroupUse(used_bytes=4 * MIB, cached_bytes=8 * MIB, shared_bytes=MIB)
    assert found.oom_kills() == 2
    assert found.highest_bytes() == 8 * MIB
    assert found.cpu_seconds() == 1.5


def test_figures_of_version_1(tmp_path):
    (tmp_path / "memory.stat").write_text(
        f"cache 1\nrss 2\ntotal_rss {3 * MIB}\ntotal_cache {7 * MIB}\ntotal_shmem {MIB}\n"
    )
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (tmp_path / "memory.max_usage_in_bytes").write_text(f"{8 * MIB}\n")
    found = group(tmp_path)
    assert found.use() == GroupUse(used_bytes=4 * MIB, cached_bytes=6 * MIB, shared_bytes=MIB)
    assert (found.oom_kills(), found.highest_bytes()) == (1, 8 * MIB)
    assert found.cpu_seconds() is None


def test_a_group_that_is_gone_has_no_figures(tmp_path):
    found = group(tmp_path / "gone")
    assert (found.use(), found.oom_kills()) == (GroupUse(used_bytes=0, cached_bytes=0), 0)
    assert (found.pids(), found.kill()) == ([], True)
    assert found.remove()


def test_only_an_attempt_is_killed_as_a_whole(tmp_path):
    """A pod's group holds several attempts: one that is over its limit must not take the others with it."""
    for name in ("memory.max", "memory.oom.group", "memory.swap.max"):
        for folder in (tmp_path, tmp_path / "p-1.j.1"):
            folder.mkdir(exist_ok=True)
            (folder / name).touch()
    assert group(tmp_path / "p-1.j.1").limit(512 * MIB)
    _limit_memory(tmp_path, 1024 * MIB)
    assert (tmp_path / "p-1.j.1/memory.oom.group").read_text() == "1"
    assert (tmp_path / "memory.oom.group").read_text() == "0"


def version_1(peak_mib):
    limit = {"memory.limit_in_bytes": f"{512 * MIB}\n"}
    return {**limit, "memory.max_usage_in_bytes": f"{peak_mib * MIB}\n"}


@pytest.mark.parametrize(
    ("limit", "used", "files", "shortage"),
    [
        (500, 10, {"memory.max": 512 * MIB, "memory.events.local": "oom 1"}, MemoryShortage.ATTEMPT),
        (100, 80, {"memory.max": 512 * MIB, "memory.events.local": "oom 1"}, MemoryShortage.ATTEMPT),
        (100, 10, {"memory.max": 512 * MIB, "memory.events.local": "oom 1"}, MemoryShortage.POD),
        (100, 80, {"memory.max": 512 * MIB, "memory.events.local": "oom 0"}, MemoryShortage.MACHINE),
        (100, 80, {"memory.max": "max", "memory.events.local": "oom 0"}, MemoryShortage.MACHINE),
        (100, 10, version_1(512), MemoryShortage.POD),
        (100, 80, version_1(400), MemoryShortage.MACHINE),
        (100, 80, {"memory.limit_in_bytes": 2**63 - 4096}, MemoryShortage.MACHINE),
    ],
)
def test_the_group_that_holds_the_pod_tells_whose_memory_ran_out(
    tmp_path, monkeypatch, limit, used, files, shortage
):
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(outcome, "_counter", lambda: tmp_path / "memory.events")
    assert shortage_in(outcome.outer_group(), limit * MIB, used * MIB, alone=False) is shortage
    if shortage is MemoryShortage.POD:
        assert shortage_in(outcome.outer_group(), limit * MIB, 0, alone=True) is MemoryShortage.ATTEMPT


def test_a_limit_further_up_holds_the_pod_too(tmp_path, monkeypatch):
    step = tmp_path / "step"
    step.mkdir()
    (step / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    for name, text in version_1(512).items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(outcome, "_counter", lambda: step / "memory.oom_control")
    assert outcome.outer_group() == outcome.OuterGroup(limit_bytes=512 * MIB, was_full=True)


@pytest.mark.parametrize(("oom", "shortage"), [(3, MemoryShortage.MACHINE), (4, MemoryShortage.POD)])
def test_version_2_tells_of_the_pods_limit(tmp_path, oom, shortage):
    (tmp_path / "memory.events.local").write_text("oom 3\n")
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "memory.events").write_text("oom 0\noom_kill 0\n")
    events = LimitEvents(folder, LimitEvents(tmp_path))
    found = AttemptGroup(memory=folder, tracker=folder, cpuacct=None, pod=tmp_path, events=events)
    meter = AttemptMeter(512 * MIB, found, 0.0)
    assert meter.sample([], 0.1) is False
    (tmp_path / "memory.events.local").write_text(f"oom {oom}\n")
    (folder / "memory.events").write_text("oom 0\noom_kill 1\n")
    (tmp_path / "memory.events").write_text(f"oom {oom}\n")
    meter.ended(1, 9)
    assert meter.shortage is shortage


def test_a_peak_between_two_samples_is_the_kernels_without_files(tmp_path):
    (tmp_path / "memory.stat").write_text(f"anon {90 * MIB}\nfile {50 * MIB}\nshmem 0\n")
    (tmp_path / "memory.peak").write_text(f"{150 * MIB}\n")
    meter = AttemptMeter(512 * MIB, group(tmp_path), 0.0)
    for number in range(4):
        meter.sample([1], number / 10)
    meter.finish()
    assert meter.peak_bytes == 100 * MIB


@pytest.mark.parametrize(
    ("files", "shortage"),
    [
        ({"memory.events": "max 7\noom 0\noom_kill 0\n"}, None),
        ({"memory.events": "max 7\noom 1\noom_kill 1\n"}, MemoryShortage.ATTEMPT),
        ({"memory.events": "max 0\noom 0\noom_kill 1\n"}, MemoryShortage.MACHINE),
        ({"memory.oom_control": "oom_kill 0\n", **version_1(512)}, None),
        ({"memory.oom_control": "oom_kill 1\n", **version_1(512)}, MemoryShortage.ATTEMPT),
        ({"memory.oom_control": "oom_kill 1\n", **version_1(400)}, MemoryShortage.MACHINE),
    ],
)
def test_a_process_lost_to_memory_ends_the_attempt_while_it_runs(tmp_path, files, shortage):
    meter = AttemptMeter(512 * MIB, group(tmp_path), 0.0)
    (tmp_path / "memory.stat").write_text("anon 1\n")
    assert not meter.sample([1], 0.1)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert meter.sample([1], 0.2) is (shortage is not None)
    assert meter.shortage is shortage


@pytest.mark.parametrize(
    "files",
    [
        {"memory.events": "max 7\noom 1\noom_kill 1\n", "memory.oom.group": "1"},
        {"memory.oom_control": "oom_kill 1\n", **version_1(512)},
    ],
)
@pytest.mark.parametrize(("status", "shortage"), [(0, None), (signal.SIGKILL.value, MemoryShortage.ATTEMPT)])
def test_a_service_replaces_a_process_lost_to_memory_itself(tmp_path, files, status, shortage):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    meter = AttemptMeter(512 * MIB, group(tmp_path), 0.0)
    meter.replace_killed()
    if "memory.oom.group" in files:
        assert (tmp_path / "memory.oom.group").read_text() == "0"
    assert not meter.sample([1], 0.1)
    meter.ended(1, status)
    assert meter.shortage is shortage


def test_a_group_with_another_limit_still_loses_processes_one_by_one(tmp_path):
    for name in ("memory.max", "memory.oom.group", "memory.swap.max", "memory.events"):
        (tmp_path / name).touch()
    meter = AttemptMeter(512 * MIB, group(tmp_path), 0.0)
    meter.replace_killed()
    assert group(tmp_path).limit(1024 * MIB)
    meter.give(1024 * MIB)
    assert (tmp_path / "memory.oom.group").read_text() == "0"


def test_without_a_cgroup_the_one_that_holds_the_pod_tells_of_a_lost_process(tmp_path, monkeypatch):
    counter = tmp_path / "memory.events"
    counter.write_text("oom 0\noom_kill 3\n")
    (tmp_path / "memory.events.local").write_text("oom 1\n")
    (tmp_path / "memory.max").write_text(f"{2**40}\n")
    monkeypatch.setattr(outcome, "_counter", lambda: counter)
    mine, other, short = (AttemptMeter(2**40, None, 0.0) for _ in range(3))
    gone = 2**22 + 1
    assert not mine.sample([gone, gone + 1], 0.1)
    assert not other.sample([gone + 2], 0.1)
    counter.write_text("oom 1\noom_kill 4\n")
    assert mine.sample([gone], 0.2)
    assert not other.sample([gone + 2], 0.2)
    short.ended(gone, 0)
    assert (mine.shortage, other.shortage, short.shortage) == (MemoryShortage.ATTEMPT, None, None)


@pytest.mark.parametrize("looks", [1, 4])
def test_a_killed_process_that_takes_long_to_end_still_tells_of_the_memory(tmp_path, monkeypatch, looks):
    counter = tmp_path / "memory.events"
    counter.write_text("oom 0\noom_kill 3\n")
    (tmp_path / "memory.events.local").write_text("oom 1\n")
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    monkeypatch.setattr(outcome, "_counter", lambda: counter)
    mine, other = (AttemptMeter(2**30, None, 0.0, lambda: True) for _ in range(2))
    pid = 2**22 + 1
    assert not mine.sample([pid], 0.1)
    assert not other.sample([pid + 1], 0.1)
    counter.write_text("oom 1\noom_kill 4\n")
    for look in range(looks):
        assert not mine.sample([pid], 0.2 + look / 20)
        assert not other.sample([pid + 1], 0.2 + look / 20)
    mine.ended(pid, int(signal.SIGKILL))
    other.sample([pid + 1], 60.0)
    other.ended(pid + 1, int(signal.SIGKILL))
    assert (mine.shortage, other.shortage) == (MemoryShortage.ATTEMPT, None)


def test_without_any_counter_the_machines_tells_of_a_killed_job(tmp_path, monkeypatch):
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("oom_kill 3\n")
    monkeypatch.setattr(outcome, "_counter", lambda: None)
    monkeypatch.setattr(outcome, "_VMSTAT", vmstat)
    by_itself, by_kernel = AttemptMeter(0, None, 0.0), AttemptMeter(0, None, 0.0)
    by_itself.ended(1, int(signal.SIGKILL))
    vmstat.write_text("oom_kill 4\n")
    by_kernel.ended(1, int(signal.SIGKILL))
    assert (by_itself.shortage, by_kernel.shortage) == (None, MemoryShortage.MACHINE)
