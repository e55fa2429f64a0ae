"""Runs at a Slurm site, on a real Slurm: what is right there, what fails there, and that nothing is left."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridmill.bootstrap.node import EmbeddedNode, embed
from gridmill.declarations import read_pipeline
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import FINISHED_RUNS, AttemptState, Cause, JobState, RunState
from gridmill.domain.views import RunView
from gridmill.errors import InputError, UnavailableError
from gridmill.settings import read_settings
from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually, processes_mentioning
from tests.kit import sshd
from tests.kit.slurm import (
    HOW_TO_GET_ACCOUNTING,
    HOW_TO_GET_IT,
    SlurmCluster,
    has_accounting,
    has_memory_cgroups,
    is_installed,
    slurm_cluster,
)

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not is_installed(), reason=HOW_TO_GET_IT)]

HANGS_ONCE = "[ -e {flag} ] || {{ touch {flag}; exec sleep 900; }}; echo done"
"""A command whose first attempt hangs, and whose second ends at once."""


class Lab:
    """A control node of a home of its own, with a Slurm site `lab`."""

    def __init__(
        self, folder: Path, cluster: SlurmCluster, address: str | None = None, **settings: str
    ) -> None:
        self.folder, self.cluster = folder, cluster
        self.flag = folder / "flag"
        home = str(folder / "home")
        self.settings = read_settings(
            {"GRIDMILL_HOME": home, "GRIDMILL_GRACE": "1", "GRIDMILL_OBSERVE": "0.2"}
        )
        self.site = Site(name="lab", kind=SiteKind.SLURM, address=address, settings=settings)
        self.node = self.open()
        self.node.grid.add_site(self.site)

    def open(self) -> EmbeddedNode:
        self.node = embed(self.settings)
        return self.node

    def start(self, text: str) -> str:
        project = self.folder / "project"
        project.mkdir(exist_ok=True)
        (project / "pipeline.yaml").write_text(text)
        return self.node.grid.start_run(read_pipeline(project / "pipeline.yaml")).run.id

    def command(self, run: str, **fields: object) -> str:
        """Start a pipeline of one command, `j`, at the site."""
        written = "".join(f", {name}: {value}" for name, value in fields.items())
        return self.start(f'pipeline: p\nat: lab\njobs:\n  j: {{command: "{run}"{written}}}\n')

    def wait(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        assert eventually(condition, seconds), f"waited in vain until {what}"

    def ended(self, run_id: str, seconds: float = PATIENCE_SECONDS) -> RunView:
        self.wait(lambda: self.node.grid.run(run_id).run.state in FINISHED_RUNS, "the run ends", seconds)
        return self.node.grid.run(run_id)

    def hangs(self, run_id: str) -> None:
        """Until its job hangs in its first attempt."""
        self.wait(self.flag.exists, "the job hangs")
        self.wait(lambda: self.job(run_id).state == JobState.RUNNING, "the job runs")

    def job(self, run_id: str, name: str = "j") -> JobRun:
        views = self.node.grid.run(run_id).jobs
        return next(view.job for view in views if view.job.job.name == name)

    def attempts(self, run_id: str) -> tuple[Attempt, ...]:
        return self.node.grid.run(run_id).jobs[0].attempts

    def says(self, run_id: str, name: str = "j") -> str:
        return "".join(entry.text for entry in self.node.grid.logs(run_id, job=name))

    def where(self) -> str:
        """The node of its only batch job."""
        return self.cluster.told("squeue", "-h", "-o", "%N").strip()

    def close(self) -> None:
        """The end: nothing of it runs anywhere, and nothing waits."""
        for run in self.node.grid.runs().items:
            self.node.grid.stop_run(run.id)
        self.wait(
            lambda: all(r.state in FINISHED_RUNS for r in self.node.grid.runs().items), "all runs have ended"
        )
        for deployment in self.node.grid.deployments().items:
            self.node.grid.release(deployment.id)
        self.wait(lambda: not self.node.grid.deployments().items, "all is given back")
        self.node.close()
        assert eventually(lambda: not self.cluster.jobs())
        assert eventually(lambda: not processes_mentioning(str(self.settings.home)))


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster(gpus=2) as it:
        yield it


@pytest.fixture
def cluster(shared_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    monkeypatch.setenv("SLURM_CONF", shared_cluster.environment["SLURM_CONF"])
    return shared_cluster


@pytest.fixture
def lab(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Lab]:
    it = Lab(tmp_path, cluster, time_limit="30m")
    yield it
    it.close()


@pytest.fixture
def private(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A cluster of the test's own, which it may break; options by parametrize."""
    with slurm_cluster(**request.param) as it:
        monkeypatch.setenv("SLURM_CONF", it.environment["SLURM_CONF"])
        lab = Lab(tmp_path, it)
        yield lab
        lab.close()


def killed_once(lab: Lab, run_id: str, seconds: float = PATIENCE_SECONDS) -> tuple[Attempt, Attempt]:
    """The two attempts of a job whose first pod was ended from outside."""
    view = lab.ended(run_id, seconds)
    assert view.run.state == RunState.SUCCEEDED, view.run.message
    first, second = lab.attempts(run_id)
    assert (first.state, second.state) == (AttemptState.LOST, AttemptState.SUCCEEDED)
    return first, second


# --- what is right


def test_a_command_runs_there_and_its_deployment_is_given_back_at_once(lab: Lab) -> None:
    run_id = lab.command("echo on $SLURM_JOB_NODELIST as $SLURM_PROCID of $SLURM_NTASKS")
    assert lab.ended(run_id).run.state == RunState.SUCCEEDED
    assert re.fullmatch(r"on n[12] as 0 of 1\n", lab.says(run_id))
    lab.wait(lambda: not lab.node.grid.deployments().items, "the deployment is given back")
    lab.wait(lambda: not lab.cluster.jobs(), "its batch job is over")
    states = set(lab.cluster.run("squeue", "-h", "-t", "all", "-o", "%T").split())
    assert states & {"COMPLETED", "CANCELLED"}, "by itself or, where that takes seconds, by the site"


AHEAD = """
pipeline: p
at: lab
resources:
  wide: {{type: command, site: lab, cpus: 3, memory: 256MiB}}
jobs:
  first: {{command: "until [ -e {go} ]; do sleep 0.1; done"}}
  second: {{command: "true", needs: [first], resource: wide}}
"""


def test_slurm_is_asked_for_what_plan_shows_and_for_nothing_ahead(lab: Lab) -> None:
    """A job that needs one CPU does not wait for a whole node, and a later one's place is not held idle."""
    text = AHEAD.format(go=lab.folder / "go")
    (lab.folder / "plan.yaml").write_text(text)
    planned = {one.job: one for one in lab.node.grid.plan_run(read_pipeline(lab.folder / "plan.yaml")).jobs}
    expected = r"sbatch --ntasks=1 --cpus-per-task=1 --mem-per-cpu=(\d+M) --time=30"
    first = re.fullmatch(expected, planned["first"].request)
    assert first is not None
    assert "--ntasks=1 --cpus-per-task=3 --mem-per-cpu=94M" in planned["second"].request
    run_id = lab.start(text)
    lab.wait(lambda: lab.job(run_id, "first").state == JobState.RUNNING, "the first runs")
    [asked] = lab.cluster.told("squeue", "-h", "-o", "%C %D %m").splitlines()
    assert asked == f"1 1 {first[1]}"
    (lab.folder / "go").touch()
    assert lab.ended(run_id).run.state == RunState.SUCCEEDED


GANG_OF = """
pipeline: p
at: lab
jobs:
  j: {{command: {{run: hostname, workers: {ranks}}}, cpus: 1, memory: {memory}}}
"""


def test_a_gang_for_which_the_cluster_is_too_small_is_refused_by_plan(lab: Lab) -> None:
    """Two nodes of 4 CPUs and 4000 MiB. A drained node comes back: it counts."""
    lab.cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    try:
        for ranks, memory, most in ((9, "64MiB", 8), (8, "64MiB", 8), (40, "500MiB", 8), (3, "2GiB", 2)):
            (lab.folder / "gang.yaml").write_text(GANG_OF.format(ranks=ranks, memory=memory))
            [planned] = lab.node.grid.plan_run(read_pipeline(lab.folder / "gang.yaml")).jobs
            expected = f"at site lab has room for {most} of {ranks} ranks" if ranks > most else ""
            assert expected in planned.problem
            assert bool(planned.problem) == (ranks > most)
    finally:
        lab.cluster.run("scontrol", "update", "nodename=n2", "state=resume")


def test_a_partition_that_there_is_not_is_refused_by_plan(lab: Lab) -> None:
    text = (
        "pipeline: p\nresources:\n  a: {type: command, site: lab, settings: {partition: mian}}\n"
        "jobs:\n  j: {command: hostname, resource: a}\n"
    )
    (lab.folder / "partition.yaml").write_text(text)
    [planned] = lab.node.grid.plan_run(read_pipeline(lab.folder / "partition.yaml")).jobs
    assert (
        "is in partition 'mian', which site lab does not have. Its partitions are main, low."
        in planned.problem
    )


KILLED = """
pipeline: p
at: lab
jobs:
  j: {command: {run: '[ $RANK = 0 ] && sleep 60; kill -9 $$', workers: 2}, memory: 64MiB}
"""


def test_a_rank_that_is_killed_has_failed_and_its_pod_lives(lab: Lab) -> None:
    view = lab.ended(lab.start(KILLED))
    [attempt, *_] = view.jobs[0].attempts
    told = (view.jobs[0].job.message, attempt.state, attempt.cause)
    assert told == ("rank 1 of 2: killed by SIGKILL", AttemptState.FAILED, Cause.SIGNAL)


GANG = """
pipeline: p
at: lab
resources:
  pair: {{type: command, site: lab, workers: 2, cpus: 1}}
jobs:
  j:
    resource: pair
    command:
      workers: 4
      run: >
        echo $RANK $LOCAL_RANK $SLURM_PROCID $SLURM_NTASKS $SLURM_JOB_NODELIST;
        {python} -c "import os, socket as s;
        at = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']));
        r = int(os.environ['RANK']);
        door = s.create_server(('', at[1])) if r == 0 else None;
        open('{folder}/open', 'w').close() if r == 0 else None;
        all(door.accept() for _ in range(3)) if r == 0 else None" ;
        [ $RANK = 0 ] || {{ until [ -e {folder}/open ]; do sleep 0.1; done;
        {python} -c "import os, socket;
        socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))"; }}
"""


def test_a_gang_meets_there_and_finds_slurms_own_words_beside(lab: Lab) -> None:
    """Two pods of one batch job with two ranks each."""
    run_id = lab.start(GANG.format(python=shlex.quote(sys.executable), folder=lab.folder))
    view = lab.ended(run_id)
    assert view.run.state == RunState.SUCCEEDED, (view.run.message, lab.says(run_id))
    told = sorted(line.split() for line in lab.says(run_id).splitlines())
    assert [line[0] for line in told] == ["0", "1", "2", "3"]
    assert sorted(line[1] for line in told) == ["0", "1", "2", "3"], "all are on this one machine"
    assert sorted(line[2] for line in told) == ["0", "0", "1", "1"]
    assert {line[3] for line in told} == {"2"}
    assert len({one.pod_id for one in (*view.jobs[0].attempts, *view.jobs[0].ranks)}) == 2


@pytest.mark.long
def test_from_raw_data_to_a_forecast_it_is_the_same_there_as_here(lab: Lab) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("onnxruntime")
    shops = lab.folder / "project"
    shutil.copytree(Path(__file__).parents[2] / "examples/shops", shops)
    text = (shops / "pipeline.yaml").read_text()
    tables = {}
    for place in ("local", "lab"):
        there = text.replace("pipeline: shops", f"pipeline: shops-{place}\nat: {place}")
        run_id = lab.start(there)
        view = lab.ended(run_id, 240)
        assert view.run.state == RunState.SUCCEEDED, [one.job.message for one in view.jobs]
        tables[place] = predictions(lab, view)
    assert len(tables["lab"]) > 10
    assert tables["lab"] == tables["local"]


def predictions(lab: Lab, view: RunView) -> list[str]:
    datasets = pytest.importorskip("pyarrow.dataset")
    uri = next(one.artifacts[0].output.uri for one in view.jobs if one.job.job.name == "forecast")
    table = datasets.dataset(str(lab.settings.root / uri), format="parquet").to_table()
    return sorted(map(repr, table.to_pylist()))


def test_gpus_are_those_that_slurm_gave(lab: Lab) -> None:
    """Two pods on one node have different ones; an attempt's own numbers count within its pod."""

    def words(mine: str, other: str) -> str:
        waits = f"touch {lab.folder}/{mine}; until [ -e {lab.folder}/{other} ]; do sleep 0.1; done"
        return f"echo $CUDA_VISIBLE_DEVICES; {waits}"

    run_id = lab.start(
        "pipeline: p\n"
        "resources: {g: {type: command, site: lab, gpus: 1, cpus: 1, workers: 2}}\n"
        "jobs:\n"
        f"  a: {{resource: g, command: '{words('a', 'b')}'}}\n"
        f"  b: {{resource: g, command: '{words('b', 'a')}'}}\n"
    )
    assert lab.ended(run_id).run.state == RunState.SUCCEEDED
    places = {(lab.says(run_id, "a"), "n?"), (lab.says(run_id, "b"), "n?")}
    assert {said for said, _ in places} == {"0\n", "1\n"}


@pytest.mark.long
@pytest.mark.skipif(not sshd.is_installed(), reason=sshd.HOW_TO_GET_IT)
def test_from_another_machine_commands_go_over_ssh(
    shared_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here there is no Slurm: it is found at the other end. The connection breaks, and is opened again."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    with sshd.ssh_server(shared_cluster.environment) as server:
        lab = Lab(tmp_path, shared_cluster, address=server.address, ssh=f"-F {server.config}")
        run_id = lab.command(HANGS_ONCE.format(flag=lab.flag))
        lab.hangs(run_id)
        for pid in processes_mentioning(str(server.config)):
            with contextlib.suppress(ProcessLookupError):  # it was only just asking, and has its answer
                os.kill(pid, signal.SIGKILL)
        lab.cluster.run("scancel", *lab.cluster.jobs())
        first, _ = killed_once(lab, run_id)
        assert "CANCELLED" in first.message
        lab.close()


@pytest.mark.skipif(not sshd.is_installed(), reason=sshd.HOW_TO_GET_IT)
def test_a_login_node_that_lets_nobody_in_is_told(shared_cluster: SlurmCluster, tmp_path: Path) -> None:
    with sshd.ssh_server(shared_cluster.environment) as server:
        text = server.config.read_text()
        server.config.write_text(text.replace("/user\n", "/host\n"))  # a key that is not the user's
        with pytest.raises(UnavailableError, match="Permission denied") as caught:
            Lab(tmp_path, shared_cluster, address=server.address, ssh=f"-F {server.config}")
    assert "must work without a question" in caught.value.hint


# --- what fails there


def test_a_job_that_somebody_cancels_is_run_again(lab: Lab) -> None:
    run_id = lab.command(HANGS_ONCE.format(flag=lab.flag))
    lab.hangs(run_id)
    lab.cluster.run("scancel", *lab.cluster.jobs())
    first, _ = killed_once(lab, run_id)
    assert first.message.startswith("Slurm ended the job, CANCELLED: somebody cancelled it")
    assert re.search(r"on n[12]\b", first.message)  # the node that ran it, whichever was free
    assert lab.job(run_id).losses == 1


@pytest.mark.long
def test_a_job_that_is_preempted_is_run_again(cluster: SlurmCluster, tmp_path: Path) -> None:
    lab = Lab(tmp_path, cluster, partition="low")
    run_id = lab.command(HANGS_ONCE.format(flag=lab.flag))
    lab.hangs(run_id)
    cluster.run("sbatch", "-p", "main", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2")
    first, _ = killed_once(lab, run_id)
    assert first.message.startswith("Slurm ended the job, PREEMPTED: it was preempted")
    lab.close()


@pytest.mark.long
def test_a_job_that_an_administrator_requeues_does_not_start_twice(lab: Lab) -> None:
    """It waits in the queue again, but its pods are gone for good: a new deployment does the work."""
    run_id = lab.command(HANGS_ONCE.format(flag=lab.flag))
    lab.hangs(run_id)
    (number,) = lab.cluster.jobs()
    lab.cluster.run("scontrol", "update", f"jobid={number}", "requeue=1")
    lab.cluster.run("scontrol", "requeue", number)
    first, second = killed_once(lab, run_id)
    assert first.message.startswith("Slurm ended the job, REQUEUED: Slurm put it back into its queue")
    assert second.deployment_id != first.deployment_id
    lab.wait(lambda: not lab.cluster.jobs(), "it does not wait in the queue any more")


@pytest.mark.long
def test_a_job_at_its_time_limit_is_told(lab: Lab) -> None:
    """The least limit that Slurm knows is a minute, and it looks every half."""
    run_id = lab.command(HANGS_ONCE.format(flag=lab.flag))
    lab.hangs(run_id)
    (number,) = lab.cluster.jobs()
    lab.cluster.run("scontrol", "update", f"jobid={number}", "timelimit=1")
    first, _ = killed_once(lab, run_id, seconds=200)
    assert first.message.startswith("Slurm ended the job, TIMEOUT: its time limit was reached")


@pytest.mark.long
@pytest.mark.skipif(not has_accounting(), reason=HOW_TO_GET_ACCOUNTING)
@pytest.mark.parametrize("private", [{"accounting": True}], indirect=True)
def test_the_accounting_tells_what_a_lost_attempt_used(private: Lab) -> None:
    lab = private
    eat = "import time; x = bytearray(200 << 20); open('{flag}', 'w'); time.sleep(900)"
    run_id = lab.command(
        f'[ -e {lab.flag} ] || python3 -c \\"{eat.format(flag=lab.flag)}\\"', memory="300MiB"
    )
    lab.hangs(run_id)
    (number,) = lab.cluster.jobs()
    asked = ("sstat", "--allsteps", "--noheader", "--parsable2", "--noconvert", "--format=MaxRSS", number)
    lab.wait(
        lambda: any(int(size or 0) > 150 << 20 for size in lab.cluster.run(*asked).split()), "Slurm saw it"
    )
    lab.cluster.run("scancel", number)
    first, _ = killed_once(lab, run_id)
    assert first.use is not None
    assert first.use.peak_memory_bytes > 150 << 20
    assert "at most" in first.message


def test_slurm_refusing_a_job_is_told_in_its_own_words(cluster: SlurmCluster, tmp_path: Path) -> None:
    lab = Lab(tmp_path, cluster, extra="--reservation=nobody")
    run_id = lab.command("true")
    view = lab.ended(run_id)
    assert view.run.state == RunState.FAILED
    assert "cannot start: Slurm refuses the job: " in lab.job(run_id).message
    assert "reservation is invalid" in lab.job(run_id).message
    lab.close()


def test_a_job_that_could_never_start_is_refused_with_the_reason(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    lab = Lab(tmp_path, cluster, extra="--cpus-per-task=99 --mem-per-cpu=1")
    run_id = lab.command("true")
    assert lab.ended(run_id).run.state == RunState.FAILED
    assert "can never start" in lab.job(run_id).message
    assert "PartitionConfig" in lab.job(run_id).message
    assert not cluster.jobs()
    lab.close()


def test_a_partition_that_there_is_not_cannot_be_added(cluster: SlurmCluster, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no partition 'nope'"):
        Lab(tmp_path, cluster, partition="nope")


def test_more_than_any_node_has_is_refused_before_slurm_is_asked(lab: Lab) -> None:
    run_id = lab.command("true", memory="64GiB")
    assert lab.ended(run_id).run.state == RunState.FAILED
    assert "the largest" in lab.job(run_id).message


def test_a_job_that_waits_in_slurms_queue_says_so(lab: Lab) -> None:
    lab.cluster.run("sbatch", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 900")
    lab.wait(lambda: lab.cluster.run("squeue", "-h", "-t", "RUNNING"), "both nodes are taken")
    run_id = lab.command("echo done")

    def says_why() -> bool:  # Slurm has no reason until it has looked at the job
        why = lab.node.grid.run(run_id).jobs[0].why
        return "waits in Slurm's queue" in why and ("Resources" in why or "Priority" in why)

    lab.wait(says_why, "it says why")
    lab.cluster.run("scancel", "--name=wrap")
    assert lab.ended(run_id).run.state == RunState.SUCCEEDED


def test_a_run_that_is_stopped_is_cancelled_there(lab: Lab) -> None:
    run_id = lab.command(HANGS_ONCE.format(flag=lab.flag))
    lab.hangs(run_id)
    lab.node.grid.stop_run(run_id)
    assert lab.ended(run_id).run.state == RunState.STOPPED
    lab.wait(lambda: not lab.cluster.jobs(), "its job is gone")


# --- daemons and nodes that die


@pytest.mark.long
@pytest.mark.parametrize("private", [{"apart": True, "slurmd_timeout": 20}], indirect=True)
def test_a_node_that_loses_power_has_its_job_run_on_another(private: Lab) -> None:
    run_id = private.command(HANGS_ONCE.format(flag=private.flag))
    private.hangs(run_id)
    private.cluster.power_off(private.where())
    first, second = killed_once(private, run_id)
    assert first.message.startswith(
        "Slurm ended the job, NODE_FAIL: one of its nodes failed or stopped answering"
    )
    assert second.pod_id != first.pod_id


@pytest.mark.long
@pytest.mark.parametrize("private", [{"slurmd_timeout": 20}], indirect=True)
def test_a_node_that_slurm_has_lost_ends_its_pods_before_their_work_is_done_again(private: Lab) -> None:
    """Its slurmd is dead, its pods are not: they find in their folders that they are to end."""
    flag = private.flag
    run_id = private.command(
        f"if [ -e {flag} ]; then kill -0 $(cat {flag}) && echo twice; exit 0; fi; "
        f"echo $$ > {flag}; exec sleep 900"
    )
    private.hangs(run_id)
    private.cluster.kill(private.where())
    first, _ = killed_once(private, run_id)
    assert "NODE_FAIL" in first.message
    assert "twice" not in private.says(run_id)


@pytest.mark.long
@pytest.mark.parametrize("private", [{}], indirect=True)
def test_slurms_controller_may_die_and_come_back(private: Lab) -> None:
    run_id = private.command(
        f"touch {private.flag}; until [ -e {private.flag}2 ]; do sleep 0.1; done; echo done"
    )
    private.hangs(run_id)
    private.cluster.kill("slurmctld")
    private.flag.with_name("flag2").touch()
    assert private.ended(run_id).run.state == RunState.SUCCEEDED
    private.cluster.start_control()
    assert len(private.attempts(run_id)) == 1


@pytest.mark.long
@pytest.mark.parametrize("private", [{"nodes": 1}], indirect=True)
def test_a_node_whose_slurmd_dies_keeps_its_pods(private: Lab) -> None:
    """The processes live and answer: nothing is lost, and the daemon may come back."""
    run_id = private.command(
        f"touch {private.flag}; until [ -e {private.flag}2 ]; do sleep 0.1; done; echo done"
    )
    private.hangs(run_id)
    private.cluster.kill("n1")
    private.flag.with_name("flag2").touch()
    assert private.ended(run_id).run.state == RunState.SUCCEEDED
    private.cluster.start_node("n1")
    assert len(private.attempts(run_id)) == 1


@pytest.mark.long
@pytest.mark.skipif(not has_memory_cgroups(), reason="needs cgroups (v1) that root may write")
@pytest.mark.parametrize("private", [{"cgroups": True, "nodes": 1}], indirect=True)
def test_what_slurm_kills_for_its_memory_is_run_again_with_more(private: Lab) -> None:
    """The pod, which would have seen it first, is stopped meanwhile."""
    eat = (
        "import os, signal, subprocess; pod = os.getppid(); "
        "subprocess.Popen(['sh', '-c', f'sleep 3; kill -CONT {pod}'], start_new_session=True); "
        "os.kill(pod, signal.SIGSTOP); x = bytearray(2500 << 20)"
    )
    (private.folder / "eat.py").write_text(eat)
    once = f"[ -e {private.flag} ] && exit 0; touch {private.flag}; exec python3 {private.folder}/eat.py"
    run_id = private.command(once)
    assert private.ended(run_id).run.state == RunState.SUCCEEDED
    first, second = private.attempts(run_id)
    assert (first.state, first.cause) == (AttemptState.FAILED, Cause.MEMORY), first
    assert second.given.memory_bytes > first.given.memory_bytes


# --- the control node dies


def test_a_control_node_killed_meanwhile_finds_its_pods_again(cluster: SlurmCluster, place: Place) -> None:
    environment = cluster.environment
    waits = f"touch {place.folder}/up; until [ -e {place.folder}/go ]; do sleep 0.1; done; echo done"
    place.write(f"pipeline: p\nat: lab\njobs:\n  j: {{command: '{waits}'}}\n")
    assert place.gridmill("add", "site", "lab", "--kind", "slurm", **environment).returncode == 0
    node = place.start("up", "--listen", "off", **environment)
    assert eventually(lambda: (place.home / "control.json").exists())
    started = place.gridmill("run", "--detach", place.folder / "project/pipeline.yaml", **environment)
    assert started.returncode == 0, started.stderr
    place.wait_for("up")
    os.kill(node.pid, signal.SIGKILL)
    node.wait()
    (place.folder / "go").touch()
    place.start("up", "--listen", "off", **environment)

    def has_ended() -> bool:  # it may be asked while it is only coming up
        done = place.gridmill("status", "p-1", "--json", **environment)
        return done.returncode == 0 and json.loads(done.stdout)["run"]["state"] == "succeeded"

    assert eventually(has_ended)
    jobs = place.json("status", "p-1", **environment)["jobs"]
    assert [len(job["attempts"]) for job in jobs] == [1]
    assert eventually(lambda: not cluster.jobs())
