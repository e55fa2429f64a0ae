"""What a job in parts tells of itself: to advice, and to its next size."""

from dataclasses import replace
from functools import partial

import pytest
from tests.unit.scheduler.test_sizing import history_of, measured

from gridmill.domain.advice import Bottleneck
from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.dataset import Basis, DatasetSpec
from gridmill.domain.job import Job, JobSize
from gridmill.domain.pod_protocol import PartReport
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.resource import MeasuredUse, Measurement, default_resource
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.scheduler.advice import AdviceInput, advise
from gridmill.scheduler.gang_results import parallel_of_swarm, parallel_of_whole, use_of_whole
from gridmill.scheduler.sizing import size_job
from gridmill.scheduler.splitting import cut_job
from gridmill.testing.fake_advising import parallel_attempt

JOB = Job(name="features", dataset=DatasetSpec(basis=Basis(table="rows", time="t", entity=("user",))))
GATHERED = MeasuredUse(wall_seconds=2.0, cpu_seconds=1.0, peak_memory_bytes=100 * MIB, disk_seconds=0.5)


def told(began, seconds, *, cpu_share=1.0, peak=400 * MIB, disk_seconds=0.0):
    use = MeasuredUse(
        wall_seconds=seconds,
        cpu_seconds=seconds * cpu_share,
        peak_memory_bytes=peak,
        disk_seconds=disk_seconds,
        read_bytes=1000,
    )
    return PartReport(began=began, ended=began + seconds, use=use)


def test_the_whole_took_from_the_first_parts_begin_to_the_gathers_end():
    use = use_of_whole([told(10.0, 20.0), told(12.0, 30.0, peak=500 * MIB)], GATHERED)
    assert (use.wall_seconds, use.cpu_seconds, use.peak_memory_bytes) == (34.0, 51.0, 500 * MIB)
    assert use.disk_seconds == 0.5
    assert use.read_bytes is None, "of one that was not told"


@pytest.mark.parametrize(
    ("begins", "workers"), [((0.0, 0.0, 0.0), 3), ((0.0, 0.0, 10.0), 2), ((0.0, 10.0, 20.0), 1)]
)
def test_its_workers_are_the_parts_that_were_at_work_at_once(begins, workers):
    whole = parallel_of_whole("dataset", 100, [told(begin, 10.0) for begin in begins])
    assert (whole.workers, whole.pods, whole.shards) == (workers, workers, 3)
    assert (whole.busy_seconds, whole.cpu_seconds, whole.read_bytes) == (30.0, 30.0, 3000)
    assert whole.stage_seconds == max(begins) + 10.0


def attempt(number, parts, *, work_seconds=60.0, cpu_share=0.2, peak=400 * MIB, rows=10**6):
    """In so many parts, each of them at the same time; waiting for something most of it."""
    each = [told(0.0, work_seconds / parts, cpu_share=cpu_share, peak=peak) for _ in range(parts)]
    known = measured(JOB, peak, JobSize(rows=rows, columns=10), number=number)
    whole = parallel_of_whole("dataset/features by rows", rows, each)
    return replace(known, use=use_of_whole(each, GATHERED), parallel=whole)


def advice_on(*attempts: Measurement, pods=4):
    most = Amounts(cpus=1.0, memory_bytes=8 * GIB)
    found = advise(AdviceInput(name="p/features", job=JOB, measured=attempts, most=most, pods=pods))
    assert found is not None
    return found


def test_advice_on_parts_knows_that_each_has_a_machine():
    found = advice_on(attempt(1, 1), attempt(2, 2))
    assert found.bound is Bottleneck.WAITING
    four = found.forecast(4)
    assert four is not None
    assert four.seconds == pytest.approx(2.0 + 15.0, rel=0.05)
    assert found.worth == 4, "no more than there are machines"
    assert not found.probes, "each would be a whole run"


def test_parts_that_compute_are_not_held_to_the_cpus_of_one_machine():
    found = advice_on(attempt(1, 1, cpu_share=1.0), attempt(2, 2, cpu_share=1.0))
    two, four = found.forecast(2), found.forecast(4)
    assert two is not None
    assert four is not None
    assert four.speedup > 1.8 * two.speedup * 0.95
    assert found.bound is Bottleneck.CPU


def test_a_part_is_sized_by_what_parts_took_and_the_whole_in_one_by_all_of_them():
    history = history_of(*(attempt(number, 4, peak=600 * MIB) for number in range(3)))
    size = JobSize(rows=10**6, columns=10)

    def of(parts: int) -> int:
        made = size_job(
            JOB,
            size,
            history,
            pipeline="p",
            resource=default_resource(JOB.kind),
            largest=Amounts(cpus=4.0, memory_bytes=64 * GIB),
            nodes=1,
            parts=parts,
        )
        return made.amounts.memory_bytes

    assert of(4) == of(8), "parts may be uneven"
    assert of(4) < 1.6 * 600 * MIB
    assert of(2) > 1.2 * of(4), "what may spill takes less than twice as much"
    assert of(1) > of(2)


SWARM = Job(name="predict", prediction=PredictionSpec(dataset="features", models=("train",)))
POD = Amounts(cpus=2.0, memory_bytes=8 * GIB)


def swarm_attempt(number, workers, *, pods=1, cpu_share=1.0):
    """In so many pods of two CPUs, each of them with as many workers; 60 worker-seconds."""
    known = parallel_attempt(number, workers=workers, work_seconds=60.0, cpu_share=cpu_share)
    if pods == 1:
        return known
    assert known.parallel is not None
    told_by_parts = [told(0.0, known.parallel.stage_seconds) for _ in range(pods)]
    return replace(known, parallel=parallel_of_swarm(known.parallel, told_by_parts))


def advice_on_swarm(*attempts: Measurement, pods: int):
    found = advise(AdviceInput(name="weather/predict", job=SWARM, measured=attempts, most=POD, pods=pods))
    assert found is not None
    return found


@pytest.mark.parametrize(("begins", "workers", "pods"), [((0.0, 1.0), 6, 2), ((0.0, 10.0), 3, 1)])
def test_a_swarm_in_parts_had_the_workers_of_those_that_were_at_work_at_once(begins, workers, pods):
    known = parallel_attempt(1, workers=6, work_seconds=60.0).parallel
    assert known is not None
    whole = parallel_of_swarm(known, [told(begin, 10.0) for begin in begins])
    assert (whole.workers, whole.pods) == (workers, pods)
    assert whole.stage_seconds == (known.stage_seconds if pods == 2 else 20.0)
    assert replace(whole, workers=6, pods=1, stage_seconds=known.stage_seconds) == known, "all else is kept"


def test_a_swarm_in_parts_is_not_held_to_the_cpus_of_one_machine():
    attempts = swarm_attempt(1, 2), swarm_attempt(2, 6, pods=3)
    found, alone = advice_on_swarm(*attempts, pods=3), advice_on_swarm(*attempts[:1], pods=1)
    assert [one.workers for one in found.measured] == [2, 6]
    six, crowded = found.forecast(4), alone.forecast(4)
    assert six is not None
    assert crowded is not None
    assert six.seconds < 0.6 * crowded.seconds, "four that compute want two machines of two CPUs"
    assert found.probes, "a probe is one pod's"
    assert max(probe.workers for probe in found.probes) <= 2


def test_workers_that_advice_gives_a_swarm_are_spread_over_its_pods():
    history = history_of(swarm_attempt(1, 2), swarm_attempt(2, 6, pods=3))
    nodes = tuple(Node(name=name, capacity=POD) for name in "abc")
    resource = default_resource(SWARM.kind)
    site = Site(name="local", kind=SiteKind.SIMULATED, nodes=nodes)
    sized = partial(
        size_job,
        size=JobSize(rows=64_000),
        history=history,
        pipeline="weather",
        resource=resource,
        largest=POD,
        nodes=len(site.nodes),
    )
    found = cut_job(SWARM, JobSize(rows=64_000), resource, site, sized)
    assert found is not None
    assert (found.count, found.part.workers) == (3, 2)
    assert found.part.expected_seconds == found.whole.expected_seconds
    assert found.whole.expected_seconds == pytest.approx(2.5 + 10.0, rel=0.1)
