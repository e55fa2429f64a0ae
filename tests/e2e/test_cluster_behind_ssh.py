"""A farm that is reached through SSH alone, whose line is cut for a moment in each phase."""

import json
import time
from collections.abc import Iterator

import pytest

from gridmill.testing.hosts import why_no_hosts
from tests.e2e.test_cluster_survives import FAST, SLOW, Carried, answers
from tests.kit import sshd as ssh
from tests.kit.behind_ssh import go_behind, ssh_of_home
from tests.kit.farmland import Farmland
from tests.kit.machines import two_hosts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
    pytest.mark.skipif(not ssh.is_installed(), reason=ssh.HOW_TO_GET_IT),
]
CUT_SECONDS = 5.0


@pytest.fixture(scope="module")
def land() -> Iterator[Farmland]:
    with two_hosts() as (net, shared):
        land = Farmland(net, shared)
        go_behind(land)
        yield land


def cut(land: Farmland) -> None:
    land.beta.connect(False)
    until = time.monotonic() + CUT_SECONDS
    land.wait(lambda: time.monotonic() >= until, "some seconds are over")
    land.beta.connect(True)
    answers(land)


@pytest.mark.long
def test_what_is_cut_for_some_seconds_goes_on_in_each_phase(land: Farmland) -> None:
    land.configure(SLOW)
    run = Carried(land, "moments")
    run.wait_half("to")
    land.wait(lambda: len(ssh_of_home(land)) == 2, "messages do not wait behind data")
    cut(land)
    land.configure(FAST)
    run.wait_begun()
    land.configure(SLOW)
    land.beta.connect(False)
    run.go()
    cut(land)
    run.wait_half("from")
    cut(land)
    land.configure(FAST)
    run.wait_right()
    land.beta.connect(False)
    for one in json.loads(land.gridmill("list", "deployments", "--json")):
        land.gridmill("remove", "deployment", one["id"], check=False)
    cut(land)
    land.clear()
