"""Sizes: the models, what history corrects, and the targets it must meet."""

import random
import tracemalloc
from dataclasses import replace

import pytest

from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.dataset import Aggregate, AsOfJoin, Basis, DatasetSpec, Label, Lag, Window
from gridmill.domain.footprint import footprint_of
from gridmill.domain.job import CommandSpec, Job, JobKind, JobSize
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.resource import MeasuredUse, Measurement, Resource, default_resource
from gridmill.domain.sink import SinkSpec
from gridmill.domain.source import Format, Source
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.domain.tuning import Range, Search
from gridmill.domain.usage import ParallelTiming
from gridmill.scheduler.history import PER_JOB, MeasurementHistory
from gridmill.scheduler.sizing import (
    after_memory_kill,
    declared_as,
    model_bytes,
    size_job,
    size_resource,
    subject_of,
)

LARGEST = Amounts(cpus=4.0, memory_bytes=16 * GIB)


def training(model=ModelKind.GBDT, **fields):
    return Job(name="train", training=TrainingSpec(dataset="features", model=model), **fields)


COMMAND = Job(name="step", command=CommandSpec(run="true"))


def sized(job, size=None, history=None, resource=None, largest=LARGEST, **details):
    return size_job(
        job,
        size or JobSize(),
        history or MeasurementHistory(),
        pipeline="p",
        resource=resource or default_resource(job.kind),
        largest=largest,
        **{"nodes": 1, **details},
    )


def measured(job, peak, size=None, number=1, pipeline="p", seconds=10.0, given=GIB, killed=False):
    return Measurement(
        attempt_id=f"{pipeline}-{number}.{job.name}.1",
        subject=subject_of(job, pipeline),
        job=f"{pipeline}/{job.name}",
        size=size or JobSize(),
        given=Amounts(cpus=1.0, memory_bytes=given),
        use=MeasuredUse(wall_seconds=seconds, peak_memory_bytes=peak),
        ended=float(number),
        memory_killed=killed,
        declared=declared_as(job),
        model_bytes=model_bytes(job, size or JobSize(), None),
    )


def history_of(*measurements):
    history = MeasurementHistory()
    for measurement in measurements:
        history.add(measurement)
    return history


@pytest.mark.parametrize(
    ("job", "subject"),
    [
        (training(ModelKind.LSTM), "training/lstm"),
        (Job(name="s", sink=SinkSpec(source=Source(path="a/b.csv.gz"))), "sink/csv"),
        (Job(name="s", sink=SinkSpec(source=Source(path=("x.json",)))), "sink/jsonl"),
        (Job(name="s", sink=SinkSpec(source=Source(path="x", format=Format.PARQUET))), "sink/parquet"),
        (Job(name="d", dataset=DatasetSpec(sql="select 1")), "dataset/sql"),
        (Job(name="d", dataset=DatasetSpec()), "dataset/features"),
        (Job(name="q", prediction=PredictionSpec(dataset="d", models=("m",))), "prediction"),
        (COMMAND, "command/p/step"),
    ],
)
def test_subjects(job, subject):
    assert subject_of(job, "p") == subject


def test_the_model_says_what_it_reckons_with():
    sizing = sized(training(), JobSize(rows=8759, columns=12))
    assert sizing.why[0].startswith("8,759 rows x 12 columns: ")
    assert sizing.why[0].endswith("estimated for training/gbdt")
    assert sizing.amounts.memory_bytes >= 200 * MIB


def test_more_rows_need_more_memory():
    sizes = [
        sized(training(), JobSize(rows=rows, columns=20)).amounts.memory_bytes
        for rows in (10**5, 10**6, 10**7)
    ]
    assert sizes == sorted(set(sizes))


def test_labels_of_many_rows_ahead_are_columns_too():
    basis = Basis(table="hourly", time="date")
    label = Label(columns=tuple("abcdefg"), next_rows=96)
    size = JobSize(rows=17_420, columns=8, input_bytes=361_732)
    plain, wide = (
        sized(Job(name="d", dataset=DatasetSpec(basis=basis, label=one)), size).amounts.memory_bytes
        for one in (None, label)
    )
    assert plain < 400 * MIB
    assert 531 * MIB < wide < 2 * 531 * MIB  # as was measured


def past(*, aggregates: int = 0, columns: int = 1, joined: bool = False, lags: int = 0) -> DatasetSpec:
    """A dataset with so many aggregates of each of so many columns."""
    return DatasetSpec(
        basis=Basis(table="base", time="t", entity=("e",)),
        label=Label(column="y"),
        windows=tuple(
            Window(column=f"x{number}", aggregates=tuple(Aggregate)[:aggregates], span_seconds=604_800.0)
            for number in range(columns if aggregates else 0)
        ),
        lags=(Lag(column="x0", steps=tuple(range(1, lags + 1))),) if lags else (),
        asof_joins=(AsOfJoin(table="other", known_at="t", on=("e",)),) if joined else (),
    )


MEASURED = [
    # rows, columns, bytes stored, what is made, the peak in MiB with 8 GiB given
    (200_000, 13, 10_212_142, past(), 175),
    (200_000, 13, 10_212_142, past(aggregates=3, columns=4), 269),
    (200_000, 13, 10_212_142, past(aggregates=8, columns=10), 468),
    (220_000, 13, 11_415_374, past(joined=True), 248),
    (220_000, 13, 11_415_374, past(aggregates=2, columns=6, joined=True, lags=3), 277),
    (1_750_000, 13, 72_246_863, past(), 718),
    (1_750_000, 13, 72_246_863, past(aggregates=3, columns=4), 876),
    (1_750_000, 13, 72_246_863, past(aggregates=8, columns=10), 1024),
    (1_925_000, 13, 82_503_119, past(joined=True), 962),
    (1_925_000, 13, 82_503_119, past(aggregates=2, columns=6, joined=True, lags=3), 860),
    (5_000_000, 13, 204_984_530, past(), 1536),
    (5_000_000, 13, 204_984_530, past(aggregates=3, columns=4), 1638),
    (5_500_000, 13, 231_334_498, past(joined=True), 1843),
    (1_750_000, 43, 195_517_611, past(), 1536),
    (1_750_000, 43, 195_517_611, past(aggregates=3, columns=4), 1741),
    (1_925_000, 43, 205_772_966, past(aggregates=2, columns=6, joined=True, lags=3), 1638),
]


@pytest.mark.parametrize(("rows", "columns", "stored", "spec", "peak"), MEASURED)
def test_a_first_dataset_gets_about_what_it_takes(rows, columns, stored, spec, peak):
    size = JobSize(rows=rows, columns=columns, input_bytes=stored)
    given = sized(Job(name="d", dataset=spec), size).amounts.memory_bytes / MIB
    assert peak < given < 3 * peak


def test_a_first_dataset_gets_no_more_than_its_engine_makes_use_of():
    size = JobSize(rows=10**9, columns=100)
    given = sized(Job(name="d", dataset=past(aggregates=8, columns=99)), size).amounts.memory_bytes
    assert given == pytest.approx(1.5 * (220 * MIB + 4 * GIB), abs=16 * MIB)


def test_a_command_gets_a_plain_default():
    assert sized(COMMAND).amounts.memory_bytes == 768 * MIB
    assert sized(COMMAND, history=history_of(measured(COMMAND, 5 * MIB))).amounts.memory_bytes == 256 * MIB


def test_declared_memory_and_cpus_stand():
    sizing = sized(replace(COMMAND, memory_bytes=40 * GIB, cpus=3.0))
    assert sizing.amounts == Amounts(cpus=3.0, memory_bytes=40 * GIB)
    assert sizing.why == ("40 GiB: declared by the job",)


def test_declared_rows_go_before_read_ones_and_the_resource_fills_in():
    resource = replace(default_resource(JobKind.TRAINING), size=JobSize(rows=5, columns=7))
    assert (
        sized(training(rows=100), JobSize(rows=50), resource=resource)
        .why[0]
        .startswith("100 rows x 7 columns")
    )
    assert sized(training(), JobSize(rows=50), resource=resource).why[0].startswith("50 rows x 7 columns")
    assert sized(training(), JobSize(), resource=resource).why[0].startswith("5 rows x 7 columns")


def test_earlier_attempts_of_the_job_decide():
    peaks = [300 * MIB, 310 * MIB, 290 * MIB]
    history = history_of(*(measured(training(), peak, number=k) for k, peak in enumerate(peaks)))
    sizing = sized(training(), history=history)
    assert sizing.why[0] == "peak 310 MiB in 3 earlier attempts, plus 30%: 416 MiB"
    assert sizing.amounts.memory_bytes == 416 * MIB


def test_a_peak_is_scaled_by_the_size():
    history = history_of(measured(training(), 700 * MIB, JobSize(rows=10**6, columns=10)))
    larger = sized(training(), JobSize(rows=2 * 10**6, columns=10), history)
    assert larger.amounts.memory_bytes == pytest.approx((200 + 2 * 500) * MIB * 1.5, rel=0.02)


GIVEN_AND_PEAK = ((2144, 961), (1456, 672), (1456, 744))
"""MiB that a dataset with windows over 1.5 million rows had, and took."""


def of_three(job, given_and_peak=GIVEN_AND_PEAK, **fields):
    size = JobSize(rows=1_500_000, columns=12)
    runs = enumerate(given_and_peak)
    return history_of(
        *(measured(job, peak * MIB, size, number, given=had * MIB, **fields) for number, (had, peak) in runs)
    )


def test_what_takes_more_where_it_is_given_more_is_told_by_those_that_had_less():
    job = Job(name="d", dataset=DatasetSpec(sql="select 1"))
    more = JobSize(rows=1_875_000, columns=12)
    assert 850 * MIB < sized(job, more, of_three(job)).amounts.memory_bytes <= 2 * 621 * MIB
    assert sized(training(), more, of_three(training())).amounts.memory_bytes > 2 * 621 * MIB


def test_an_engine_that_gives_up_within_its_share_keeps_room_however_often_it_was_measured():
    job, size = Job(name="d", dataset=DatasetSpec(sql="select 1")), JobSize(rows=75_000, columns=304)
    history = history_of(*(measured(job, 617 * MIB, size, k, given=992 * MIB) for k in range(9)))
    assert sized(job, size, history).amounts.memory_bytes >= 928 * MIB


def test_after_a_try_with_little_data_the_model_says_what_much_takes():
    small, large = JobSize(rows=10_000, columns=12), JobSize(rows=1_500_000, columns=12)
    history = history_of(*(measured(training(), 30 * MIB, small, number) for number in range(3)))
    at_once = sized(training(), large).amounts.memory_bytes
    assert sized(training(), large, history).amounts.memory_bytes == at_once > GIB
    few = sized(training(), JobSize(rows=30_000, columns=12), history)
    assert few.amounts.memory_bytes == footprint_of(training()).floor_bytes
    history.add(measured(training(), 632 * MIB, large, 9))
    assert sized(training(), large, history).amounts.memory_bytes < 2 * 632 * MIB


def test_what_had_less_because_there_was_less_to_do_does_not_tell_of_more():
    job = Job(name="d", dataset=DatasetSpec(sql="select 1"))
    history = of_three(job, GIVEN_AND_PEAK[1:])
    history.add(measured(job, 230 * MIB, JobSize(rows=100_000, columns=12), 9, given=272 * MIB))
    size = JobSize(rows=1_500_000, columns=12)
    assert sized(job, size, history).amounts.memory_bytes > 744 * MIB


def test_what_was_killed_for_its_memory_needed_it_whatever_others_got_by_with():
    job = Job(name="d", dataset=DatasetSpec(sql="select 1"))
    size, history = JobSize(rows=1_500_000, columns=12), of_three(job, GIVEN_AND_PEAK[1:])
    history.add(measured(job, 2144 * MIB, size, 9, given=2144 * MIB, killed=True))
    assert sized(job, size, history).amounts.memory_bytes > 2144 * MIB


def test_other_jobs_of_the_subject_correct_the_model():
    other = replace(training(), name="other")
    size = JobSize(rows=10**6, columns=10)
    plain = sized(training(), size)
    history = history_of(measured(other, 4 * plain.amounts.memory_bytes, size))
    assert sized(training(), size, history).amounts.memory_bytes > 3 * plain.amounts.memory_bytes
    assert "adjusted from 1 attempt of" in sized(training(), size, history).why[0]


def swarm_of(job, workers, peak, number):
    told = ParallelTiming(
        work="w", workers=workers, shards=8, rows=100, whole_rows=100, stage_seconds=0.0, opening_seconds=0.0,
        opening_cpu_seconds=0.0, opening_delay_seconds=0.0, busy_seconds=1.0, longest_seconds=0.1,
    )  # fmt: skip
    return replace(measured(job, peak, number=number), parallel=told)


@pytest.mark.parametrize(
    ("workers", "peak", "margin"),
    [(1, 500, 1.4), (2, 800, 1.5), (3, 2000, 1.5), (8, 2000 * 8 / 4, 1.5)],
)
def test_attempts_with_as_many_workers_say_more_than_others(workers, peak, margin):
    job = Job(name="q", prediction=PredictionSpec(dataset="d", models=("m",), workers=workers))
    earlier = [(1, 500), (2, 800), (1, 490), (4, 2000)]
    history = history_of(*(swarm_of(job, crew, mib * MIB, n) for n, (crew, mib) in enumerate(earlier, 1)))
    given = sized(job, JobSize(), history).amounts.memory_bytes
    assert peak * margin * MIB <= given < (peak * margin + 16) * MIB


def test_an_estimate_is_cut_to_what_there_is_and_says_so():
    sizing = sized(training(), JobSize(rows=10**9, columns=100))
    assert sizing.amounts.memory_bytes == LARGEST.memory_bytes
    assert sizing.why[-1] == "cut to 16 GiB, the largest node of site local"
    small = Resource(name="small", type=JobKind.TRAINING, memory_bytes=2 * GIB)
    assert (
        sized(training(), JobSize(rows=10**9), resource=small).why[-1]
        == "cut to 2 GiB, the memory of resource small"
    )


@pytest.mark.parametrize(("nodes", "gib"), [(1, 2), (2, 4), (0, 2)])
def test_what_spills_leaves_room_for_the_other_pods_of_its_resource(nodes, gib):
    job, size = Job(name="d", dataset=DatasetSpec(sql="select 1")), JobSize(rows=10**9)
    pair = Resource(name="pair", type=JobKind.DATASET, workers=2)
    largest = Amounts(cpus=4.0, memory_bytes=4 * GIB)
    sizing = sized(job, size, resource=pair, nodes=nodes, largest=largest)
    assert sizing.amounts.memory_bytes == gib * GIB
    assert gib == 4 or sizing.why[-1] == "cut to 2 GiB, so that 2 pods fit on a node"
    other = sized(training(), size, resource=pair, nodes=nodes, largest=largest)
    assert other.amounts.memory_bytes == 4 * GIB
    killed = history_of(measured(job, 3 * GIB, size, given=3 * GIB, killed=True))
    assert sized(job, size, killed, pair, nodes=nodes, largest=largest).amounts.memory_bytes > 3 * GIB


def test_workers_of_a_search_are_as_many_as_the_cpus_that_go_with_its_gpus():
    search = Search(trials=32, parameters={"hidden": Range(between=(1, 2))})
    job = Job(name="m", training=TrainingSpec(dataset="d", model=ModelKind.LSTM, search=search))
    node = Amounts(cpus=32.0, memory_bytes=64 * GIB, gpus=4)
    one = Resource(name="one", type=JobKind.TRAINING, gpus=1)
    assert sized(job, JobSize(rows=9), resource=one, largest=node).workers == 8
    assert sized(job, JobSize(rows=9), resource=replace(one, gpus=4), largest=node).workers == 32


def test_gpus_come_from_the_resource_and_never_from_a_default_one():
    assert sized(training(), resource=Resource(name="g", type=JobKind.TRAINING, gpus=2)).amounts.gpus == 2
    default = Resource(name="d", type=JobKind.TRAINING, gpus=2, default=True)
    assert sized(training(), resource=default).amounts.gpus == 0


def test_swarm_workers():
    job = Job(name="swarm", prediction=PredictionSpec(dataset="d", models=("m",)))
    assert sized(job, JobSize(rows=1000)).workers == 1
    assert sized(job, JobSize(rows=10**7)).workers == 4  # one per CPU
    chosen = Job(name="swarm", prediction=PredictionSpec(dataset="d", models=("m",), workers=3))
    assert sized(chosen, JobSize(rows=1000)).workers == 3
    one = sized(job, JobSize(rows=1000)).amounts.memory_bytes
    assert sized(chosen, JobSize(rows=1000)).amounts.memory_bytes > one


def test_expected_seconds_follow_from_earlier_attempts():
    assert sized(training()).expected_seconds is None
    history = history_of(
        *(measured(training(), GIB, number=k, seconds=s) for k, s in enumerate((9.0, 10.0, 30.0)))
    )
    assert sized(training(), history=history).expected_seconds == 10.0


def test_a_job_killed_for_memory_gets_twice_as_much_and_says_so():
    sizing = sized(COMMAND)
    larger = after_memory_kill(sizing, GIB, 16 * GIB)
    assert larger.amounts.memory_bytes == 2 * GIB
    assert larger.why[-1] == "ran out of memory at 1 GiB: 2 GiB for the next attempt"
    assert after_memory_kill(sizing, 12 * GIB, 16 * GIB).amounts.memory_bytes == 16 * GIB
    assert after_memory_kill(sizing, 16 * GIB, 16 * GIB) is sizing


def test_a_memory_kill_is_remembered():
    history = history_of(measured(training(), 900 * MIB, given=GIB, killed=True))
    assert sized(training(), history=history).amounts.memory_bytes >= 1.5 * GIB


def test_the_next_size_is_at_least_twice_what_the_last_attempt_was_killed_at():
    small = [measured(COMMAND, 50 * MIB, given=512 * MIB, number=k) for k in range(4)]
    killed = measured(COMMAND, 500 * MIB, given=512 * MIB, killed=True, number=9)
    sizing = sized(COMMAND, history=history_of(*small, killed))
    assert sizing.amounts.memory_bytes == GIB
    assert sizing.why[0].endswith("; 1 GiB, twice the limit at which the last attempt ran out of memory")
    after = measured(COMMAND, 600 * MIB, given=GIB, number=10)
    assert sized(COMMAND, history=history_of(*small, killed, after)).amounts.memory_bytes < GIB


def test_history_is_bounded_and_counts_an_attempt_once():
    history = history_of(*(measured(training(), GIB, number=k) for k in range(PER_JOB + 5)))
    assert len(history.of_job("p/train", "training/gbdt")) == PER_JOB
    history = history_of(measured(training(), GIB), measured(training(), GIB))
    assert len(history.of_subject("training/gbdt")) == 1


def test_what_a_resource_gets():
    resource = Resource(name="r", type=JobKind.TRAINING, size=JobSize(rows=10**6))
    sizing = size_resource(resource, MeasurementHistory(), LARGEST)
    assert sizing.why[0].startswith("1,000,000 rows: ")
    assert sizing.amounts.cpus == 4.0
    explicit = Resource(name="r", type=JobKind.TRAINING, cpus=2.0, memory_bytes=3 * GIB, gpus=1, workers=2)
    sizing = size_resource(explicit, MeasurementHistory(), LARGEST)
    assert (sizing.amounts, sizing.workers) == (Amounts(cpus=2.0, memory_bytes=3 * GIB, gpus=1), 2)


@pytest.mark.parametrize("spread", [0.02, 0.08])
def test_after_three_runs_sizes_hold_and_are_not_wasteful(spread):
    """In 99 % of attempts the peak is within the size; above the floor the size is at most twice the peak."""
    chance = random.Random(7)
    within = total = wasteful = 0
    for number in range(60):
        job = replace(training(chance.choice(list(ModelKind))), name=f"job{number}")
        true_base, true_cell = chance.uniform(100, 400) * MIB, chance.uniform(4, 80)
        history = MeasurementHistory()
        for run in range(25):
            rows = int(10 ** chance.uniform(4.5, 5) * 10)
            size = JobSize(rows=rows, columns=12)
            peak = int((true_base + rows * 12 * true_cell) * chance.lognormvariate(0.0, spread))
            chosen = sized(job, size, history).amounts.memory_bytes
            if run >= 3:
                total += 1
                within += peak <= chosen
                floor = footprint_of(job).floor_bytes
                wasteful += chosen > max(2 * peak, floor + 16 * MIB)
            history.add(
                measured(job, min(peak, chosen), size, number=run, given=chosen, killed=peak > chosen)
            )
    assert within / total >= 0.99
    assert wasteful / total <= 0.01


def network(model=ModelKind.LSTM, **settings):
    return Job(name="train", training=TrainingSpec(dataset="features", model=model, **settings))


SMALL = JobSize(rows=20_000, columns=8)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"hidden": 16}, {"hidden": 512}),
        ({"sequence": 24}, {"sequence": 2000}),
        ({"batch_size": 32}, {"batch_size": 8192}),
    ],
)
def test_a_larger_network_is_sized_as_in_a_fresh_home(before, now):
    job = network(**now)
    fresh = sized(job, SMALL).amounts.memory_bytes
    history = history_of(measured(network(**before), 250 * MIB, size=SMALL))
    used = sized(job, SMALL, history)
    assert 0.6 * fresh < used.amounts.memory_bytes < 1.5 * fresh
    assert "with these settings" in used.why[0]


def test_a_smaller_network_needs_less_again_and_equal_settings_are_measured_ones():
    job = network(hidden=16)
    history = history_of(
        measured(network(hidden=512), 1600 * MIB, size=SMALL, number=1),
        measured(job, 260 * MIB, size=SMALL, number=2),
    )
    assert sized(job, SMALL, history).amounts.memory_bytes < 800 * MIB
    assert sized(network(hidden=512), SMALL, history).amounts.memory_bytes >= 1600 * MIB


def test_settings_that_no_model_knows_keep_what_was_measured():
    history = history_of(*(measured(network(epochs=5), 300 * MIB, size=SMALL, number=n) for n in range(3)))
    before = sized(network(epochs=5), SMALL, history)
    assert sized(network(epochs=50), SMALL, history).amounts == before.amounts


def command(run):
    return Job(name="step", command=CommandSpec(run=run))


def test_a_command_that_changed_gets_at_least_what_an_unknown_one_gets():
    echo, eats = command("echo"), command("python eat.py")
    unknown = sized(eats).amounts.memory_bytes
    history = history_of(*(measured(echo, 4 * MIB, number=number) for number in range(5)))
    assert sized(echo, history=history).amounts.memory_bytes < unknown
    changed = sized(eats, history=history)
    assert changed.amounts.memory_bytes == unknown
    assert "changed since it was measured" in changed.why[0]
    large = history_of(measured(echo, 4 * GIB))
    assert sized(eats, history=large).amounts.memory_bytes > 4 * GIB


def test_a_command_whose_text_changes_each_time_is_measured_all_the_same():
    texts = [command(f"./load.sh --part {number}") for number in range(4)]
    history = history_of(*(measured(job, 40 * MIB, number=n) for n, job in enumerate(texts[:3])))
    assert sized(texts[3], history=history).amounts.memory_bytes == 256 * MIB
    dated = history_of(measured(command("./load.sh 2026-01-01T06:00:00Z"), 40 * MIB))
    assert sized(command("./load.sh 2026-02-01T06:00:00Z"), history=dated).amounts.memory_bytes == 256 * MIB


def test_rows_that_a_command_declares_count():
    many = replace(COMMAND, rows=20_000_000)
    unknown, declared = sized(COMMAND), sized(many)
    assert declared.amounts.memory_bytes > 4 * unknown.amounts.memory_bytes
    assert declared.why[0].startswith("20,000,000 rows: ")
    assert sized(replace(COMMAND, rows=1000)).amounts == unknown.amounts
    small = history_of(measured(replace(COMMAND, rows=2_000_000), 400 * MIB, size=JobSize(rows=2_000_000)))
    assert sized(many, history=small).amounts.memory_bytes > 4000 * MIB


@pytest.mark.parametrize("peak", [50 * MIB, 3 * GIB])
def test_after_a_kill_the_next_run_begins_with_twice_as_much(peak):
    history = history_of(
        measured(COMMAND, peak, number=1, given=8 * GIB),
        measured(COMMAND, 512 * MIB, number=2, given=512 * MIB, killed=True),
    )
    assert sized(COMMAND, history=history).amounts.memory_bytes >= 1024 * MIB


def test_the_history_of_many_jobs_that_ran_once_takes_little_memory():
    subject = subject_of(Job(name="j", command=CommandSpec(run="true")), "p")
    known = [
        Measurement(
            attempt_id=f"r.{number}.1",
            subject=f"{subject}{number}",
            job=f"p/{number}",
            size=JobSize(),
            given=Amounts(),
            use=MeasuredUse(),
            ended=1.0,
        )
        for number in range(2000)
    ]
    history = MeasurementHistory()
    tracemalloc.start()
    try:
        for one in known:
            history.add(one)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(known) < 300  # bytes
    for number in range(100):
        history.add(replace(known[0], attempt_id=f"again.{number}"))
    assert [one.attempt_id for one in history.of_job("p/0", f"{subject}0")] == [
        f"again.{number}" for number in range(80, 100)
    ]
    assert len(history.of_subject(f"{subject}0")) == 60
