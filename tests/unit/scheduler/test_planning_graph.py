"""The order of a pipeline's jobs, and dry runs."""

from dataclasses import replace

import pytest

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.command import Each
from gridmill.domain.graph import order
from gridmill.domain.job import CommandSpec, Job, JobKind, JobSize
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.project import Project
from gridmill.domain.resource import MeasuredUse, Measurement, Resource
from gridmill.domain.sink import SinkSpec
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.domain.source import Source
from gridmill.errors import PipelineError
from gridmill.scheduler.dry_run import dry_run
from gridmill.scheduler.snapshot import Snapshot


def a_job(name, *needs, **fields):
    return Job(name=name, needs=needs, command=CommandSpec(run="true"), **fields)


def a_pipeline(*jobs, resources=()):
    return Pipeline(name="p", jobs=jobs, resources=resources)


def a_snapshot(*measurements, memory=4 * GIB):
    node = Node(name="n0", capacity=Amounts(cpus=2.0, memory_bytes=memory))
    return Snapshot((Site(name="local", kind=SiteKind.SIMULATED, nodes=(node,)), *measurements))


def took(name, seconds, peak=100 * MIB):
    return Measurement(
        attempt_id=f"p-1.{name}.1",
        subject=f"command/p/{name}",
        job=f"p/{name}",
        size=JobSize(),
        given=Amounts(memory_bytes=GIB),
        use=MeasuredUse(wall_seconds=seconds, peak_memory_bytes=peak),
        ended=1.0,
    )


def test_each_job_comes_after_its_needs_and_else_as_declared():
    pipeline = a_pipeline(a_job("d", "b", "c"), a_job("c"), a_job("b", "a"), a_job("a"))
    assert order(pipeline) == ("c", "a", "b", "d")


def test_a_cycle_is_named():
    with pytest.raises(PipelineError, match="a -> b -> a"):
        order(a_pipeline(a_job("x"), a_job("a", "b", "x"), a_job("b", "a"), a_job("after", "a")))
    with pytest.raises(PipelineError, match="a -> a"):
        order(a_pipeline(a_job("a", "a")))


def test_a_long_cycle_is_named_without_what_leads_to_it():
    with pytest.raises(PipelineError, match="cycle: b -> c -> b"):
        order(a_pipeline(a_job("a", "b"), a_job("b", "c"), a_job("c", "b")))


def test_an_unknown_need_is_named_with_what_was_meant():
    with pytest.raises(PipelineError, match="needs 'lod'") as caught:
        order(a_pipeline(a_job("load"), a_job("train", "lod")))
    assert caught.value.hint == "Did you mean `load`?"


def test_a_dry_run_tells_waves_times_and_memory():
    pipeline = a_pipeline(a_job("a"), a_job("b", "a"), a_job("c", "a"), a_job("d", "b", "c"))
    snapshot = a_snapshot(took("a", 1.0), took("b", 5.0), took("c", 3.0), took("d", 2.0))
    shown = dry_run(pipeline, snapshot, {}, frozenset())
    assert [(job.job, job.wave, job.starts, job.ends) for job in shown.jobs] == [
        ("a", 1, 0.0, 1.0),
        ("b", 2, 1.0, 6.0),
        ("c", 2, 1.0, 4.0),
        ("d", 3, 6.0, 8.0),
    ]
    assert shown.expected_seconds == 8.0
    assert shown.peak_memory_bytes == 2 * shown.jobs[1].sizing.amounts.memory_bytes
    assert not any(job.problem for job in shown.jobs)


def test_what_does_not_fit_side_by_side_is_expected_one_after_another():
    pipeline = a_pipeline(a_job("a"), a_job("b"), a_job("c"))
    measured = [took(name, 10.0, peak=1200 * MIB) for name in "abc"]
    assert dry_run(pipeline, a_snapshot(*measured), {}, frozenset()).expected_seconds == 20.0


def test_unchanged_jobs_take_no_time_and_no_memory():
    pipeline = a_pipeline(a_job("a"), a_job("b", "a"))
    shown = dry_run(pipeline, a_snapshot(took("b", 5.0)), {}, frozenset({"a"}))
    assert shown.expected_seconds == 5.0
    assert shown.jobs[0].unchanged
    assert shown.peak_memory_bytes == shown.jobs[1].sizing.amounts.memory_bytes


def test_a_job_above_its_projects_whole_quota_is_refused_by_the_plan():
    pipeline = replace(a_pipeline(a_job("a", memory_bytes=2 * GIB), a_job("b")), project="vision")
    snapshot = a_snapshot()
    snapshot.put(Project(name="vision", memory_bytes=GIB))
    problems = [job.problem for job in dry_run(pipeline, snapshot, {}, frozenset()).jobs]
    assert problems[0].startswith("needs more than the whole quota of project vision: 2 GiB of 1 GiB")
    assert problems[1] == ""


def test_unknown_times_are_not_made_up():
    shown = dry_run(a_pipeline(a_job("a"), a_job("b", "a")), a_snapshot(took("b", 5.0)), {}, frozenset())
    assert shown.expected_seconds is None
    assert shown.jobs[0].starts == 0.0
    assert shown.jobs[1].starts is None
    assert shown.peak_memory_bytes > 0


def test_problems_are_said_with_what_to_do():
    resources = (Resource(name="trainers", type=JobKind.TRAINING),)
    pipeline = a_pipeline(
        a_job("typo", resource="trainer"),
        a_job("kind", resource="trainers"),
        a_job("large", memory_bytes=48 * GIB),
        resources=resources,
    )
    problems = {job.job: job.problem for job in dry_run(pipeline, a_snapshot(), {}, frozenset()).jobs}
    assert problems["typo"] == "there is no resource 'trainer'. Did you mean `trainers`?"
    assert problems["kind"].startswith("resource 'trainers' is for training jobs, this is a command job")
    assert problems["large"].startswith("needs 48 GiB; the largest node of site local has 4 GiB")


def test_assigned_jobs_use_their_resource():
    mine = Resource(name="mine", type=JobKind.COMMAND, jobs=("p/a",))
    shown = dry_run(a_pipeline(a_job("a"), a_job("b"), resources=(mine,)), a_snapshot(), {}, frozenset())
    assert [job.resource for job in shown.jobs] == ["mine", "default-command"]


def test_a_dry_run_says_into_how_many_parts_a_job_is_cut():
    node = Amounts(cpus=2, memory_bytes=8 * GIB)
    lab = Site(
        name="local",
        kind=SiteKind.SIMULATED,
        nodes=tuple(Node(name=name, capacity=node) for name in ("a", "b", "c")),
    )
    swarm = Job(name="swarm", prediction=PredictionSpec(dataset="o/d", models=("o/m",), workers=6))
    patch = Job(name="patch", command=CommandSpec(run="true", each=Each(nodes=("[ab]",))))
    many, one = (Job(name=name, sink=SinkSpec(source=Source(path=f"{name}.csv"))) for name in ("*", "one"))
    objects = Job(name="objects", sink=SinkSpec(source=Source(path="s3://b/*.csv"), parts=2))
    large = {name: JobSize(input_bytes=500 * MIB) for name in ("*", "one")}
    jobs = (swarm, patch, many, one, objects)
    shown = dry_run(a_pipeline(*jobs), Snapshot([lab]), large, frozenset())
    assert [job.sizing.why[-1] for job in shown.jobs if job.job != "one"] == [
        "in 3 parts, each on a pod of its own with 2 workers",
        "once on each of 2 nodes of site local",
        "in 2 parts, each on a pod of its own with some of the files",
        "in 2 parts, each on a pod of its own with some of the files",
    ]
    assert not any("parts" in why for job in shown.jobs if job.job == "one" for why in job.sizing.why)
    small = dry_run(a_pipeline(many), Snapshot([lab]), {"*": JobSize(input_bytes=200 * MIB)}, frozenset())
    assert "parts" not in small.jobs[0].sizing.why[-1]
