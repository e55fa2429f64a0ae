from pathlib import Path

from gridmill.model.amounts import MIB
from gridmill.pod.cgroups import AttemptGroup, read_hierarchies

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
    return AttemptGroup(memory=folder, tracker=folder, cpuacct=None)


def test_figures_of_version_2(tmp_path):
    (tmp_path / "memory.stat").write_text(f"anon {3 * MIB}\nfile {9 * MIB}\nshmem {MIB}\n")
    (tmp_path / "memory.events").write_text("low 0\nmax 7\noom 1\noom_kill 2\n")
    (tmp_path / "memory.peak").write_text(f"{8 * MIB}\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    found = group(tmp_path)
    assert found.used_bytes() == 4 * MIB
    assert found.oom_kills() == 2
    assert found.highest_bytes() == 8 * MIB
    assert found.cpu_seconds() == 1.5


def test_figures_of_version_1(tmp_path):
    (tmp_path / "memory.stat").write_text(f"cache 1\nrss 2\ntotal_rss {3 * MIB}\ntotal_shmem {MIB}\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (tmp_path / "memory.max_usage_in_bytes").write_text(f"{8 * MIB}\n")
    found = group(tmp_path)
    assert (found.used_bytes(), found.oom_kills(), found.highest_bytes()) == (4 * MIB, 1, 8 * MIB)
    assert found.cpu_seconds() is None


def test_a_group_that_is_gone_has_no_figures(tmp_path):
    found = group(tmp_path / "gone")
    assert (found.used_bytes(), found.oom_kills(), found.pids(), found.kill()) == (0, 0, [], True)
    assert found.remove()
