"""The inputs of the next job are transferred to a farm while a job runs there. Home is alpha, the farm is
beta."""

import json
import re
from collections.abc import Iterator

import pytest

from gridmill.testing.hosts import why_no_hosts
from tests.kit.farmland import Farmland
from tests.kit.machines import attempts, messages, state, two_hosts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]
SIZE = 8 * 2**20
"""Two chunks."""
PIPELINE = """
pipeline: early
resources:
  far: {{type: command, site: far, cpus: 1, memory: 256MiB, workers: 1}}
jobs:
  data:
    command: head -c {size} /dev/urandom > $GRIDMILL_OUTPUT/data
  first:
    resource: far
    cpus: 1
    memory: 200MiB
    command: while [ ! -e '{go}' ]; do sleep 0.05; done
  next:
    resource: far
    cpus: 1
    memory: 200MiB
    needs: [data]
    command: wc -c < $GRIDMILL_INPUT_DATA/data
"""


@pytest.fixture(scope="module")
def land() -> Iterator[Farmland]:
    with two_hosts() as (net, shared):
        yield Farmland(net, shared)


def pod_messages(land: Farmland) -> str:
    """What the deployments show about their pods; empty while no control node answers."""
    shown = land.gridmill("list", "deployments", "--json", check=False)
    found = json.loads(shown) if shown.startswith("[") else []
    return "\n".join(pod["message"] for one in found for pod in one["pods"])


@pytest.mark.long
def test_a_killed_control_node_continues_the_early_transfer(land: Farmland) -> None:
    land.configure("rate=1MiB")
    go = land.shared / "early.go"
    land.detach(PIPELINE.format(size=SIZE, go=go), "early")
    land.wait(
        lambda: bool(re.search(r"job next: (5[1-9]|[6-9]\d)|are transferred", pod_messages(land))),
        "half of the inputs is transferred",
    )
    land.kill(land.alpha, "up")
    land.configure("rate=100MiB")
    land.control()
    land.wait(
        lambda: "the inputs of job next are transferred" in pod_messages(land), "all inputs are transferred"
    )
    go.touch()
    view: dict[str, object] = {}

    def is_over() -> bool:
        view.update(json.loads(land.gridmill("status", "early-1", "--json")))
        return state(view) in ("succeeded", "failed")

    land.wait(is_over, "the run ends")
    assert state(view) == "succeeded", messages(view)
    assert attempts(view) == [1, 1, 1]
    [transfers] = [
        one["attempts"][0]["transfers"]
        for one in view["jobs"]  # type: ignore[attr-defined]
        if one["job"]["job"]["name"] == "next"
    ]
    assert transfers["upload"]["transferred_bytes"] == 0
    assert transfers["early"]["transferred_bytes"] <= SIZE // 2  # the killed control node sent the rest
    assert str(SIZE) in land.gridmill("logs", "early-1", "next")
