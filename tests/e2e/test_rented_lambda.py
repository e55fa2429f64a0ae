"""A job on a machine of Lambda Cloud, against the simulated Lambda Cloud with real machines."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.bootstrap.node import EmbeddedNode, embed
from gridmill.declarations import read_pipeline
from gridmill.domain.lease import LeaseState, TryState
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import FINISHED_RUNS, RunState
from gridmill.settings import Settings, read_settings
from gridmill.testing.cloud.lambda_cloud.simulation import LambdaSimulation, simulated_lambda
from gridmill.testing.cloud.namespace_machines import NamespaceMachines, why_no_machines
from tests.e2e.conftest import PATIENCE_SECONDS, eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_machines()), reason=why_no_machines() or "there are machines"),
]
PIPELINE = """
pipeline: p
resources:
  burst:
    type: command
    site: lambda
    cpus: 1
    memory: 256MiB
    keep: 0s
    settings: {max_price: "5", region: us-EXTRA}
jobs:
  one: {command: "seq 200000 > $GRIDMILL_OUTPUT/in"}
  two:
    resource: burst
    needs: [one]
    command: "tac $GRIDMILL_INPUT_ONE/in > $GRIDMILL_OUTPUT/out"
"""


@pytest.fixture
def simulation() -> Iterator[LambdaSimulation]:
    with simulated_lambda(host=NamespaceMachines()) as running:
        running.faults.throttling = True
        yield running


@pytest.fixture
def settings() -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="gml", ignore_cleanup_errors=True) as name:
        home = Path(name) / "home"
        home.mkdir()
        yield read_settings({"GRIDMILL_HOME": str(home), "GRIDMILL_GRACE": "1", "GRIDMILL_OBSERVE": "0.2"})


@pytest.fixture
def node(settings: Settings, simulation: LambdaSimulation) -> Iterator[EmbeddedNode]:
    opened = embed(settings)
    opened.grid.add_secret("lambda-key", simulation.api_key)
    given = {
        "provider": "lambda",
        "api_key": "lambda-key",
        "endpoint_url": simulation.endpoint_url,
        "python": sys.executable,
    }
    opened.grid.add_site(Site(name="lambda", kind=SiteKind.CLOUD, settings=given))
    yield opened
    opened.close()


def _start(node: EmbeddedNode, settings: Settings, extra: str = "") -> str:
    project = settings.home.parent / "project"
    project.mkdir(exist_ok=True)
    (project / "pipeline.yaml").write_text(PIPELINE.replace("EXTRA", extra))
    return node.grid.start_run(read_pipeline(project / "pipeline.yaml")).run.id


def _wait_for_end(node: EmbeddedNode, run: str) -> None:
    assert eventually(lambda: node.grid.run(run).run.state in FINISHED_RUNS, PATIENCE_SECONDS)


def test_a_job_runs_on_a_machine_of_lambda_and_nothing_is_left(
    node: EmbeddedNode, settings: Settings, simulation: LambdaSimulation
) -> None:
    run = _start(node, settings, ", accept_no_self_end: true")
    _wait_for_end(node, run)
    view = node.grid.run(run)
    two = next(one for one in view.jobs if one.job.job.name == "two")
    assert view.run.state is RunState.SUCCEEDED, two.job.message
    output = settings.root / two.artifacts[0].output.uri / "out"
    assert output.read_text().split()[:2] == ["200000", "199999"]
    assert eventually(lambda: not simulation.running(), PATIENCE_SECONDS)
    [lease] = [one.lease for one in node.grid.leases().items]
    assert lease.provider == "lambda"

    def is_returned() -> bool:
        [one] = node.grid.leases().items
        return one.lease.state is LeaseState.CLOSED or one.lease.tries[-1].state is TryState.ENDED

    assert eventually(is_returned, PATIENCE_SECONDS)
    assert eventually(lambda: not simulation.leftovers(), PATIENCE_SECONDS), "the SSH key is deleted"


def test_a_machine_that_cannot_end_itself_is_not_rented_unless_that_is_accepted(
    node: EmbeddedNode, settings: Settings, simulation: LambdaSimulation
) -> None:
    run = _start(node, settings)
    _wait_for_end(node, run)
    two = next(one for one in node.grid.run(run).jobs if one.job.job.name == "two")
    assert two.job.message is not None
    assert "accept_no_self_end" in two.job.message
    assert "launchInstance" not in {action for _, _, action in simulation.requests}
