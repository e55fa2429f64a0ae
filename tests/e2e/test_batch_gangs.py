"""Jobs with several ranks at AWS Batch: nodes of one multi-node parallel job, which find each other."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.declarations import read_pipeline
from gridmill.domain.states import JobState, RunState
from gridmill.testing.cloud.aws_batch.records import Kind
from gridmill.testing.cloud.aws_batch.simulation import AwsBatchSimulation
from tests.e2e.test_batch_aws import AwsHome, aws
from tests.e2e.test_batch_site import server, two

__all__ = ["aws", "server"]
pytestmark = pytest.mark.e2e
PIPELINE = """
pipeline: p
resources:
  burst: {{type: command, site: batch, cpus: 1, memory: 256MiB}}
jobs:
  two:
    resource: burst
    command:
      run: '"{python}" "{script}"'
      workers: {workers}
"""
RANKS = """
import os, socket, sys, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
print("local", os.environ["LOCAL_RANK"], "group", os.environ["GROUP_WORLD_SIZE"], flush=True)
BEGIN
if rank == 0:
    with socket.create_server(place) as server:
        seen = sorted(server.accept()[0].recv(1) for _ in range(size - 1))
    open(os.environ["GRIDMILL_OUTPUT"] + "/seen", "wb").write(b"".join(seen))
else:
    while True:
        try:
            with socket.create_connection(place) as one:
                one.send(b"%d" % rank)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    END
"""


@pytest.fixture
def home(tmp_path: Path, server: str, aws: AwsBatchSimulation) -> Iterator[AwsHome]:
    aws.add_environment("on-demand", kind=Kind.EC2)
    aws.add_queue("even", "on-demand")
    made = AwsHome(tmp_path, server, aws, queue="even")
    yield made
    made.close()


def start(home: AwsHome, end: str, begin: str = "", workers: int = 2) -> str:
    project = home.folder / "project"
    project.mkdir()
    (project / "ranks.py").write_text(RANKS.replace("END", end).replace("BEGIN", begin))
    (project / "pipeline.yaml").write_text(
        PIPELINE.format(python=sys.executable, script=project / "ranks.py", workers=workers)
    )
    return home.node.grid.start_run(read_pipeline(project / "pipeline.yaml")).run.id


def test_ranks_are_nodes_of_one_job_and_find_each_other(home: AwsHome) -> None:
    # the other ranks end long after rank 0, whose container must wait for them
    run = start(home, "time.sleep(1); print('late', flush=True)", workers=3)
    view = home.ended(run)
    job = two(view)
    assert view.run.state is RunState.SUCCEEDED, job.job.message
    assert (home.settings.root / job.artifacts[0].output.uri / "seen").read_bytes() == b"12"
    whole = [one for one in home.aws.jobs() if "#" not in one.id]
    assert [len(one.nodes) for one in whole] == [3]
    log = home.log(run)
    assert log.count("local 0 group 3") == 3
    assert log.count("late") == 2
    home.wait(lambda: not home.running(), "all nodes have ended")
    home.wait(lambda: not home.objects(), "the objects of all ranks are deleted")


@pytest.mark.parametrize("bad", [0, 1])
def test_a_failed_rank_ends_the_others_and_is_the_reason(home: AwsHome, bad: int) -> None:
    run = start(home, "time.sleep(600)", f"rank == {bad} and sys.exit(7)")
    view = home.ended(run)
    assert two(view).job.state is JobState.FAILED
    assert f"rank {bad} of 2: exit code 7" in two(view).job.message
    home.wait(lambda: not home.running(), "all nodes have ended")
    home.wait(lambda: not home.objects(), "the objects of all ranks are deleted")


def test_a_gang_survives_a_lost_answer_a_new_control_node_and_a_lost_machine(home: AwsHome) -> None:
    home.aws.world.faults.lose_answers("SubmitJob")
    again = (
        "os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and (print('waits', flush=True), time.sleep(600))"
    )
    run = start(home, "", again)
    home.wait(lambda: home.log(run).count("waits") == 2, "all ranks run")
    home.node.close(tear_down=False)
    [lost] = [name for name in home.running() if name.endswith("#1")]
    home.aws.break_host(lost)
    home.open()
    view = home.ended(run)
    job = two(view)
    assert view.run.state is RunState.SUCCEEDED, job.job.message
    assert job.attempts[0].message.startswith("rank 1 of 2: the batch service ended job")
    assert (job.job.losses, job.job.interruptions) == (0, 1)
    assert len([one for one in home.aws.jobs() if "#" not in one.id]) == 2


def test_a_stopped_gang_ends_all_nodes(home: AwsHome) -> None:
    run = start(home, "", "print('waits', flush=True); time.sleep(600)")
    home.wait(lambda: home.log(run).count("waits") == 2, "all ranks run")
    home.node.grid.stop_run(run)
    assert two(home.ended(run)).job.state is JobState.STOPPED
    home.wait(lambda: not home.running(), "all nodes have ended")


def test_a_gang_on_spot_machines_is_refused_with_the_environment(
    tmp_path: Path, server: str, aws: AwsBatchSimulation
) -> None:
    home = AwsHome(tmp_path, server, aws)
    job = two(home.ended(start(home, "")))
    assert job.job.state is JobState.FAILED
    assert "compute environment c has the type SPOT" in job.job.message
    assert not home.aws.jobs()
    home.close()
