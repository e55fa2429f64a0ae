"""What is written into the control groups of tenants, on machines of version 1 and of version 2."""

from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.confinement import POD_OVERHEAD_BYTES, Confinement, open_files, pod_processes
from gridmill.pod.cgroups import Hierarchies, read_hierarchies
from gridmill.pod.tenant_groups import Machine, TenantGroups, plan_groups, remove_groups

MACHINE = Machine(memory_bytes=10 * GIB, processes=4000, cpus=8)
CONFINEMENT = Confinement(
    user=1_879_100_007,
    farm="gridmill-farm-1",
    pod="d.0",
    capacity=Amounts(cpus=2, memory_bytes=GIB),
    node=Amounts(cpus=8, memory_bytes=8 * GIB),
    command=("true",),
    folder="/",
    record="/r",
    scratch="/s",
)
TOGETHER = """\
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
"""
MEMBER = "4:memory:/a\n3:pids:/a\n2:freezer:/\n1:cpu,cpuacct:/\n"


def written(hierarchies: Hierarchies, confinement: Confinement = CONFINEMENT) -> dict[str, str]:
    planned = plan_groups(hierarchies, confinement, MACHINE)
    return {f"{one.folder}/{name.rstrip('?')}": text for one in planned for name, text in one.writes}


def test_version_1_limits_all_tenants_and_each_pod() -> None:
    hierarchies = read_hierarchies(TOGETHER, MEMBER)
    memory = str(GIB + POD_OVERHEAD_BYTES)
    farm, pod = "gridmill-farm-1", "gridmill-farm-1/user-1879100007/d.0"
    assert written(hierarchies) == {
        f"/sys/fs/cgroup/memory/a/{farm}/memory.limit_in_bytes": str(9 * GIB),
        f"/sys/fs/cgroup/memory/a/{pod}/memory.limit_in_bytes": memory,
        f"/sys/fs/cgroup/memory/a/{pod}/memory.memsw.limit_in_bytes": memory,
        f"/sys/fs/cgroup/pids/a/{farm}/pids.max": "3000",
        f"/sys/fs/cgroup/pids/a/{pod}/pids.max": "750",
        f"/sys/fs/cgroup/cpu,cpuacct/{farm}/cpu.shares": "8192",
        f"/sys/fs/cgroup/cpu,cpuacct/{pod}/cpu.shares": "2048",
        f"/sys/fs/cgroup/cpu,cpuacct/{pod}/cpu.cfs_period_us": "100000",
        f"/sys/fs/cgroup/cpu,cpuacct/{pod}/cpu.cfs_quota_us": "215000",
    }
    planned = plan_groups(hierarchies, CONFINEMENT, MACHINE)
    joined = [str(one.folder) for one in planned if one.joined]
    assert joined == [
        f"/sys/fs/cgroup/{tree}/{pod}" for tree in ("memory/a", "pids/a", "cpu,cpuacct", "freezer")
    ]
    assert [str(one.folder) for one in planned if one.handed_over] == joined


@pytest.fixture
def version_2(tmp_path: Path) -> Hierarchies:
    """A machine that hands the controllers down to a slice, in which the farm's service is."""
    (tmp_path / "system.slice/farm.service").mkdir(parents=True)
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "system.slice/cgroup.subtree_control").write_text("cpu io memory pids\n")
    (tmp_path / "system.slice/farm.service/cgroup.subtree_control").write_text("\n")
    return Hierarchies(unified=tmp_path / "system.slice/farm.service", v1={})


def test_version_2_hands_down_and_keeps_the_agent_in_a_group_of_its_own(version_2: Hierarchies) -> None:
    assert version_2.unified is not None
    farm = f"{version_2.unified.parent}/gridmill-farm-1"
    down = "+memory +pids +cpu"
    tenant, pod = f"{farm}/user-1879100007", f"{farm}/user-1879100007/d.0"
    assert written(version_2) == {
        f"{farm}/cgroup.subtree_control": down,
        f"{farm}/memory.max": str(9 * GIB),
        f"{farm}/pids.max": "3000",
        f"{farm}/cpu.weight": "800",
        f"{tenant}/cgroup.subtree_control": down,
        f"{pod}/cgroup.subtree_control": down,
        f"{pod}/memory.max": str(GIB + POD_OVERHEAD_BYTES),
        f"{pod}/memory.swap.max": "0",
        f"{pod}/pids.max": "750",
        f"{pod}/cpu.weight": "200",
        f"{pod}/cpu.max": "215000 100000",
    }
    planned = plan_groups(version_2, CONFINEMENT, MACHINE)
    assert [str(one.folder) for one in planned if one.joined] == [f"{pod}/agent"]
    assert [str(one.folder) for one in planned if one.handed_over] == [pod, f"{pod}/agent"]
    assert TenantGroups(planned).joins == (f"{pod}/agent/cgroup.procs",)


def test_a_machine_without_a_controller_has_no_groups() -> None:
    without = read_hierarchies("\n".join(TOGETHER.splitlines()[1:]), MEMBER)
    assert plan_groups(without, CONFINEMENT, MACHINE) == ()
    assert plan_groups(Hierarchies(v1={}), CONFINEMENT, MACHINE) == ()


def test_whoever_asks_for_nothing_gets_little() -> None:
    """An order without memory or CPUs has no group without a limit."""
    nothing = replace(CONFINEMENT, capacity=Amounts())
    found = written(read_hierarchies(TOGETHER, MEMBER), nothing)
    limits = {Path(path).name: text for path, text in found.items() if "d.0" in path}
    assert limits["memory.limit_in_bytes"] == str(POD_OVERHEAD_BYTES)
    assert limits["pids.max"] == "64"
    assert limits["cpu.shares"] == "2"


def test_the_parts_of_all_pods_leave_processes_to_the_farm() -> None:
    quarter = pod_processes(700, CONFINEMENT)
    assert quarter * 4 <= 525
    assert pod_processes(4_000_000, CONFINEMENT) == 16_384
    assert open_files(1_048_576, 2**63 - 1, 32_768) == 65_536
    assert open_files(20_000, 2**63 - 1, 32_768) == 20_000
    assert open_files(1_048_576, 800_000, 32_768) == 1024
    assert open_files(512, 800_000, 32_768) == 512


def test_groups_are_removed_with_those_above_that_are_empty(tmp_path: Path) -> None:
    farm = tmp_path / "gridmill-farm-1"
    pods = [farm / "user-1" / "a", farm / "user-2" / "b"]
    for pod in pods:
        pod.mkdir(parents=True)
    assert remove_groups([str(pods[0])])
    assert sorted(path.name for path in farm.iterdir()) == ["user-2"]
    assert remove_groups([str(pods[1]), str(pods[0])])
    assert list(tmp_path.iterdir()) == []


def test_a_pod_of_all_cpus_has_no_quota() -> None:
    whole = replace(CONFINEMENT, capacity=Amounts(cpus=8, memory_bytes=64 * MIB))
    assert not any("quota" in path for path in written(read_hierarchies(TOGETHER, MEMBER), whole))
