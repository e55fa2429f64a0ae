"""Which of several resources a job goes to: where it is done first, data and all, and stays there."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.test_planning_plan import NOW, a_deployment, a_job, a_run, a_site, an_attempt
from tests.unit.scheduler.test_planning_plan import command as a_resource

from gridmill.cli.plan import place_lines
from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.dataset import DatasetSpec
from gridmill.domain.farm_protocol import FarmStatus, FutureCapacity, QueuePosition, line_at
from gridmill.domain.job import CommandSpec, Job, JobSize
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.resource import MeasuredUse, Measurement, ResourceAlternative, TransferEstimate
from gridmill.domain.route import Route, Staging, TransferRate, TransferRates
from gridmill.domain.sink import SinkSpec, Source
from gridmill.domain.site import GpuSlot, Node, NodeUtilization, Site, SiteKind
from gridmill.domain.states import DeploymentState, JobState
from gridmill.scheduler import wait_estimate
from gridmill.scheduler.alternatives import CachedForecasts
from gridmill.scheduler.dry_run import TransferInput, dry_run
from gridmill.scheduler.forecast import expected_seconds, seconds_at
from gridmill.scheduler.queue import Demand, JobKind
from gridmill.scheduler.site_choice import GAIN_SECONDS, GAIN_SHARE, InputVersion, choose, transfer_estimate
from gridmill.scheduler.snapshot import Snapshot
from gridmill.scheduler.wait_estimate import MOST_BEFORE, WaitSimulation

QUICK = TransferRate(transferred_bytes=10.0 * MIB, seconds=1.0, transfers=3)
FARM = Site(
    name="gpu-farm",
    kind=SiteKind.CLUSTER,
    nodes=(Node(name="g", capacity=Amounts(cpus=8.0, memory_bytes=64 * GIB, gpus=2)),),
    route=Route(upload=QUICK, download=QUICK, round_trip_seconds=0.0),
)

seconds = st.one_of(st.none(), st.floats(0, 1e6))
places = st.lists(
    st.builds(
        ResourceAlternative,
        resource=st.uuids().map(str),
        site=st.just("s"),
        label=st.just("s"),
        run_seconds=seconds,
        wait_seconds=seconds,
        transfer=st.one_of(
            st.none(), st.builds(TransferEstimate, upload_seconds=seconds, download_seconds=seconds)
        ),
        problem=st.sampled_from(["", "", "too large"]),
        unreachable=st.sampled_from(["", "", "does not answer"]),
    ),
    min_size=1,
    max_size=5,
)


def named(alternatives: list[ResourceAlternative], name: str) -> ResourceAlternative:
    return next(one for one in alternatives if one.resource == name)


@given(places)
def test_it_goes_where_it_is_done_first_or_to_the_first_named_while_that_is_not_known(
    some: list[ResourceAlternative],
) -> None:
    chosen = named(some, choose(some).resource)
    usable = [one for one in some if not one.problem and not one.unreachable]
    if not usable:
        return
    assert chosen in usable
    known = [one.seconds for one in usable if one.seconds is not None]
    if usable[0].quickest_seconds is None:
        assert chosen is usable[0]
    elif known:
        assert chosen.seconds == min(known)
    else:
        assert chosen.quickest_seconds == min(
            one.quickest_seconds for one in usable if one.quickest_seconds is not None
        )


@given(places, st.integers(0, 4))
def test_it_moves_only_for_a_gain_that_is_stated_and_then_stays(
    some: list[ResourceAlternative], moves: int
) -> None:
    for stands in some:
        chosen = named(some, choose(some, stands.resource, moves).resource)
        if chosen is not stands and not stands.problem and not stands.unreachable:
            assert stands.seconds is not None
            assert chosen.seconds is not None
            assert stands.seconds - chosen.seconds >= GAIN_SECONDS * 2**moves
            assert stands.seconds - chosen.seconds >= GAIN_SHARE * stands.seconds
        assert choose(some, chosen.resource, moves + 1).resource == chosen.resource


def test_one_resource_is_no_choice() -> None:
    only = ResourceAlternative(resource="a", site="s", label="s", problem="too large")
    assert choose([only]).resource == "a"


# what is carried


def read(
    name: str = "rows", size: int | None = 100 * MIB, lacking: int | None = None, **more: str
) -> InputVersion:
    there = {} if lacking is None else {"gpu-farm": lacking}
    return InputVersion(name=name, size_bytes=size, missing_bytes=there, **more)


def test_what_is_there_does_not_travel() -> None:
    told = transfer_estimate([read(), read(lacking=20 * MIB)], 10 * MIB, FARM, {})
    assert told is not None
    assert (told.upload_bytes, told.reused_bytes) == (120 * MIB, 80 * MIB)
    assert told.upload_seconds == pytest.approx(12.0)
    assert told.seconds == pytest.approx(13.0)
    assert transfer_estimate([read()], 0, a_site(), {}) is None


def test_what_is_made_there_is_there_and_what_was_never_made_is_not_known() -> None:
    told = transfer_estimate([read(size=None, made_by="rows")], None, FARM, {"rows": "gpu-farm"})
    assert told is not None
    assert (told.upload_bytes, told.seconds) == (0, 0.0)
    told = transfer_estimate([read(size=None, made_by="rows")], None, FARM, {"rows": "local"})
    assert told is not None
    assert told.seconds is None
    assert told.unknown == (
        "the size of rows, until a first version exists",
        "the size of the result, until the job has run once",
    )


def test_each_way_of_staging_has_its_own_rate() -> None:
    bucket = replace(
        FARM, route=replace(FARM.route, others={"export": TransferRates(upload=QUICK, download=QUICK)})
    )
    told = [transfer_estimate([read()], 0, one, {}, Staging.EXPORT) for one in (FARM, bucket)]
    assert [one.seconds if one is not None else 0.0 for one in told] == [None, pytest.approx(10.0)]


def test_a_way_that_was_not_measured_says_so() -> None:
    told = transfer_estimate([read()], 1, replace(FARM, route=None), {})
    assert told is not None
    assert (told.upload_bytes, told.seconds) == (100 * MIB, None)
    assert told.unknown == ("the transfer rate of gpu-farm, which is not measured yet",)


# a plan


def measured(job: str, resource: str, site: str, took: float, gpus: int = 0) -> Measurement:
    return Measurement(
        attempt_id=f"{job}.{resource}",
        subject=f"command/p/{job}",
        job=f"p/{job}",
        size=JobSize(),
        given=Amounts(gpus=gpus),
        use=MeasuredUse(wall_seconds=took),
        ended=0.0,
        resource=resource,
        site=site,
    )


GPU = a_resource("trainer", site="gpu-farm", gpus=1)
CPU = a_resource("here")
HISTORY = (
    measured("model", "here", "local", 2400.0),
    measured("model", "trainer", "gpu-farm", 360.0, gpus=1),
)


def job(name: str, *needs: str, resources: tuple[str, ...] = ("here", "trainer")) -> Job:
    return Job(name=name, needs=needs, resources=resources, command=CommandSpec(run="true"))


def planned(*jobs: Job, readings: int = 1800, measured: tuple[Measurement, ...] = HISTORY, **more: object):
    snapshot = Snapshot((a_site(), FARM, GPU, CPU, *measured))
    known = {one.name: (read(one.needs[0], readings * MIB),) for one in jobs if one.needs}
    carrying = TransferInput(readings=known, made_bytes={one.name: 0 for one in jobs}, **more)  # type: ignore[arg-type]
    made = dry_run(Pipeline(name="p", jobs=jobs), snapshot, {}, frozenset(), carrying)
    return {one.job: one for one in made.jobs}


ROWS = job("rows", resources=("here",))


def test_a_plan_says_what_the_alternatives_are_and_why_one_is_chosen() -> None:
    model = planned(ROWS, job("model", "rows"))["model"]
    assert (model.resource, model.site) == ("trainer", "gpu-farm")
    assert place_lines(model) == (
        "local CPU 40 min; gpu-farm 6 min + 3 min transfer: gpu-farm, the earliest expected end",
        "carries 1.8 GiB to gpu-farm in 3 min at 10 MiB/s, nothing back",
    )
    assert [one.seconds for one in model.alternatives] == [2400.0, 540.0]


def test_where_the_way_takes_longer_than_it_gains_it_stays_here() -> None:
    model = planned(ROWS, job("model", "rows"), readings=30_000)["model"]
    assert model.resource == "here"
    assert (
        model.choice
        == "local CPU 40 min; gpu-farm 6 min + 50 min transfer: local CPU, the earliest expected end"
    )


def test_it_goes_where_what_it_reads_is_made() -> None:
    """The same data, but made there by the job before."""
    measured_rows = (measured("rows", "trainer", "gpu-farm", 1.0, gpus=1),)
    jobs = (job("rows", resources=("trainer",)), job("model", "rows"))
    snapshot = Snapshot((a_site(), FARM, GPU, CPU, *HISTORY, *measured_rows))
    known = {"model": (replace(read("rows", 30_000 * MIB), made_by="rows"),)}
    carrying = TransferInput(readings=known, made_bytes={"model": 0, "rows": 0})
    made = dry_run(Pipeline(name="p", jobs=jobs), snapshot, {}, frozenset(), carrying)
    model = next(one for one in made.jobs if one.job == "model")
    assert (model.resource, model.ends) == ("trainer", 361.0)


def test_what_was_not_measured_is_tried_where_it_is_named_first() -> None:
    first = planned(ROWS, job("model", "rows"), measured=HISTORY[1:])["model"]
    assert first.resource == "here"
    assert "local CPU not measured yet; gpu-farm 6 min" in first.choice
    assert "the first resource that the job names; the duration of the job is not known yet" in first.choice
    second = planned(ROWS, job("model", "rows", resources=("trainer", "here")), measured=HISTORY[1:])["model"]
    assert second.resource == "trainer"
    assert second.choice.endswith(
        "local CPU not measured yet: gpu-farm, the earliest expected end of all resources with a known end"
    )


def test_where_others_have_the_room_the_wait_is_not_known() -> None:
    model = planned(ROWS, job("model", "rows"), crowded={"trainer": QueuePosition(position=2)})["model"]
    told = "gpu-farm 6 min + 3 min transfer + an unknown wait behind 2"
    assert (
        model.choice
        == f"local CPU 40 min; {told}: local CPU, the earliest expected end of all resources with a known end"
    )
    seats = (GpuSlot(gpu=0, taken=True), GpuSlot(gpu=1))
    seen = NodeUtilization(busy_cpus=0.0, owner_cpus=0.0, used_bytes=0, seats=seats)
    look = FarmStatus(version="", protocol=1, root="", nodes=FARM.nodes, utilization={"g": seen})
    assert [line_at(look, gpus) for gpus in (0, 1, 2)] == [None, None, QueuePosition(position=0)]
    assert line_at(replace(look, waiting=1), 0) == QueuePosition(position=1)
    halves = tuple(GpuSlot(gpu=number // 2, taken=not number % 2) for number in range(4))  # of two GPUs
    shared = replace(look, utilization={"g": replace(seen, seats=halves)})
    assert [line_at(shared, gpus) for gpus in (0, 1, 2)] == [None, None, QueuePosition(position=0)]
    assert line_at(replace(look, utilization={}), 2) is None  # a farm that does not give them out itself
    told = replace(
        look,
        waiting=1,
        future_capacity=(FutureCapacity(seconds=60.0, gpus=1), FutureCapacity(seconds=90.0, gpus=2)),
    )
    assert [line_at(told, gpus) for gpus in (0, 2, 3)] == [
        QueuePosition(position=1, seconds=60.0),
        QueuePosition(position=1, seconds=90.0),
        QueuePosition(position=1),
    ]


def test_what_a_farm_expects_of_its_line_counts_as_the_wait() -> None:
    for seconds, resource, told in ((600.0, "trainer", "10 min"), (2400.0, "here", "40 min")):
        line = {"trainer": QueuePosition(position=2, seconds=seconds)}
        model = planned(ROWS, job("model", "rows"), crowded=line)["model"]
        assert model.resource == resource
        assert f"gpu-farm 6 min + 3 min transfer + {told} wait behind 2: " in model.choice


def test_what_a_farm_expects_of_a_deployment_in_its_line_is_the_wait_for_it() -> None:
    stands, starting = a_job("stands", GIB), a_deployment(state=DeploymentState.STARTING, created=NOW - 50)
    coming = Snapshot((a_site(), a_resource("a"), a_run(), starting, stands))
    assert CachedForecasts(coming, NOW).standing_seconds(stands) == 50.0
    assert CachedForecasts(coming, NOW, {starting.id: 700.0}).standing_seconds(stands) == 700.0


def test_a_farm_that_does_not_answer_is_passed_over() -> None:
    model = planned(ROWS, job("model", "rows"), unreachable=("gpu-farm",))["model"]
    assert model.choice == (
        "local CPU 40 min; gpu-farm does not answer: local CPU, the only resource available now"
    )


def test_one_that_is_to_run_at_a_site_has_the_resources_there() -> None:
    at_home = replace(job("model", "rows"), at="local")
    assert planned(ROWS, at_home)["model"].choice == "local CPU 40 min"


def test_a_pinned_job_has_no_alternatives() -> None:
    pinned = replace(job("model", "rows"), resource="here", resources=())
    model = planned(ROWS, pinned)["model"]
    assert (model.resource, model.alternatives, model.choice, place_lines(model)) == ("here", (), "", ())


def test_times_are_told_by_what_ran_there_else_on_such_a_one_at_its_site() -> None:
    known = (measured("model", "here", "local", 100.0), measured("model", "big", "local", 50.0))
    told = ("p/model", "command/p/model", JobSize(), Snapshot(known).history)
    big, third, gpu = a_resource("big"), a_resource("third"), a_resource("gpu", gpus=1)
    assert [seconds_at(*told, one) for one in (big, third, gpu, GPU)] == [50.0, 75.0, None, None]
    assert [expected_seconds(*told, None, one) for one in (big, third, gpu)] == [50.0, 75.0, 75.0]


# how long it waits where it does not stand yet

DEMAND = Demand(GIB, 0, 0.0, 0, JobKind.COMMAND)


def running(took: float | None, *waiting: object, up: bool = True) -> Snapshot:
    """A pod with two places, both taken."""
    jobs = [a_job(f"x{n}", state=JobState.RUNNING) for n in range(2)]
    held = [an_attempt(one, memory=2 * GIB) for one in jobs]
    known = [] if took is None else [measured(one.job.name, "a", "local", took) for one in jobs]
    state = DeploymentState.UP if up else DeploymentState.STARTING
    a = a_resource("a", workers=1)
    deployment = a_deployment(memory=4 * GIB, cpus=1.0, state=state, idle_since=None, created=NOW - 50)
    return Snapshot((a_site(memory=4 * GIB), a, a_run(), deployment, *jobs, *held, *known, *waiting))


def test_who_would_join_waits_behind_all_that_wait() -> None:
    a = a_resource("a", workers=1)
    assert CachedForecasts(running(600.0), NOW).seconds(a, DEMAND) == pytest.approx(600.0)
    waiting = [a_job(f"y{n}", 2 * GIB) for n in range(2)]
    known = [measured(one.job.name, "a", "local", 100.0) for one in waiting]
    assert CachedForecasts(running(600.0, *waiting, *known), NOW).seconds(a, DEMAND) == pytest.approx(700.0)
    assert CachedForecasts(running(None), NOW).seconds(a, DEMAND) is None
    assert CachedForecasts(Snapshot((a_site(), a)), NOW).seconds(a, DEMAND) == 0.0
    assert CachedForecasts(Snapshot((a_site(),)), NOW).seconds(a, DEMAND) == 0.0


def test_where_it_cannot_be_told_it_waits_as_long_again() -> None:
    stands = a_job("z", ready=NOW - 70.0)
    assert CachedForecasts(running(None, stands), NOW).standing_seconds(stands) == 70.0
    coming = [
        a_site(),
        a_resource("a"),
        a_run(),
        a_deployment(state=DeploymentState.STARTING, created=NOW - 50),
    ]
    assert CachedForecasts(Snapshot((*coming, stands)), NOW).standing_seconds(stands) == 50.0
    assert CachedForecasts(Snapshot(coming), NOW).seconds(a_resource("a"), DEMAND) == 50.0


def test_sinks_of_a_pipeline_that_runs_at_a_farm_are_loaded_at_home() -> None:
    rows = Job(name="rows", sink=SinkSpec(source=Source(path="rows.csv")))
    made = Job(name="made", dataset=DatasetSpec(sql="select 1", tables=("rows",)))
    pipeline = Pipeline(name="p", jobs=(rows, made), at="gpu-farm")
    shown = dry_run(pipeline, Snapshot((a_site(), FARM)), {}, frozenset())
    assert [one.site for one in shown.jobs] == ["local", "gpu-farm"]
    explicit = replace(pipeline, jobs=(replace(rows, at="gpu-farm"),))
    (one,) = dry_run(explicit, Snapshot((a_site(), FARM)), {}, frozenset()).jobs
    assert one.site == "gpu-farm"  # and is refused there, for what it is


def test_where_only_the_wait_is_not_known_another_goes_first_though_named_later() -> None:
    history = (measured("model", "here", "local", 600.0), HISTORY[1])
    both = job("model", "rows", resources=("trainer", "here"))
    model = planned(ROWS, both, measured=history, crowded={"trainer": QueuePosition(position=2)})["model"]
    assert model.resource == "here"
    quick = ResourceAlternative(resource="q", site="s", label="s", run_seconds=1.0, wait_seconds=None)
    slow = replace(quick, resource="t", run_seconds=2.0)
    assert choose([slow, quick]).resource == "q"
    assert "whose length is not known" in choose([slow, quick]).why


def test_behind_too_many_the_wait_is_not_known_and_it_goes_where_nobody_waits() -> None:
    waiting = [a_job(f"y{n}", GIB) for n in range(MOST_BEFORE + 5)]
    known = [measured("y0", "a", "local", 600.0)]
    line = running(600.0, *waiting, *[replace(known[0], job=f"p/{one.job.name}") for one in waiting])
    assert CachedForecasts(line, NOW).seconds(a_resource("a", workers=1), DEMAND) is None


def test_what_stands_idle_makes_room_only_where_there_is_enough_and_another_worker_is_allowed() -> None:
    a = a_resource("a", workers=1)
    idle = a_deployment("c-1", resource="c", memory=GIB, cpus=1.0, idle_since=NOW - 10, created=NOW - 50)
    busy = running(600.0, a_resource("c"), idle)
    assert CachedForecasts(busy, NOW).seconds(a, DEMAND) == pytest.approx(600.0)  # it has its worker
    more = a_resource("a", workers=2, memory_bytes=3 * GIB)
    for noun in (more, a_site(memory=5 * GIB)):
        busy.put(noun)
    # too little would come free
    assert CachedForecasts(busy, NOW).seconds(more, DEMAND) == pytest.approx(600.0)
    less = replace(more, memory_bytes=GIB)
    busy.put(less)
    assert CachedForecasts(busy, NOW).seconds(less, DEMAND) == 0.0


def test_a_pod_that_comes_up_counts_for_those_behind_a_line() -> None:
    waiting = [a_job(f"y{n}", GIB) for n in range(3)]
    known = [measured(one.job.name, "a", "local", 100.0) for one in waiting]
    deployment = a_deployment(memory=2 * GIB, cpus=1.0, state=DeploymentState.STARTING, created=NOW - 50)
    nouns = (a_site(memory=2 * GIB), a_resource("a"), a_run(), deployment, *waiting, *known)
    assert CachedForecasts(Snapshot(nouns), NOW).seconds(a_resource("a"), DEMAND) == pytest.approx(100.0)


def test_those_that_were_sent_there_go_before() -> None:
    """Two places: the third waits for the first two."""
    a = a_resource("a", workers=1, cpus=1.0)
    joining = CachedForecasts(Snapshot((a_site(memory=4 * GIB), a)), NOW)
    told: list[float | None] = []
    for _ in range(5):
        told.append(joining.seconds(a, DEMAND))
        joining.send(a, DEMAND, 60.0)
    assert told == [0.0, 0.0, 60.0, 60.0, 120.0]
    assert joining.seconds(a, DEMAND._replace(workers=2)) == 180.0


@pytest.mark.parametrize("count", [20, 200])
def test_many_who_ask_cost_as_much_as_a_few(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """However much memory each asks for: what is ahead of them is rehearsed only a few times."""
    rehearsed: list[int] = []

    class Counted(WaitSimulation):
        def __init__(self, places: int, *rest: Any) -> None:
            rehearsed.append(places)
            super().__init__(places, *rest)

    monkeypatch.setattr(wait_estimate, "WaitSimulation", Counted)
    waiting = [a_job(f"y{n}", GIB + n) for n in range(count)]
    known = [measured(one.job.name, "a", "local", 100.0) for one in waiting]
    joining = CachedForecasts(running(600.0, *waiting, *known), NOW)
    for n, one in enumerate(waiting):
        assert joining.standing_seconds(one) >= 600.0
        behind = joining.seconds(a_resource("a", workers=1), DEMAND._replace(memory_bytes=GIB + n))
        assert behind is not None
        assert behind > 600.0
    assert len(rehearsed) <= 12
