"""At AWS Batch: a training and a prediction in parts, and a control node that is killed while a job runs."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from gridmill.declarations import read_pipeline
from gridmill.domain.states import RunState
from gridmill.testing.cloud.aws_batch.simulation import AwsBatchSimulation
from tests.e2e.conftest import PATIENCE_SECONDS, Place
from tests.e2e.test_batch_aws import AwsHome, aws
from tests.e2e.test_batch_site import server
from tests.kit.objectstore import make_bucket

__all__ = ["aws", "server"]
pytestmark = pytest.mark.e2e
LEARNING = """
pipeline: p
resources:
  trainers: {type: training, site: batch, cpus: 1, memory: 1GiB}
  swarm: {type: prediction, site: batch, cpus: 1, memory: 1GiB, workers: 2}
jobs:
  load: {sink: {source: rows.csv}}
  features:
    dataset: {basis: {table: load, time: t, entity: e}, lags: [{column: y, steps: [1]}], buckets: 1,
              label: {column: y, horizon: 1h}, split: {validation: 0.2, test: 0.2}}
  model: {resource: trainers, training: {dataset: features, model: linear}}
  there:
    resource: swarm
    prediction: {dataset: features, models: [model], split: null, shards: 2, workers: 2}
"""


@pytest.fixture
def home(tmp_path: Path, server: str, aws: AwsBatchSimulation) -> Iterator[AwsHome]:
    made = AwsHome(tmp_path, server, aws, memory="3GiB")
    yield made
    made.close()


@pytest.mark.long
def test_a_training_and_a_prediction_in_parts_at_aws(home: AwsHome) -> None:
    project = home.folder / "project"
    project.mkdir()
    rows = (
        f"2026-01-{day:02}T{hour:02}:00:00,{entity},{(day * hour) % 7}\n"
        for entity in "ab"
        for day in range(1, 6)
        for hour in range(24)
    )
    (project / "rows.csv").write_text(f"t,e,y\n{''.join(rows)}")
    (project / "pipeline.yaml").write_text(LEARNING)
    run = home.node.grid.start_run(read_pipeline(project / "pipeline.yaml")).run.id
    view = home.ended(run)
    jobs = {one.job.job.name: one for one in view.jobs}
    assert view.run.state is RunState.SUCCEEDED, [one.job.message for one in view.jobs]
    assert len(jobs["there"].parts) == 2
    assert len(home.aws.jobs()) >= 3  # the training and two parts
    folder = home.settings.root / jobs["there"].artifacts[0].output.uri
    made = sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))
    assert made == jobs["features"].artifacts[0].output.rows > 0


def test_a_control_node_that_is_killed_in_mid_job_continues_with_the_job(
    place: Place, server: str, aws: AwsBatchSimulation
) -> None:
    bucket = f"batch-{uuid4().hex}"
    make_bucket(server, bucket)
    settings = {
        "service": "aws",
        "region": "us-east-1",
        "queue": "q",
        "image": "gridmill:test",
        "endpoint_url": aws.endpoint_url,
        "bucket": f"s3://{bucket}/x",
        "bucket_endpoint": server,
        "python": sys.executable,
        "cpus": "1",
        "memory": "1GiB",
        "poll": "100ms",
    }
    runs, go = place.folder / "runs", place.folder / "go"
    file = place.write(f"""
pipeline: p
resources:
  burst: {{type: command, site: batch, cpus: 1, memory: 256MiB}}
jobs:
  work:
    resource: burst
    command: |
      echo once >> '{runs}'
      while [ ! -e '{go}' ]; do sleep 0.05; done
      echo done > $GRIDMILL_OUTPUT/out
""")
    place.start("up", "--listen", "off")
    place.meet(place.started[0], lambda: (place.home / "control.lock").exists() and place.node_pid())
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    added = place.gridmill("add", "site", "batch", "--kind", "batch", *words)
    assert added.returncode == 0, added.stderr
    run = place.start("run", file)
    place.wait_for("runs")
    os.kill(place.node_pid(), signal.SIGKILL)
    place.started[0].wait()
    go.touch()  # the job ends while there is no control node
    place.start("up", "--listen", "off")
    _, words_of_run = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, words_of_run
    assert runs.read_text() == "once\n"
    assert len(aws.jobs()) == 1
    assert place.json("show", "run", "p-1")["run"]["state"] == "succeeded"
    assert place.gridmill("down").returncode == 0
