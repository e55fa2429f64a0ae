"""The line to a farm is cut for a minute, which is longer than anybody waits for an answer, in each phase.

Takes 40 minutes, as both the farm's own port and SSH are tried: `make soak` runs it.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gridmill.testing.hosts import Host, why_no_hosts
from tests.e2e.test_cluster_survives import CARRY, FAST, SLOW, Carried, answers, silent
from tests.kit import sshd as ssh
from tests.kit.behind_ssh import go_behind
from tests.kit.farmland import FARM, STORAGE, Farmland
from tests.kit.machines import PROGRAM, attempts, messages, state, two_hosts
from tests.kit.objectstore import HOW_TO_GET_IT, KEYS, make_bucket, object_store

CUT_SECONDS = 60.0
LEASE_SECONDS = 75.0


pytestmark = [
    pytest.mark.e2e,
    pytest.mark.soak,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]


class Owner(Farmland):
    """Whose control node has a bucket's credentials."""

    def control(self, *words: str, **settings: str) -> None:
        super().control(*words, **KEYS, **settings)


@pytest.fixture(scope="module", params=["direct", "ssh"])
def whole(request: pytest.FixtureRequest) -> Iterator[Owner]:
    if request.param == "ssh" and not ssh.is_installed():
        pytest.skip(ssh.HOW_TO_GET_IT)
    with two_hosts() as (net, shared):
        land = Owner(net, shared)
        if request.param == "ssh":
            go_behind(land)
        yield land


@pytest.fixture
def land(whole: Owner) -> Iterator[Owner]:
    """After each test nothing runs at the farm, and the lines are there."""
    yield whole
    for host in (whole.alpha, whole.beta):
        host.connect(True)
    whole.clear()


@contextmanager
def cut(land: Owner, host: Host) -> Iterator[None]:
    """That host is cut off for a minute, in which the block is done; then all answer again."""
    host.connect(False)
    until = time.monotonic() + CUT_SECONDS
    try:
        yield
        land.wait(lambda: time.monotonic() >= until, "the minute is over")
    finally:
        host.connect(True)
    began = time.monotonic()
    answers(land)
    print(f"answers {time.monotonic() - began:.1f} s after the cut")


def no_other_attempt(land: Owner, name: str) -> None:
    view = json.loads(land.gridmill("status", f"{name}-1", "--json"))
    assert (state(view), attempts(view)) == ("succeeded", [1] * len(attempts(view))), messages(view)


def test_while_it_is_joined(land: Owner) -> None:
    [tenant] = json.loads(land.on_farm("env", f"GRIDMILL_HOME={FARM}", *PROGRAM, "farm", "tenants", "--json"))
    said = land.on_farm("env", f"GRIDMILL_HOME={FARM}", *PROGRAM, "farm", "rotate", tenant["name"])
    line = said.partition("--join ")[2].split()[0]
    words = ("add", "cluster", "far", "--controller", land.controller, "--join", line)
    with cut(land, land.beta):
        told = land.gridmill(*words, check=False)
        assert "does not answer" in told
    land.gridmill(*words)
    land.ended_well(land.waiting("joined"), "beta")


def test_while_it_is_deployed(land: Owner) -> None:
    with cut(land, land.beta):
        land.wait(lambda: "does not answer" in land.gridmill("status"), "home sees it")
        text = CARRY.replace("NAME", "asked").replace("MARKS", str(land.shared / "asked"))
        process = land.run(text, "asked")
    (land.shared / "asked.go").touch()
    land.ended(process, "asked")
    no_other_attempt(land, "asked")


def test_while_its_pods_come_up(land: Owner) -> None:
    text = CARRY.replace("NAME", "coming").replace("MARKS", str(land.shared / "coming"))
    process = land.run(text, "coming")
    land.wait(lambda: '"far' in land.gridmill("list", "deployments", "--json"), "it is asked for")
    with cut(land, land.beta):
        (land.shared / "coming.go").touch()
    land.ended(process, "coming")
    no_other_attempt(land, "coming")


@pytest.mark.parametrize("who", ["alpha", "beta"])
@pytest.mark.parametrize("by", ["", "by a bucket "])
def test_while_data_is_carried(land: Owner, who: str, by: str) -> None:
    with object_store(land.net.gateway) as endpoint:
        if endpoint is None:
            pytest.skip(HOW_TO_GET_IT)
        make_bucket(endpoint, "exchange")
        land.gridmill(
            "configure", "site", "far", "--export", "s3://exchange/e", "--endpoint", endpoint, "--set", SLOW
        )
        name = f"{who}{'bucket' if by else 'direct'}"
        run = Staged(land, name) if by else Carried(land, name)
        for way in ("to", "from"):
            run.wait_half(f"{by}{way}")
            with cut(land, getattr(land, who)):
                pass
            land.configure(FAST)
            if way == "to":
                run.wait_begun()
                land.configure(SLOW)
                run.go()
        run.wait_right()


class Staged(Carried):
    """By a bucket."""

    TEXT = CARRY.replace("far, cpus: 1", "far, staging: export, cpus: 1")


class Less(Carried):
    """10 MiB each way."""

    TEXT = CARRY.replace("20971520", "10485760")


class LessStaged(Carried):
    """10 MiB each way, by a bucket."""

    TEXT = Staged.TEXT.replace("20971520", "10485760")


@contextmanager
def thin(host: Host, rate: str) -> Iterator[None]:
    """Its line carries no more, either way."""
    ways = (("tc",), host._cable), (("nsenter", "-t", str(host.init), "-n", "--", "tc"), "eth0")
    for tc, line in ways:
        words = (*tc, "qdisc", "add", "dev", line, "root", "tbf", "rate", rate, "burst", "32kb")
        subprocess.run([*words, "latency", "400ms"], check=True)
    try:
        yield
    finally:
        for tc, line in ways:
            subprocess.run([*tc, "qdisc", "del", "dev", line, "root"], check=True)


@pytest.mark.skipif(shutil.which("tc") is None, reason="no tc: apt-get install iproute2")
def test_where_the_line_is_thin_messages_do_not_wait_behind_data(land: Owner) -> None:
    before = land.said("up").count("does not answer")
    with thin(land.alpha, "1mbit"):
        run = Less(land, "thin")
        run.go()
        run.wait_right()
    assert land.said("up").count("does not answer") == before, land.said("up")


@pytest.mark.skipif(shutil.which("tc") is None, reason="no tc: apt-get install iproute2")
def test_where_the_line_to_a_bucket_is_thin_it_gets_there(land: Owner) -> None:
    with object_store(land.net.gateway) as endpoint:
        if endpoint is None:
            pytest.skip(HOW_TO_GET_IT)
        make_bucket(endpoint, "exchange")
        land.gridmill("configure", "site", "far", "--export", "s3://exchange/e", "--endpoint", endpoint)
        land.configure(FAST)
        with thin(land.alpha, "1500kbit"):
            run = LessStaged(land, "thinbucket")
            run.go()
            run.wait_right()


def test_while_it_runs_and_as_it_ends(land: Owner) -> None:
    run = land.waiting("runs")
    with cut(land, land.beta):
        run.go()
    land.ended_well(run, "beta")


def test_while_it_is_given_back(land: Owner) -> None:
    run = land.waiting("given")
    land.beta.connect(False)
    silent(land)
    land.beta.connect(True)
    answers(land)
    land.ended_well(run, "beta")
    with cut(land, land.beta):
        for one in json.loads(land.gridmill("list", "deployments", "--json")):
            land.gridmill("remove", "deployment", one["id"], check=False)
    land.clear()
    left = f"find {land.root_there()} -type f; find {STORAGE}/.coming -type f || true"
    land.wait(
        lambda: "No such" in (found := land.on_farm("bash", "-c", left)) or not found, "nothing is left"
    )


def test_nothing_runs_twice_where_the_controller_goes_after_the_line(land: Owner) -> None:
    """Pods that counted the lease from the controller's end would be there 10 s longer than home waits."""
    land.configure(f"lease={LEASE_SECONDS:g}s")
    run = land.waiting("gone")
    land.beta.connect(False)
    until = time.monotonic() + LEASE_SECONDS - 5.0
    land.wait(lambda: time.monotonic() >= until, "the lease is nearly over")
    land.kill(land.beta, "farm")
    land.wait(lambda: "was lost" in land.said(run.name), "home has given it up")
    assert land.on_farm("bash", "-c", "pgrep -af '[g]ridmill.pod|[u]ntil ' || true").strip() == ""
    land.beta.connect(True)
    land.farm_up()
    land.configure("lease=")
    run.go()
    view = land.ended(run.process, run.name)
    assert (state(view), attempts(view)) == ("succeeded", [2]), messages(view)
    assert "twice" not in run.hosts
