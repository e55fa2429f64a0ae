"""Gangs on this machine with real processes: they meet, end together, and go on from their checkpoint."""

import json
import re
from pathlib import Path

import pytest

from tests.e2e.conftest import Place, eventually

pytestmark = pytest.mark.e2e

ELASTIC = """
import fcntl, os, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist

shared = Path(sys.argv[1])
rank = int(os.environ["RANK"])
lock = os.open(shared / f"rank-{rank}", os.O_CREAT | os.O_WRONLY)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where this rank runs twice
dist.init_process_group("gloo")
checkpoint = Path(os.environ["GRIDMILL_CHECKPOINTS"]) / "step"
first = int(checkpoint.read_text()) if checkpoint.exists() else 0
for step in range(first, 6):
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    assert total.item() == 3.0
    if rank == 1 and step == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    if rank == 0:
        checkpoint.with_suffix(".new").write_text(str(step + 1))
        checkpoint.with_suffix(".new").replace(checkpoint)
print(f"began at {first} port {os.environ['MASTER_PORT']} of {os.environ['LOCAL_WORLD_SIZE']}", flush=True)
dist.destroy_process_group()
"""

ENDS = """
pipeline: ends
jobs:
  fails:
    command:
      run: "echo up >> $GRIDMILL_OUTPUT/up; [ $RANK = 1 ] && exit 3; exec sleep 300"
      workers: 2
  writes:
    command:
      run: "echo $RANK $LOCAL_RANK $WORLD_SIZE $GRIDMILL_OUTPUT; echo $TF_CONFIG > $GRIDMILL_OUTPUT/$RANK"
      roles: {chief: 1, worker: 1, ps: 1}
  many:
    command: {run: "true", workers: 999}
"""

KILLS = """
pipeline: kills
jobs:
  j: {command: {run: "[ $RANK = 1 ] && kill -9 $$; exec sleep 300", workers: 2}}
"""

SCRIPT = """
import json, os
import numpy as np

def predict(folder, inputs):
    return np.zeros(len(inputs))

if __name__ == "__main__":
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    print("learns", rank, size, os.environ["GRIDMILL_OUTPUT"].endswith("/output"), flush=True)
    if rank == 0:
        with open(os.environ["GRIDMILL_METRICS"], "a") as file:
            file.write(json.dumps({"name": "ranks", "value": size}) + "\\n")
"""
CUSTOM = """
pipeline: custom
jobs:
  data:
    dataset:
      sql: >
        select i * 0.1 as x, i * 0.2 as y,
               case when i % 10 < 7 then 'train' when i % 10 = 7 then 'validation' else 'test' end as split
        from range(100) as rows(i) order by i
      label: {column: y}
  model:
    training: {dataset: data, model: custom, script: train.py, predict: "train.py:predict", workers: 2}
"""


def the_job(place: Place, run: str, name: str) -> dict:
    jobs = place.json("status", run)["jobs"]
    return next(job for job in jobs if job["job"]["job"]["name"] == name)


def test_a_rank_that_is_killed_restarts_the_gang_from_its_checkpoint(place: Place):
    place.write(ELASTIC, "elastic.py")
    text = "pipeline: p\njobs:\n  j: {retries: 1, command: {run: [python, elastic.py, FOLDER], workers: 2}}\n"
    file = place.write(text.replace("FOLDER", str(place.folder)))
    done = place.gridmill("run", file, timeout=400)
    assert done.returncode == 0, done.stdout + place.gridmill("logs", "p-1").stdout
    job = the_job(place, "p-1", "j")
    assert [one["state"] for one in job["attempts"]] == ["failed", "succeeded"]
    assert job["attempts"][0]["message"] == "rank 1 of 2: killed by SIGKILL"
    logs = place.gridmill("logs", "p-1").stdout
    for rank, (first, second) in enumerate(zip(job["attempts"], job["ranks"], strict=True)):
        assert first["port"] != second["port"], rank
    assert f"[0] began at 3 port {job['attempts'][1]['port']} of 2" in logs
    assert f"[1] began at 3 port {job['attempts'][1]['port']} of 2" in logs
    assert not list((place.home / "storage").glob("checkpoints/p/j/*")), "nothing is left of a success"
    assert eventually(lambda: not place.leftovers())


def test_a_rank_that_kills_itself_is_not_tried_again_unless_retries_say_so(place: Place):
    place.gridmill("run", place.write(KILLS), timeout=400)
    job = the_job(place, "kills-1", "j")
    assert [one["state"] for one in job["attempts"]] == ["failed"]
    assert "SIGKILL" in job["job"]["message"]


def test_ranks_end_together_write_together_and_have_roles(place: Place):
    place.gridmill("run", place.write(ENDS), timeout=400)
    jobs = {job["job"]["job"]["name"]: job for job in place.json("status", "ends-1")["jobs"]}
    fails, writes, many = (jobs[name] for name in ("fails", "writes", "many"))
    assert fails["job"]["message"] == "rank 1 of 2: exit code 3"
    assert [one["state"] for one in (*fails["attempts"], *fails["ranks"])] == ["failed", "failed"]
    assert "needs room for 999 workers at once" in many["job"]["message"]
    logs = place.gridmill("logs", "ends-1").stdout
    output = Path(re.findall(r"\[0\] 0 0 3 (.+)", logs)[0])
    assert str(output).endswith(writes["artifacts"][0]["output"]["uri"])
    tasks = [json.loads((output / str(rank)).read_text())["task"] for rank in range(3)]
    assert [task["type"] for task in tasks] == ["chief", "worker", "ps"]
    assert all(f"[{rank}] {rank} {rank} 3 {output}" in logs for rank in range(3))
    [verified] = place.json("verify", "ends/writes")
    assert (verified["files"], verified["file_problems"], verified["problem"]) == (3, [], "")


def test_a_script_learns_by_two_workers_and_the_first_ones_model_is_kept(place: Place):
    place.write(SCRIPT, "train.py")
    done = place.gridmill("run", place.write(CUSTOM), timeout=400)
    logs = place.gridmill("logs", "custom-1").stdout
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert "[0] learns 0 2 False" in logs
    assert "[1] learns 1 2 True" in logs
    model = the_job(place, "custom-1", "model")
    assert model["metrics"]["own_ranks"] == 2
    assert len(model["artifacts"]) == 1
