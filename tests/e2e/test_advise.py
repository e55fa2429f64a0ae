"""Advice on a prediction whose workers sleep: from probes, from one run, from several."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.domain.advice import Bottleneck
from gridmill.errors import ConflictError, InputError, NotFoundError
from gridmill.sdk.client import Client, connect

pytestmark = pytest.mark.e2e

PIPELINE = """
pipeline: sleepy
parameters: {workers: 1}
jobs:
  points:
    dataset:
      sql: >
        select i as x, i as y, case when i < 80 then 'train' when i < 100 then 'validation' else 'rest' end
          as split
        from range(2148) as rows(i) order by i
      label: {column: y}
  model:
    training: {dataset: points, model: custom, script: "code.py:fit", predict: "code.py:predict"}
  rest:
    prediction: {dataset: points, models: [model], split: rest, workers: "${workers}", trust: true}
"""
CODE = """
import time


def fit(data):
    return {}


def predict(folder, inputs):
    time.sleep(len(inputs) * 0.004)
    return inputs[:, 0]
"""
WORK_SECONDS = 8.192


@pytest.fixture
def file(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (project / "code.py").write_text(CODE)
    path = project / "pipeline.yaml"
    path.write_text(PIPELINE)
    return path


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with connect(tmp_path / "home") as made:
        yield made


@pytest.mark.long
def test_advice_after_probes_and_after_runs(client: Client, file: Path) -> None:
    with pytest.raises(NotFoundError, match="no job"):
        client.advise("sleepy/rest")
    client.run(file, only=("model",), check=True)  # by its name the pipeline is known then
    with pytest.raises(ConflictError, match="no attempt") as none:
        client.advise("sleepy/rest")
    assert "--probe" in none.value.hint
    with pytest.raises(InputError, match="has no workers"):
        client.advise("sleepy/model")
    with pytest.raises(InputError, match="is not the name of a job"):
        client.advise("sleepy")

    told: list[int] = []
    probed = client.advise("sleepy/rest", probe=True, on_probe=lambda workers, share: told.append(workers))
    assert told[:2] == [1, 8]
    assert len(told) <= 3
    assert probed.bound == Bottleneck.WAITING
    assert 0.5 * WORK_SECONDS < probed.work_seconds < 4 * WORK_SECONDS, "a busy machine takes longer"
    assert probed.measured[0].share < 1
    assert all(one.probe for one in probed.measured)
    assert not client.grid.artifacts(name="sleepy/rest").items
    assert client.status("sleepy").run.probe == ""

    for count, workers in enumerate((1, 4), 1):
        client.run(file, set={"workers": workers}, force=True, check=True)
        found = client.advise("sleepy/rest")
        assert sum(one.share == 1.0 and one.workers == workers for one in found.measured) >= 1
        assert len(client.grid.artifacts(name="sleepy/rest").items) == count
    assert len({one.workers for one in found.measured}) >= 3
    assert found.probes == ()
    four = found.forecast(4)
    assert four is not None
    assert four.low <= four.speedup <= four.high
    assert four.speedup > 1.1
