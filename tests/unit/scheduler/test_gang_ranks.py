"""What each rank of a gang finds in its environment, how a gang ends, and which declarations are right."""

import json
import runpy
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.domain.amounts import Amounts
from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.gang import RANK_VARIABLES, Gang, GangMember
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.run import Attempt
from gridmill.domain.states import AttemptState, Cause
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.domain.tuning import Search
from gridmill.errors import InputError
from gridmill.jobs.rank_env import gang_environment
from gridmill.pod.folders import PodFolder
from gridmill.pod.network import interface_of
from gridmill.pod.start import ProcessStarter
from gridmill.scheduler.gang_results import PORTS, choose_ports, gang_of, together


def an_attempt(rank=0, *, ranks=2, pod="a-1.0", address="10.0.0.1", outcome=None, **fields):
    gang = "p-1.train.1"
    return Attempt(
        id=f"{gang}.{rank}" if rank else gang,
        run_id="p-1",
        job_run_id="p-1/train",
        token=f"token-{rank}",
        deployment_id="a-1",
        pod_id=pod,
        state=AttemptState.RUNNING,
        given=Amounts(cpus=1.0),
        placed=0.0,
        gang=gang,
        rank=rank,
        ranks=ranks,
        address=address,
        port=20000 + rank,
        outcome=outcome,
        **fields,
    )


HOSTS = ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2")


def environments(hosts=HOSTS, roles=None, **fields):
    members = [
        an_attempt(rank, ranks=len(hosts), address=host, pod=f"a-1.{rank}", **fields)
        for rank, host in enumerate(hosts)
    ]
    gangs = [gang_of(members, k, roles or {}, by_pod=False, restarts=1) for k in range(len(hosts))]
    return [gang_environment(gang) for gang in gangs]


def values(found, name):
    return [environment[name] for environment in found]


def test_torchruns_variables_with_several_ranks_per_host():
    found = environments()
    assert values(found, "RANK") == ["0", "1", "2", "3"]
    assert values(found, "LOCAL_RANK") == ["0", "1", "0", "1"]
    assert values(found, "GROUP_RANK") == ["0", "0", "1", "1"]
    assert set(values(found, "WORLD_SIZE")) == {"4"}
    assert set(values(found, "LOCAL_WORLD_SIZE")) == {"2"}
    assert set(values(found, "GROUP_WORLD_SIZE")) == {"2"}
    assert set(values(found, "MASTER_ADDR")) == {"10.0.0.1"}
    assert set(values(found, "MASTER_PORT")) == {"20000"}
    assert set(values(found, "TORCHELASTIC_RESTART_COUNT")) == {"1"}


def test_hosts_with_different_numbers_of_ranks():
    found = environments(("a", "a", "a", "b"))
    assert values(found, "LOCAL_WORLD_SIZE") == ["3", "3", "3", "1"]
    assert values(found, "LOCAL_RANK") == ["0", "1", "2", "0"]


def test_pods_with_gpus_of_their_own_count_as_hosts():
    members = [an_attempt(rank, pod=f"a-1.{rank}", gpu_indices=(0,)) for rank in range(2)]
    found = [gang_environment(gang_of(members, k, {}, by_pod=True, restarts=0)) for k in range(2)]
    assert values(found, "LOCAL_RANK") == ["0", "0"]
    assert values(found, "JAX_LOCAL_DEVICE_IDS") == ["0", "0"]


def test_ranks_that_share_a_hosts_gpus_are_told_which_are_theirs():
    members = [an_attempt(rank, gpu_indices=(2 * rank, 2 * rank + 1)) for rank in range(2)]
    found = [gang_environment(gang_of(members, k, {}, by_pod=False, restarts=0)) for k in range(2)]
    assert values(found, "JAX_LOCAL_DEVICE_IDS") == ["0,1", "2,3"]


def test_jax_finds_its_coordinator():
    found = environments()
    assert set(values(found, "JAX_COORDINATOR_ADDRESS")) == {"10.0.0.1:20000"}
    assert values(found, "JAX_PROCESS_ID") == ["0", "1", "2", "3"]
    assert set(values(found, "JAX_NUM_PROCESSES")) == {"4"}


SHELL = {**dict.fromkeys(RANK_VARIABLES, "the shell's"), "HOME": "/home/u", "OWN": "own"}


def environment_of(job, gang=None, base=SHELL):
    """What a job's process finds where Gridmill was started in such a shell."""
    order = AttemptOrder(
        attempt_id="p-1.train.1",
        token="t",
        run_id="p-1",
        pipeline="p",
        job=job,
        given=Amounts(cpus=1.0),
        root="/root-of-storage",
        output_uri="u",
        gang=gang,
    )
    folder = PodFolder(path=Path("/pod"), home=Path("/home"))
    starter = ProcessStarter(folder=folder, base=base, nursery=None, spares=None, grace_seconds=1.0)
    return starter.environment(order, Path("/work"))


@pytest.mark.parametrize(
    "job",
    [
        Job(name="train", training=TrainingSpec(dataset="d", model=ModelKind.LSTM)),
        Job(name="train", training=TrainingSpec(dataset="d", model=ModelKind.CUSTOM, script="a.py:f")),
        Job(name="train", command=CommandSpec(run="true")),
    ],
)
def test_ranks_of_the_shell_are_not_a_jobs(job):
    found = environment_of(job)
    assert not RANK_VARIABLES & found.keys()
    assert found["HOME"] == "/home/u"
    declared = Job(name="train", command=CommandSpec(run="true", env={"RANK": "7"}))
    assert environment_of(declared)["RANK"] == "7"


def test_a_rank_finds_nothing_but_these_variables_and_none_of_the_shells():
    members = [an_attempt(rank, gpu_indices=(0,)) for rank in range(2)]
    gang = gang_of(members, 1, {}, by_pod=False, restarts=0)
    assert gang_environment(gang).keys() == RANK_VARIABLES
    lone = gang_of([an_attempt(rank) for rank in range(2)], 1, {}, by_pod=False, restarts=0)
    training = TrainingSpec(dataset="d", model=ModelKind.LSTM, workers=2)
    found = environment_of(Job(name="train", training=training), lone)
    assert found["RANK"] == "1"
    assert "the shell's" not in found.values()


def test_gloo_listens_where_other_hosts_reach_this_one():
    """127.0.0.1 stands for this host's address: it has an interface everywhere."""
    job = Job(name="train", command=CommandSpec(run="true", workers=2))
    members = [an_attempt(rank, address=host) for rank, host in enumerate(("127.0.0.1", "10.255.255.1"))]
    here, elsewhere = (gang_of(members, rank, {}, by_pod=False, restarts=0) for rank in range(2))
    assert environment_of(job, here)["GLOO_SOCKET_IFNAME"] == "lo"
    assert environment_of(job, here, {"GLOO_SOCKET_IFNAME": "ib0"})["GLOO_SOCKET_IFNAME"] == "ib0"
    assert "GLOO_SOCKET_IFNAME" not in environment_of(job, elsewhere)
    together = gang_of([an_attempt(rank) for rank in range(2)], 0, {}, by_pod=False, restarts=0)
    assert "GLOO_SOCKET_IFNAME" not in environment_of(job, together)


@pytest.mark.parametrize("address", ["", "10.255.255.1", "nobody.invalid", "::1", "127.0.1.1"])
def test_what_no_interface_has_is_no_interface(address):
    assert interface_of(address) == ""
    assert interface_of("127.0.0.1") in [name for _, name in socket.if_nameindex()]


def test_tf_config_is_a_cluster_of_workers():
    found = [json.loads(text) for text in values(environments(), "TF_CONFIG")]
    servers = [f"{host}:{20000 + rank}" for rank, host in enumerate(HOSTS)]
    assert [one["cluster"] for one in found] == [{"worker": servers}] * 4
    assert [one["task"]["index"] for one in found] == [0, 1, 2, 3]


def test_tf_config_with_roles():
    found = environments(roles={"chief": 1, "ps": 1, "worker": 1, "evaluator": 1})
    tasks = [json.loads(text)["task"] for text in values(found, "TF_CONFIG")]
    assert [task["type"] for task in tasks] == ["chief", "ps", "worker", "evaluator"]
    assert {task["index"] for task in tasks} == {0}
    cluster = json.loads(found[0]["TF_CONFIG"])["cluster"]
    assert cluster == {"chief": ["10.0.0.1:20000"], "ps": ["10.0.0.1:20001"], "worker": ["10.0.0.2:20002"]}
    assert values(found, "ROLE_NAME") == ["chief", "ps", "worker", "evaluator"]


def test_an_address_of_ipv6_is_bracketed_before_its_port():
    member = GangMember(rank=0, host="h", address="fd00::1", port=20000)
    found = gang_environment(Gang(id="g", rank=0, members=(member,)))
    assert found["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:20000"
    assert found["MASTER_ADDR"] == "fd00::1"


def test_slurms_variables_are_left_alone():
    assert not [name for name in environments()[0] if name.startswith("SLURM")]


def test_ports_differ_from_each_other_and_from_those_taken():
    first = choose_ports([f"t{k}" for k in range(200)], set())
    assert len(set(first)) == 200
    assert not set(choose_ports([f"t{k}" for k in range(200)], set(first))) & set(first)
    assert choose_ports(["t"], set()) != choose_ports(["u"], set())
    assert all(20_000 <= port < 20_000 + PORTS for port in first)


def failed(message="exit code 1", cause=Cause.EXIT, state=AttemptState.FAILED):
    return AttemptOutcome(state=state, cause=cause, message=message)


STOPPED = AttemptOutcome(state=AttemptState.STOPPED, cause=Cause.STOPPED, message="stopped")


def test_the_rank_that_failed_first_decides():
    members = [
        an_attempt(0, outcome=STOPPED, ended=3.0, stop_requested=True),
        an_attempt(1, outcome=failed(), ended=2.0),
    ]
    head, whole = together(members)
    assert (whole.state, whole.message) == (AttemptState.FAILED, "rank 1 of 2: exit code 1")
    assert head.rank == 0
    assert not head.stop_requested, "the job was not asked to stop"


def test_a_lost_rank_goes_before_those_that_failed_when_it_was_cut_off():
    members = [
        an_attempt(0, outcome=failed("connection closed by peer"), ended=1.0),
        an_attempt(
            1, outcome=failed("its pod does not exist any more", Cause.LOST, AttemptState.LOST), ended=2.0
        ),
    ]
    for told in (False, True):  # it was told to end because the other had failed, and did not hear of it
        head, whole = together([members[0], replace(members[1], stop_requested=told)])
        assert (whole.state, whole.message) == (
            AttemptState.LOST,
            "rank 1 of 2: its pod does not exist any more",
        )
        assert not head.stop_requested


def test_a_killed_rank_goes_before_those_that_failed_when_it_was_cut_off():
    members = [
        an_attempt(0, outcome=failed("connection closed by peer"), ended=1.0),
        an_attempt(1, outcome=failed("killed by SIGKILL", Cause.SIGNAL), ended=1.0),
    ]
    assert together(members)[1].message == "rank 1 of 2: killed by SIGKILL"


def test_a_gang_that_was_stopped_is_stopped():
    members = [an_attempt(rank, outcome=STOPPED, ended=1.0, stop_requested=True) for rank in range(2)]
    head, whole = together(members)
    assert whole.state is AttemptState.STOPPED
    assert head.stop_requested


def test_a_success_is_rank_0s_with_all_files_and_all_use():
    def done(size, cpu, peak):
        output = Output(kind=ArtifactKind.FILES, uri="files/x", size_bytes=size)
        use = MeasuredUse(wall_seconds=cpu, cpu_seconds=cpu, peak_memory_bytes=peak)
        return AttemptOutcome(state=AttemptState.SUCCEEDED, outputs=(output,), use=use, metrics={"loss": cpu})

    members = [an_attempt(0, outcome=done(1, 2.0, 10)), an_attempt(1, outcome=done(5, 3.0, 7))]
    whole = together(members)[1]
    assert whole.metrics == {"loss": 2.0}
    assert whole.outputs[0].size_bytes == 5
    assert (whole.use.wall_seconds, whole.use.cpu_seconds, whole.use.peak_memory_bytes) == (3.0, 5.0, 10)
    assert whole.use.disk_seconds is None


def test_workers_follow_from_roles():
    assert Job(name="a", command=CommandSpec(run="x", roles={"chief": 1, "worker": 3})).gang == 4
    assert Job(name="a", command=CommandSpec(run="x", workers=2)).gang == 2
    assert Job(name="a", command=CommandSpec(run="x")).gang == 0


def test_of_the_files_that_all_ranks_share_the_last_to_end_decides():
    files = (Output(kind=ArtifactKind.FILES, uri="files/x", size_bytes=1),)
    fine = AttemptOutcome(state=AttemptState.SUCCEEDED, outputs=files)
    bad = replace(fine, cause=Cause.OUTPUT, message="the command did not write its output 'a'")
    members = [an_attempt(0, outcome=bad, ended=1.0), an_attempt(1, outcome=fine, ended=2.0)]
    whole = together(members)[1]
    assert (whole.state, whole.cause, whole.message) == (AttemptState.SUCCEEDED, None, "")
    whole = together([replace(members[0], ended=3.0), members[1]])[1]
    assert (whole.state, whole.cause, whole.outputs) == (AttemptState.FAILED, Cause.OUTPUT, ())


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"workers": 3, "roles": {"worker": 2}}, "the roles have 2 workers, and `workers` is 3"),
        ({"roles": {"boss": 1}}, "unknown role 'boss'"),
        ({"roles": {"chief": 2}}, "a gang has only one chief"),
        ({"roles": {"worker": 0}}, "worker is 0"),
        ({"workers": 0}, "workers is 0"),
    ],
)
def test_wrong_gangs_are_refused(fields, told):
    with pytest.raises(InputError, match=told):
        CommandSpec(run="x", **fields).check()


def test_models_that_one_worker_learns_are_no_gangs():
    with pytest.raises(InputError, match="a linear model is trained by one worker"):
        TrainingSpec(dataset="d", model=ModelKind.LINEAR, workers=2).check()
    with pytest.raises(InputError, match="a search trains each setting with one worker"):
        TrainingSpec(dataset="d", model=ModelKind.LSTM, workers=2, search=Search(parameters={})).check()


def spec_of(**said):
    path = Path(__file__).parents[3] / "examples" / "gang" / "cluster_spec.py"
    pytest.importorskip("hostlist", reason="pip install python-hostlist")
    return runpy.run_path(str(path))["cluster_spec"]({f"SLURM_{name}": text for name, text in said.items()})


def test_the_classic_pattern_makes_a_cluster_of_slurms_words():
    cluster, job, index = spec_of(
        JOB_NODELIST="rack1n[08-10],login", TASKS_PER_NODE="2(x2),1(x2)", JOB_ID="1007", PROCID="3"
    )
    assert cluster == {
        "ps": ["rack1n08:12112"],
        "worker": ["rack1n08:12113", "rack1n09:12112", "rack1n09:12113", "rack1n10:12112", "login:12112"],
    }
    assert (job, index) == ("worker", 2)
    first = spec_of(JOB_NODELIST="n1", TASKS_PER_NODE="2", JOB_ID="1", PROCID="0")
    assert first == ({"ps": ["n1:12016"], "worker": ["n1:12017"]}, "ps", 0)
