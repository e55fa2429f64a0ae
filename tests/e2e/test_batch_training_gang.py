"""At AWS Batch: a network that two nodes of one job train together with PyTorch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.declarations import read_pipeline
from gridmill.domain.states import RunState
from gridmill.testing.cloud.aws_batch.records import Kind
from gridmill.testing.cloud.aws_batch.simulation import AwsBatchSimulation
from tests.e2e.test_batch_aws import AwsHome, aws
from tests.e2e.test_batch_site import server

__all__ = ["aws", "server"]
pytestmark = pytest.mark.e2e
PIPELINE = """
pipeline: p
resources:
  trainers: {type: training, site: batch, cpus: 1, memory: 1GiB}
jobs:
  load: {sink: {source: rows.csv}}
  features:
    dataset: {basis: {table: load, time: t, entity: e}, lags: [{column: y, steps: [1, 2]}], buckets: 1,
              label: {column: y, horizon: 1h}, split: {validation: 0.2, test: 0.2}}
  model:
    resource: trainers
    training: {dataset: features, model: mlp, workers: 2, hidden: 8, epochs: 1, batch_size: 16}
"""


@pytest.fixture
def home(tmp_path: Path, server: str, aws: AwsBatchSimulation) -> Iterator[AwsHome]:
    aws.add_environment("on-demand", kind=Kind.EC2)
    aws.add_queue("even", "on-demand")
    made = AwsHome(tmp_path, server, aws, queue="even", memory="3GiB")
    yield made
    made.close()


@pytest.mark.long
def test_two_nodes_train_one_network(home: AwsHome) -> None:
    project = home.folder / "project"
    project.mkdir()
    rows = (
        f"2026-01-{day:02}T{hour:02}:00:00,{entity},{(day * hour) % 7}\n"
        for entity in "ab"
        for day in range(1, 3)
        for hour in range(24)
    )
    (project / "rows.csv").write_text(f"t,e,y\n{''.join(rows)}")
    (project / "pipeline.yaml").write_text(PIPELINE)
    run = home.node.grid.start_run(read_pipeline(project / "pipeline.yaml")).run.id
    view = home.ended(run)
    assert view.run.state is RunState.SUCCEEDED, [one.job.message for one in view.jobs]
    [whole] = [one for one in home.aws.jobs() if "#" not in one.id]
    assert len(whole.nodes) == 2
    model = next(one for one in view.jobs if one.job.job.name == "model")
    files = {path.name for path in (home.settings.root / model.artifacts[0].output.uri).rglob("*")}
    assert {"model.json", "weights.safetensors"} <= files
    home.wait(lambda: not home.running(), "all nodes have ended")
