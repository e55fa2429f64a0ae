"""Unix users of a farm's tenants: never given twice, and nothing of them runs on."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.kit.farms import LOCAL, open_folder
from tests.unit.farm.test_farm_rules import order

from gridmill.domain.farm_protocol import DeployRequest
from gridmill.errors import ConflictError, InputError, UnavailableError
from gridmill.farm.certificates import Authority
from gridmill.farm.deployment import TenantDeployment, TenantDeploymentState
from gridmill.farm.deployment_requests import end_pods
from gridmill.farm.disk import FarmDisk
from gridmill.farm.state import Farm
from gridmill.farm.store import RecordStore
from gridmill.farm.tenant import Tenant
from gridmill.farm.unix_users import (
    FIRST_USER,
    UserCounter,
    end_processes,
    first_number,
    living,
    next_number,
    refuse_second,
    refuse_together,
)
from gridmill.settings import Settings

alone = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="root alone starts processes as others: be it",
)


def tenant(user: int | None, name: str = "s") -> Tenant:
    return Tenant(name=name, certificate="", token_hash="", version="0.1.0", added=0, user=user)


def test_a_number_is_never_given_again() -> None:
    assert next_number(UserCounter(next=FIRST_USER + 5), []).next == FIRST_USER + 5  # whoever had 4 is gone
    assert next_number(None, [tenant(FIRST_USER), tenant(FIRST_USER + 2)]).next == FIRST_USER + 3
    assert next_number(UserCounter(next=FIRST_USER), [tenant(FIRST_USER + 2)]).next == FIRST_USER + 3
    assert next_number(None, []).next >= FIRST_USER
    assert all(FIRST_USER <= first_number().next < 2**31 for _ in range(100))


def test_who_joined_where_jobs_had_no_users_is_served_alone() -> None:
    lab, other = tenant(None, "lab"), tenant(FIRST_USER, "other")
    refuse_together("", [lab])
    refuse_together("it is no root", [lab])
    refuse_together("", [other, tenant(FIRST_USER + 1)])
    refuse_second("", [other], "third")
    refuse_second("it is no root", [lab], "lab")
    for one_user in ("", "it is no root"):
        with pytest.raises(InputError, match="one tenant only, which is lab") as told:
            refuse_second(one_user, [lab], "other")
        assert "gridmill farm revoke lab" in told.value.hint
        with pytest.raises(ConflictError, match="files of the revoked tenant lab are being deleted"):
            refuse_second(one_user, [replace(lab, revoked=True)], "other")
        with pytest.raises(InputError, match="one tenant only, which is lab"):
            refuse_second(one_user, [replace(lab, name="gone", revoked=True), lab], "other")
    with pytest.raises(InputError, match=r"lab have no Unix user of their own and could read .* other"):
        refuse_together("", [other, lab])
    with pytest.raises(InputError, match=r"jobs of other can no longer have .*: it is no root") as told:
        refuse_together("it is no root", [other])
    assert "gridmill farm revoke other" in told.value.hint


def test_nobody_but_a_tenant_is_ended() -> None:
    for user in (0, os.getuid(), 1000, 65534):
        with pytest.raises(UnavailableError, match="not the user of a tenant"):
            end_processes(user)
    end_processes(None)


@pytest.fixture
def user() -> Iterator[int]:
    number = first_number().next
    yield number
    end_processes(number)


@alone
def test_all_that_runs_as_a_user_is_ended_and_nothing_else(user: int) -> None:
    mine, others = (started(one) for one in (user, user + 1))
    try:
        assert len(living(user)) == 2
        end_processes(user)
        assert living(user) == []
        assert others.poll() is None
        assert len(living(user + 1)) == 2
    finally:
        end_processes(user + 1)
        mine.wait()
        others.wait()


_BECOME = """
import os, signal, sys, time
user = int(sys.argv[1])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
until = time.monotonic() + 300
print("up", flush=True)
"""
_STOPS = """
while time.monotonic() < until:
    try:
        os.kill(-1, signal.SIGSTOP)
    except OSError:
        pass
"""
_HOPS = """
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
"""


_ESCAPES = """
print("escaped", flush=True)
"""


def hostile(user: int, code: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-I", "-S", "-c", _BECOME + code + _ESCAPES, str(user)]
    one = subprocess.Popen(words, cwd="/", stdout=subprocess.PIPE)
    assert one.stdout is not None
    assert one.stdout.readline() == b"up\n"
    return one


def remains(one: subprocess.Popen[bytes]) -> bytes:
    """What any of them says until none is there."""
    with one:
        assert one.stdout is not None
        return one.stdout.read()


@alone
@pytest.mark.parametrize(
    "code", [_STOPS, _HOPS], ids=["stops who would end it", "is another process each time"]
)
def test_who_resists_is_ended(user: int, code: str) -> None:
    one = hostile(user, code)
    end_processes(user)
    assert remains(one) == b""


@alone
def test_at_the_limit_of_processes_all_are_ended(user: int) -> None:
    hopping = hostile(user, _HOPS)
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))  # which whoever ends them has too
    try:
        end_processes(user)
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, before)
    assert remains(hopping) == b""


_WAITS = """
time.sleep(300)
"""


@alone
def test_a_job_that_hides_how_its_pod_is_ends_with_the_last_of_its_tenant(user: int) -> None:
    with open_folder() as place:
        records, mine = RecordStore(place / "records.db"), tenant(user)
        farm = Farm(
            settings=Settings(home=place, root=place / "storage"),
            records=records,
            authority=Authority(place, time.time()),
            place=LOCAL,
            disk=FarmDisk(place),
        )
        wanted = DeployRequest(orders=(order("d.0"),), lease_seconds=9e9)
        other = TenantDeployment(
            id="e",
            tenant="s",
            number=2,
            request=DeployRequest(orders=(order("e.0"),), lease_seconds=9e9),
            since=0,
        )
        lodging = TenantDeployment(id="d", tenant="s", number=1, request=wanted, since=0).to(
            TenantDeploymentState.UP, 0.0
        )
        records.put(mine, lodging, other.to(TenantDeploymentState.UP, 0.0))
        lock = farm.sandbox_of(mine).settings.home / "pods/d.0/lock"
        lock.parent.mkdir(parents=True)
        lock.touch(mode=0)
        one = hostile(user, _WAITS)
        with pytest.raises(PermissionError):  # something else of it has room
            end_pods(farm, mine, ["d.0"])
        records.remove(other)
        assert one.poll() is None
        end_pods(farm, mine, ["d.0"])
        assert remains(one) == b""
        farm.close()


_FORKS = "trap '' TERM; setsid sh -c 'echo two; exec sleep 1000' & exec sleep 1000"


def started(user: int) -> subprocess.Popen[bytes]:
    """A process and its child, which has left its session."""
    words = ["/bin/sh", "-c", _FORKS]
    one = subprocess.Popen(words, user=user, group=user, extra_groups=[], cwd="/", stdout=subprocess.PIPE)
    assert one.stdout is not None
    assert one.stdout.readline() == b"two\n"
    return one
