"""TensorFlow and JAX in gangs, with the packages themselves: they find what they read of a rank's world."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from gridmill.domain.states import RunState
from tests.e2e.conftest import Place
from tests.e2e.test_slurm import Lab
from tests.kit.slurm import HOW_TO_GET_IT, is_installed, slurm_cluster

pytestmark = pytest.mark.e2e

FRAMEWORKS = "GRIDMILL_TEST_FRAMEWORKS"
EXAMPLES = Path(__file__).parents[2] / "examples" / "gang"
PATIENT = 600.0

GANG = """
pipeline: p
jobs:
  j:
    command:
      run: [PYTHON, PROGRAM]
      SIZE
      env: {TF_USE_LEGACY_KERAS: "1", CUDA_VISIBLE_DEVICES: "-1", JAX_PLATFORMS: cpu}
"""

ROLES = """
import os, sys
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
folder = os.environ["GRIDMILL_OUTPUT"]
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    print("serves", resolver.task_type, resolver.task_id, flush=True)
    server.join()
elif resolver.task_type == "evaluator":
    saved = next(tf.train.checkpoints_iterator(folder, min_interval_secs=0.1))
    value = tf.Variable(0.0)
    tf.train.Checkpoint(value=value).restore(saved).expect_partial()
    print("evaluates", float(value.numpy()), "beside", sorted(resolver.cluster_spec().jobs), flush=True)
else:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        there = tf.Variable(0.0)

    @tf.function
    def step():
        there.assign_add(1.0)

    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    tf.train.CheckpointManager(tf.train.Checkpoint(value=there), folder, max_to_keep=1).save()
    print("leads to", float(there.numpy()), flush=True)
"""

JAX = """
import os
import jax
import numpy as np
from jax.experimental import multihost_utils

jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
)
parts = multihost_utils.process_allgather(np.array([jax.process_index() + 1.0]))
print("process", jax.process_index(), "of", jax.process_count(), "sum", float(parts.sum()), flush=True)
"""


@cache
def python_with(package: str) -> str:
    """A Python that has the package: this one, or the one that the variable names."""
    if find_spec(package) is not None:
        return sys.executable
    named = os.environ.get(FRAMEWORKS, "")
    asked = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is None)"
    if not named or subprocess.run([named, "-c", asked], check=False).returncode:
        pytest.skip(
            f"needs {package}: pip install it beside Gridmill, or into an environment whose "
            f"Python {FRAMEWORKS} names"
        )
    return named


def gang_of(place: Place, package: str, program: str, size: str) -> str:
    """What the ranks of a gang with that program say; it succeeds."""
    place.write(program, "program.py")
    words = {"PYTHON": json.dumps(python_with(package)), "PROGRAM": "program.py", "SIZE": size}
    text = GANG
    for word, given in words.items():
        text = text.replace(word, given)
    done = place.gridmill("run", place.write(text), timeout=PATIENT)
    said = place.gridmill("logs", "p-1").stdout
    assert done.returncode == 0, done.stdout + said
    return said


@pytest.mark.parametrize("workers", [2, 3])
def test_kerass_multi_worker_tutorial_runs_as_it_is(place: Place, workers: int) -> None:
    """All are on this host; after each step all have the same weights."""
    said = gang_of(place, "tensorflow", (EXAMPLES / "keras_workers.py").read_text(), f"workers: {workers}")
    found = re.findall(r"\[(\d)\] worker (\d) of (\d): loss (\S+) to (\S+), weights (\S+)", said)
    assert {(rank, index) for rank, index, *_ in found} == {(str(k), str(k)) for k in range(workers)}
    assert {one[2] for one in found} == {str(workers)}
    assert len({one[5] for one in found}) == 1
    assert all(float(last) < float(first) for _, _, _, first, last, _ in found)


def test_a_chief_leads_workers_and_servers_and_an_evaluator_looks_on(place: Place) -> None:
    """The gang ends though its servers never do by themselves."""
    roles = "roles: {chief: 1, worker: 1, ps: 1, evaluator: 1}"
    said = gang_of(place, "tensorflow", ROLES, roles)
    assert "[0] leads to 10.0" in said
    assert all(f"[{rank}] serves {task}" in said for rank, task in enumerate(("worker 0", "ps 0"), 1))
    assert "[3] evaluates 10.0 beside ['chief', 'ps', 'worker']" in said
    assert not place.leftovers()


def test_jax_finds_its_coordinator(place: Place) -> None:
    said = gang_of(place, "jax", JAX, "workers: 2")
    assert all(f"[{rank}] process {rank} of 2 sum 3.0" in said for rank in range(2))


# --- the classic pattern on Slurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """One node, called as this machine is found, with room for several tasks."""
    with slurm_cluster(nodes=1, called="localhost", memory_mib=8000) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        lab = Lab(tmp_path, cluster)
        yield lab
        lab.close()


SERVERS = """
pipeline: p
at: lab
resources:
  tasks: {type: command, site: lab, workers: 3, cpus: 1, memory: 2GiB}
jobs:
  j:
    resource: tasks
    memory: 2GiB
    command:
      run: [PYTHON, PROGRAM]
      workers: 3
      env: {CUDA_VISIBLE_DEVICES: "-1"}
"""


@pytest.mark.skipif(not is_installed(), reason=HOW_TO_GET_IT)
def test_a_server_for_each_of_several_tasks_of_a_node(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The list of nodes and of tasks on each becomes a ClusterSpec; workers learn what a server keeps."""
    python = python_with("tensorflow")
    lab: Lab = request.getfixturevalue("slurm")
    run_id = lab.start(
        SERVERS.replace("PYTHON", json.dumps(python)).replace(
            "PROGRAM", json.dumps(str(EXAMPLES / "slurm_servers.py"))
        )
    )
    view = lab.ended(run_id, PATIENT)
    said = lab.says(run_id)
    assert view.run.state == RunState.SUCCEEDED, f"{view.jobs[0].job.message}\n{said[-4000:]}"
    assert "ps 0: all workers are done" in said
    found = dict(re.findall(r"worker (\d) of 2: weight (\S+)", said))
    assert {index: round(float(weight)) for index, weight in found.items()} == {"0": 3, "1": 3}
