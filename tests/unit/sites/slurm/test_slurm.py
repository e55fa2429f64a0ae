"""The Slurm site's pure parts: settings, texts, what Slurm's commands say, and what follows from it."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.test_site_ray import NoDoors

from gridmill.control.steps.run_lifecycle import check_resource_settings
from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.states import Cause
from gridmill.errors import InputError, UnavailableError
from gridmill.ports.site import PodStatus
from gridmill.settings import read_settings
from gridmill.sites.slurm.commands import LocalShell
from gridmill.sites.slurm.parse import (
    SqueueJob,
    clock_ahead,
    count_gres,
    is_usable,
    most_alive,
    parse_clock,
    parse_sacct,
    parse_sinfo,
    parse_squeue,
)
from gridmill.sites.slurm.pod_state import PodEvidence, is_unexplained, report_of, with_log
from gridmill.sites.slurm.script import BatchJob, batch_script, pod_script
from gridmill.sites.slurm.settings import resource_settings, settings_of
from gridmill.sites.slurm.site import SlurmSite, read_end
from gridmill.sites.slurm.states import STATES, SlurmPhase, never_starts, state_of
from gridmill.sites.ssh import CompletedCommand
from gridmill.testing.hosts import why_no_hosts

GOLDEN = Path(__file__).parents[3] / "golden"


def wishes(**settings):
    return settings_of(Site(name="lab", kind=SiteKind.SLURM, settings=settings))


# --- settings


def test_a_setting_that_is_wrong_is_named_with_what_it_says():
    with pytest.raises(InputError, match=r"site lab: settings.partition: 'a b' is not a plain word"):
        wishes(partition="a b")
    with pytest.raises(InputError, match=r"no setting 'partitions'") as caught:
        wishes(partitions="gpu")
    assert "`partition`" in caught.value.hint
    with pytest.raises(InputError, match="neither spool nor tls"):
        wishes(link="pigeon")
    with pytest.raises(InputError, match="not options"):
        wishes(extra="--exclude n7")
    with pytest.raises(InputError, match="absolute path"):
        wishes(folder="some where")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("2h", 7200), ("1:30:00", 5400), ("90:00", 5400), ("1-12", 129600), ("1-0:30:05", 88205)],
)
def test_time_limits_are_read_as_slurm_and_as_gridmill_write_them(text, seconds):
    assert wishes(time_limit=text).time_limit_seconds == seconds


@pytest.mark.parametrize("text", ["60", "soon", "30s"])
def test_a_time_limit_that_is_ambiguous_none_or_too_short_is_refused(text):
    with pytest.raises(InputError, match=r"settings\.time_limit"):
        wishes(time_limit=text)


# --- texts


def test_a_pod_for_one_node_is_submitted_to_that_node():
    options = batch_script(a_batch(node="n7"), wishes()).splitlines()
    assert "#SBATCH --nodelist=n7" in options
    assert not any("nodelist" in line for line in batch_script(a_batch(), wishes()).splitlines())


def a_batch(**fields):
    return BatchJob(
        **{
            "deployment_id": "trainers-3",
            "job": "gridmill-0a1b2c3d-trainers-3",
            "pods": ("trainers-3.0", "trainers-3.1"),
            "capacity": Amounts(cpus=4, memory_bytes=16 * GIB, gpus=2),
            "folder": "/shared/gridmill/0a1b2c3d",
            "python": "/opt/gridmill/bin/python",
            "variables": {"GRIDMILL_HOME": "/shared/gridmill/0a1b2c3d", "TOKEN": "it's secret"},
            **fields,
        }
    )


ALL = {
    "partition": "gpu",
    "account": "physics",
    "qos": "high",
    "time_limit": "1-12:00:00",
    "gres": "gpu:a100",
    "extra": "--exclude=n7 '--constraint=fast disk'",
    "setup": "module load cuda",
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("slurm_script.sh", batch_script(a_batch(), wishes(**ALL))),
        (
            "slurm_script_least.sh",
            batch_script(a_batch(pods=("r-1.0",), capacity=Amounts(cpus=0.5, memory_bytes=GIB)), wishes()),
        ),
        ("slurm_pod.sh", pod_script(a_batch(), wishes(**ALL))),
    ],
)
def test_scripts_are_as_they_were(name, text):
    assert text == (GOLDEN / name).read_text()


def test_a_pod_as_large_as_its_node_asks_for_no_more_than_the_node_has():
    [node] = parse_sinfo("n1|4|4003|idle|(null)|main", "gpu").usable
    text = batch_script(a_batch(capacity=node.capacity), wishes())
    assert "--mem-per-cpu=1000M" in text


# --- what Slurm says

SQUEUE = """\
3|gridmill-x-a-1|PENDING|PartitionConfig|0||N/A|N/A|0:00|0|
1|gridmill-x-b-1|RUNNING|None|0|n[1-2]|1795309409|1795309469|1-00:01:01|0|
2|gridmill-x-c-1|FAILED|NonZeroExitCode|768|n1|1795309400|1795309411|0:02|0|
4|gridmill-x-d-1|PENDING|(BeginTime)|0||1795309400|N/A|0:00|1|
slurm_load_jobs error: something
"""


def test_squeue_is_read():
    jobs = {job.id: job for job in parse_squeue(SQUEUE)}
    assert list(jobs) == ["3", "1", "2", "4"]
    assert jobs["1"] == SqueueJob(
        id="1",
        name="gridmill-x-b-1",
        word="RUNNING",
        reason="None",
        nodes="n[1-2]",
        began=1795309409.0,
        ends=1795309469.0,
        elapsed_seconds=86461.0,
    )
    assert jobs["2"].exit_status == 3 << 8
    assert jobs["4"].reason == "BeginTime"


def test_a_job_that_waits_again_after_it_ran_is_over_for_its_pods():
    assert [job.state.phase for job in parse_squeue(SQUEUE)] == [
        SlurmPhase.PENDING,
        SlurmPhase.RUNNING,
        SlurmPhase.OVER,
        SlurmPhase.OVER,
    ]


def test_of_several_jobs_of_one_name_the_living_one_counts_then_the_last():
    def job(number, word):
        return SqueueJob(id=number, name="x", word=word)

    assert most_alive([job("7", "RUNNING"), job("9", "PENDING")], "x") == job("7", "RUNNING")
    assert most_alive([job("7", "FAILED"), job("10", "TIMEOUT")], "x") == job("10", "TIMEOUT")
    assert most_alive([job("7", "RUNNING")], "y") is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:02", 2), ("1-02:03:04", 93784), ("00:00.634", 0.634), ("10:00:00", 36000), ("INVALID", 0), ("", 0)],
)
def test_clocks_are_read(text, seconds):
    assert parse_clock(text) == seconds


SACCT = """\
1|gridmill-x-a-1|OUT_OF_MEMORY|0:125|5||00:00.634|2026-11-22T01:00:00
1.batch|batch|OUT_OF_MEMORY|0:125|5|11096064|00:00.015|2026-11-22T01:00:00
1.0|sh|OUT_OF_MEMORY|0:125|5|162074624|00:00.619|2026-11-22T01:00:00
2|gridmill-x-b-1|CANCELLED by 1000|0:0|65||01:10.000|2026-11-22T01:00:00
2.0|sh|CANCELLED|0:15|65|1.5G|01:10.000|2026-11-22T01:00:00
"""


def test_sacct_is_read_with_its_steps():
    first, second = parse_sacct(SACCT)
    assert (first.word, first.peak_memory_bytes, first.cpu_seconds) == ("OUT_OF_MEMORY", 162074624, 0.634)
    assert first.is_final
    assert (second.name, second.peak_memory_bytes, second.elapsed_seconds) == (
        "gridmill-x-b-1",
        int(1.5 * GIB),
        65.0,
    )


def test_a_clock_there_that_is_wrong_moves_what_slurm_says_to_ours():
    text = "clock/1300\n" + SQUEUE
    ahead = clock_ahead(text, 1000.4)
    assert ahead == pytest.approx(299.6)
    assert clock_ahead("clock/1302\n", 1001.9, ahead) == ahead
    assert clock_ahead("clock/1002\n", 1001.9, ahead) == pytest.approx(0.1)
    assert clock_ahead("", 1001.9, ahead) == ahead
    [job] = (job for job in parse_squeue(text, 300.0) if job.id == "1")
    assert (job.began, job.ends) == (1795309109.0, 1795309169.0)


SINFO = """\
n10|4|4000|idle|gpu:2|main
n2|8|8000|mixed|gpu:a100:4(S:0-1),gpu:v100:2(S:0,1),shard:8|main
n2|8|8000|mixed|gpu:a100:4(S:0-1),gpu:v100:2(S:0,1),shard:8|low
n3|8|8000|down*|(null)|main
n4|8|8000|draining|(null)|main
n5|8|8000|idle~|(null)|main
n6|8|8000|idle*|(null)|main
n7|8|8000|mixed+drain|(null)|main
n8|8|8000|inval|gpu:2|main
n9|8|8000|idle|gpu:2|low
partition/main*
partition/low
partition/empty
"""


def test_sinfo_gives_each_node_of_a_partition_once():
    """One with fewer GPUs than it is configured to have is `inval` to Slurm."""
    known = parse_sinfo(SINFO, "gpu", "main")
    assert [node.name for node in known.away] == ["n3", "n4", "n6", "n7", "n8"]
    assert known.partitions == ("main", "low", "empty")
    assert [node.name for node in parse_sinfo(SINFO, "gpu", "low").usable] == ["n2", "n9"]
    assert len(parse_sinfo(SINFO, "gpu", "main,low").usable) == 4
    assert len(parse_sinfo(SINFO, "gpu").usable) == 4
    nodes = known.usable
    assert [(node.name, node.capacity.gpus) for node in nodes] == [("n2", 6), ("n5", 0), ("n10", 2)]
    capacity = Amounts(cpus=4, memory_bytes=int(4000 * MIB * 0.9), gpus=2)
    assert nodes[2] == Node(name="n10", capacity=capacity, partitions=("main",))
    assert nodes[0].partitions == ("main", "low")


@pytest.mark.parametrize(
    ("words", "usable"),
    [
        ("idle idle~ idle# idle% idle! idle@ idle^ idle-", True),
        ("mixed mixed- mixed~ mixed# mixed-~ MIXED+PLANNED idle+cloud+powered_down", True),
        ("allocated allocated+ allocated- completing planned reserved blocked", True),
        ("idle* mixed* allocated* idle$ mixed$ idle-*", False),
        ("down down* down~ drained drained$ draining draining@ fail failing mixed+drain", False),
        ("inval maint future unknown perfctrs npc reboot_issued idle+not_responding", False),
    ],
)
def test_marks_behind_the_state_of_a_node(words, usable):
    """Those of sinfo(1), NODE STATE CODES."""
    assert {word: is_usable(word) for word in words.split()} == dict.fromkeys(words.split(), usable)


@pytest.mark.parametrize(
    ("text", "wanted", "count"),
    [
        ("gpu:a100:4(S:0-1),gpu:v100:2(S:0,1)", "gpu:a100", 4),
        ("gpu:a100:4(S:0-1),gpu:v100:2", "gpu", 6),
        ("gpu", "gpu", 1),
        ("(null)", "gpu", 0),
        ("shard:8", "gpu", 0),
    ],
)
def test_gpus_are_counted(text, wanted, count):
    assert count_gres(text, wanted) == count


# --- what it means


def test_every_state_has_a_sentence_unless_it_is_the_expected_one():
    plain = {word for word, state in STATES.items() if not state.sentence}
    assert plain == {"COMPLETED", "PENDING", "RUNNING"}
    assert state_of("CANCELLED by 1000") is STATES["CANCELLED"]
    assert state_of("BREWING_COFFEE").phase == SlurmPhase.UNKNOWN
    assert state_of("").phase == SlurmPhase.UNKNOWN


def test_what_never_starts_is_told_from_what_only_waits():
    assert never_starts("PartitionConfig")
    assert never_starts("QOSMaxCpuPerJobLimit")
    assert not never_starts("Priority")
    assert not never_starts("Resources")
    assert not never_starts("ReqNodeNotAvail")


def seen(word="RUNNING", marks=(), **fields):
    job = fields.pop("job", SqueueJob(id="7", name="x", word=word, nodes="n1", **fields.pop("listed", {})))
    return report_of(PodEvidence(marks=frozenset(marks), **{"submitted": True, "job": job, **fields}))


def test_a_pod_in_the_queue_says_why_it_waits():
    sight = seen("PENDING", listed={"reason": "Priority"})
    assert sight.status == PodStatus.QUEUED
    assert sight.message == "Slurm's job 7 waits in Slurm's queue (reason: Priority)"


def test_a_pod_that_never_starts_is_gone_and_another_would_be_too():
    sight = seen("PENDING", listed={"reason": "BadConstraints"})
    assert (sight.status, sight.hopeless) == (PodStatus.GONE, True)
    assert "BadConstraints" in sight.message


def test_where_slurm_does_not_know_why_a_pod_ended_its_log_may():
    listed = SqueueJob(id="7", name="x", word="COMPLETED", nodes="n1")
    ended = PodEvidence(marks=frozenset({"claimed"}), submitted=True, job=listed)
    assert is_unexplained(ended)
    log = "/shared/deployments/a-1/pod.sh: 14: /nope/python: not found\n\n"
    message = with_log(report_of(ended), log).message
    assert message.endswith("(job 7 on n1, ran 0 ms); its log ends with: /nope/python: not found")
    assert with_log(report_of(ended), "\n") == report_of(ended)
    assert not is_unexplained(replace(ended, marks=frozenset({"claimed", "ended"})))
    assert not is_unexplained(replace(ended, job=replace(listed, word="PREEMPTED")))


def test_of_a_long_log_only_the_end_is_read(tmp_path):
    log = tmp_path / "log"
    log.write_text("a line\n" * 10_000 + "the last one\n")
    assert read_end(log).endswith("a line\nthe last one\n")
    assert len(read_end(log)) == 4096
    log.write_text("short\n")
    assert read_end(log) == "short\n"


def test_a_running_pod_says_when_it_ends():
    sight = seen("RUNNING", marks=["claimed"], listed={"ends": 99.0})
    assert (sight.status, sight.ends) == (PodStatus.RUNNING, 99.0)


def test_while_slurm_ends_it_nothing_can_be_told():
    assert seen("COMPLETING", marks=["claimed"]).status == PodStatus.UNKNOWN


@pytest.mark.parametrize(
    ("word", "part", "cause"),
    [
        ("PREEMPTED", "PREEMPTED: it was preempted", Cause.LOST),
        ("TIMEOUT", "TIMEOUT: its time limit", Cause.LOST),
        ("OUT_OF_MEMORY", "more memory", Cause.MEMORY),
        ("NODE_FAIL", "one of its nodes failed", Cause.LOST),
    ],
)
def test_what_slurm_ended_is_gone_with_its_reason(word, part, cause):
    sight = seen(word, marks=["claimed", "signalled", "ended"], listed={"elapsed_seconds": 123.0})
    assert sight.status == PodStatus.GONE
    assert part in sight.message
    assert "job 7 on n1, ran 2 m 03 s" in sight.message
    assert sight.cause == cause


def test_a_pod_of_a_failed_node_is_given_time_to_end():
    """It may be cut off from Slurm and yet see its folder."""
    assert seen("NODE_FAIL", ["claimed"]).status == PodStatus.UNKNOWN
    assert seen("NODE_FAIL", ["claimed", "stop"], for_seconds=16.0).status == PodStatus.GONE
    sight = seen("NODE_FAIL", ["claimed", "stop", "ended"])
    assert sight.status == PodStatus.GONE
    assert "NODE_FAIL" in sight.message


def test_a_pod_that_was_told_to_end_waits_for_slurm_to_say_why():
    marks = ["claimed", "signalled", "ended"]
    assert seen("RUNNING", marks).status == PodStatus.UNKNOWN
    assert seen("RUNNING", marks, for_seconds=99.0).status == PodStatus.GONE
    assert seen("RUNNING", [*marks, "stop"]).status == PodStatus.GONE


def test_a_pod_that_ended_by_itself_is_gone_whatever_becomes_of_its_job():
    assert seen("RUNNING", ["claimed", "ended"]).message == "it has ended"
    assert seen("FAILED", ["claimed", "ended"]).message == "it has ended"


def test_the_accounting_is_waited_for_a_moment_and_tells_what_was_used():
    assert seen("FAILED", ["claimed"], accounting=True).status == PodStatus.UNKNOWN
    assert seen("FAILED", ["claimed"], accounting=True, for_seconds=9.0).status == PodStatus.GONE
    account = parse_sacct(SACCT)[0]
    sight = seen("FAILED", ["claimed"], accounting=True, account=account)
    assert sight.cause == Cause.MEMORY
    assert sight.use.peak_memory_bytes == 162074624
    assert "at most 154.6 MiB" in sight.message


def test_a_job_that_slurm_does_not_list_is_gone_only_after_a_while():
    assert seen(job=None, marks=["claimed"]).status == PodStatus.UNKNOWN
    assert seen(job=None, marks=["claimed"], for_seconds=11.0).status == PodStatus.GONE
    assert seen(job=None, submitted=False).message == "it was never started"


def test_a_job_that_slurm_would_not_take_now_is_not_gone():
    """It is submitted again."""
    assert seen(job=None, submitted=False, prepared=True).status == PodStatus.UNKNOWN


def test_a_resource_asks_of_slurm_otherwise_than_its_site():
    site = Site(
        name="lab",
        kind=SiteKind.SLURM,
        settings={"partition": "cpu", "account": "physics", "time_limit": "30m"},
    )
    mine = resource_settings(site, {"partition": "gpu", "time_limit": "8h", "account": ""})
    assert (mine.partition, mine.account, mine.time_limit_seconds) == ("gpu", "", 8 * 3600.0)


@pytest.mark.parametrize(
    ("settings", "said", "place"),
    [
        ({"link": "tls"}, "setting 'link' is possible only for the whole site", "settings.link"),
        ({"partitoin": "gpu"}, "has no setting 'partitoin'", "settings.partitoin"),
        ({"time_limit": "90"}, "'90' has no unit", "settings.time_limit"),
    ],
)
def test_what_a_resource_cannot_ask_is_said_at_the_resource(settings, said, place):
    resource = Resource(name="trainers", type=JobKind.TRAINING, site="lab", settings=settings)
    with pytest.raises(InputError, match=said) as caught:
        check_resource_settings(resource, Site(name="lab", kind=SiteKind.SLURM))
    assert caught.value.place == f"resource trainers: {place}"


class Elsewhere(LocalShell):
    """A login node of its own mounts: what is below `hidden` here is not there."""

    def __init__(self, hidden: Path) -> None:
        self.hidden = hidden

    def run(self, script, data=None):
        told = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {self.hidden} && sh -s"],
            input=script.encode(),
            capture_output=True,
            check=False,
        )
        return CompletedCommand(status=told.returncode, out=told.stdout, err=told.stderr.decode())


@pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "mounts can be made")
def test_a_login_node_that_does_not_see_the_root_is_refused(tmp_path):
    root = tmp_path / "root"
    settings = read_settings({"GRIDMILL_HOME": str(tmp_path / "home"), "GRIDMILL_ROOT": str(root)})
    root.mkdir()
    site = Site(name="lab", kind=SiteKind.SLURM, address="ssh://ada@login")
    made = SlurmSite(settings, site, NoDoors(), Elsewhere(root), "m1")
    with pytest.raises(UnavailableError, match=f"root {root} does not exist at ssh://ada@login") as caught:
        made.nodes()
    assert "Mount it under the same path" in caught.value.hint


def test_sites_of_other_kinds_take_no_settings_of_a_resource():
    resource = Resource(name="trainers", type=JobKind.TRAINING, site="lab", settings={"partition": "gpu"})
    with pytest.raises(InputError, match="a ray site has no settings") as caught:
        check_resource_settings(resource, Site(name="lab", kind=SiteKind.RAY))
    assert "slurm" in caught.value.hint
