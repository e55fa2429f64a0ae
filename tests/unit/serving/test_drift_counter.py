"""Counting the rows of requests in the bins of the training, and deciding the drift of several replicas."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.served_models import linear_model, order_of

from gridmill.domain.drift import PREDICTION, WINDOW_SECONDS, TrainingStatistics, drift_of_pods
from gridmill.domain.serving import ServedVersion
from gridmill.jobs.model_files import load_card
from gridmill.jobs.training_statistics import count, save_statistics, statistics_of
from gridmill.serving.drift_counter import MOST_ROWS, DriftCounter, DriftFile, drift_counter
from gridmill.serving.drift_monitor import LOOK_SECONDS, PUBLISH_SECONDS, DriftMonitor, read_statistics
from gridmill.serving.served_model import ServedModel, load_version


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = linear_model(tmp_path_factory.mktemp("models") / "m")
    inputs = rows(2000)
    save_statistics(made, statistics_of(load_card(made), inputs, predictions(inputs)))
    return made


def rows(number: int, *, seed: int = 0, shift: float = 0.0) -> np.ndarray:
    """Inputs of the model: two numbers, of which the first is sometimes missing, and a city."""
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(number, 2)) + np.array([shift, 0.0])
    numbers[random.random(number) < 0.1, 0] = np.nan
    return np.concatenate([numbers, np.eye(3)[random.integers(0, 3, number)][:, :2]], axis=1)


def predictions(inputs: np.ndarray) -> np.ndarray:
    return np.nan_to_num(inputs) @ [1.0, 10.0, 100.0, 1000.0]


def model_of(folder: Path) -> ServedModel:
    return load_version(ServedVersion(label="weather/linear@1", folder=str(folder)), "1", 1)


def by_definition(statistics: TrainingStatistics, inputs: np.ndarray, predicted: np.ndarray) -> list:
    """The counts, row by row."""
    found = []
    for bins, column in zip(statistics.bins, (0, 1, None, "p"), strict=True):
        counts = [0] * len(bins.counts)
        for number, row in enumerate(inputs):
            if bins.categories:
                place = next((n for n in range(len(bins.categories)) if row[2 + n] == 1), len(counts) - 1)
            else:
                value = predicted[number] if column == "p" else row[column]
                place = len(counts) - 1 if np.isnan(value) else sum(edge <= value for edge in bins.edges)
            counts[place] += 1
        found.append(tuple(counts))
    return found


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.floats(-3, 3))
def test_rows_are_counted_as_one_by_one(folder, seed, number, shift):
    statistics = read_statistics(folder)
    inputs = rows(number, seed=seed, shift=shift)
    expected = by_definition(statistics, inputs, predictions(inputs))
    assert list(count(load_card(folder), statistics, inputs, predictions(inputs))) == expected


def test_the_bins_of_the_training_have_about_the_same_rows(folder):
    statistics = read_statistics(folder)
    assert [one.name for one in statistics.bins] == ["temp", "wind speed", "city", PREDICTION]
    for bins in statistics.bins:
        assert sum(bins.counts) == 2000
    inner = statistics.features[1].counts[1:-2]
    assert len(inner) == 10
    assert all(190 <= one <= 210 for one in inner)
    assert statistics.features[1].counts[0] == statistics.features[1].counts[-2] == 0
    assert 150 < statistics.features[0].counts[-1] < 250


def test_an_interval_counts_a_bounded_number_of_rows(folder):
    counter = drift_counter(model_of(folder))
    assert counter is not None
    for _ in range(10):
        counter.add(rows(MOST_ROWS // 2 + 1), predictions(rows(MOST_ROWS // 2 + 1)))
    counter.count()
    assert [sum(one) for one in counter.counts] == [MOST_ROWS] * 4
    counter.add(rows(3), predictions(rows(3)))
    counter.count()
    assert [sum(one) for one in counter.counts] == [MOST_ROWS + 3] * 4


def test_a_model_without_statistics_is_not_counted(tmp_path):
    assert drift_counter(model_of(linear_model(tmp_path / "m"))) is None


class Replica:
    """The counting of one replica."""

    def __init__(self, service: Path, model: ServedModel, number: int) -> None:
        counter = drift_counter(model)
        assert counter is not None
        self.counter: DriftCounter = counter
        self.file = DriftFile(service, number)

    def serve(self, inputs: np.ndarray) -> None:
        self.counter.add(inputs, predictions(inputs))
        self.file._due = 0.0
        self.file.save({"weather/linear@1": self.counter})


def test_the_counts_of_all_replicas_make_a_drift_that_begins_and_ends(tmp_path, folder):
    model, order = model_of(folder), order_of(folder)
    monitor, now = DriftMonitor(tmp_path), 1000.0
    replicas = [Replica(tmp_path, model, number) for number in range(2)]

    def look(shift: float, seconds: float) -> tuple[str, ...]:
        nonlocal now
        for number, one in enumerate(replicas):
            one.serve(rows(400, seed=int(now) + number, shift=shift))
        now += max(seconds, LOOK_SECONDS)
        monitor.look(now, order)
        return monitor.drift[0].drifting

    assert look(0.0, PUBLISH_SECONDS) == ()
    assert monitor.drift[0].rows == 800
    replicas[1] = Replica(tmp_path, model, 1)
    assert look(0.0, PUBLISH_SECONDS) == ()
    assert monitor.drift[0].rows == 1600
    while not look(3.0, 1.0):
        assert now < 1300
    assert set(monitor.drift[0].drifting) == {"temp"}
    assert monitor.drift[0].features[0].name == "temp"
    text = (tmp_path / "metrics-drift.json").read_text()
    assert 'gridmill_drift_psi{version=\\"weather/linear@1\\",feature=\\"temp\\"}' in text
    again = DriftMonitor(tmp_path / "other", monitor.drift)
    again.look(now, order)
    assert again.drift[0].drifting == ("temp",)
    now += 2 * WINDOW_SECONDS
    assert look(0.0, 1.0) == ()
    assert monitor.drift[0].rows == 800


def test_files_that_cannot_be_read_or_have_other_bins_do_not_count(tmp_path, folder):
    monitor = DriftMonitor(tmp_path)
    (tmp_path / "drift-0.json").write_text("{")
    (tmp_path / "drift-1.json").write_text('{"process": "a", "counts": {"weather/linear@1": [[1, 2]]}}')
    (tmp_path / "drift-2.json").write_text('{"process": "a", "counts": {"weather/other@1": [[1, 2]]}}')
    monitor.look(1000.0, order_of(folder))
    assert [one.rows for one in monitor.drift] == [0]


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_the_drift_of_two_pods_together_is_that_of_one_pod_with_their_rows(tmp_path, folder, shift):
    model, order = model_of(folder), replace(order_of(folder), counts_drift=True)
    batches = [rows(400, seed=seed, shift=shift * (seed % 2)) for seed in range(4)]
    for place, numbers in {"alone": (0, 1, 2, 3), "first": (0, 2), "second": (1, 3)}.items():
        (tmp_path / place).mkdir()
        for number in numbers:
            Replica(tmp_path / place, model, number).serve(batches[number])
    alone, first, second = (DriftMonitor(tmp_path / place) for place in ("alone", "first", "second"))
    for one in (alone, first, second):
        one.look(1000.0, order)
    together = drift_of_pods([first.drift, second.drift], [first.counts, second.counts], ())
    assert together == (replace(alone.drift[0], pods=2),)
    assert together[0].rows == 1600
    assert bool(together[0].drifting) == bool(shift)


def test_the_counts_are_reported_only_if_the_order_asks_for_them_and_they_are_not_too_many(
    tmp_path, folder, monkeypatch
):
    order = replace(order_of(folder), counts_drift=True)
    for wanted, most, reported in ((order_of(folder), 4000, 0), (order, 4000, 1), (order, 10, 0)):
        monkeypatch.setattr("gridmill.serving.drift_monitor.MOST_REPORTED_BINS", most)
        monitor = DriftMonitor(tmp_path)
        monitor.look(1000.0, wanted)
        assert (len(monitor.drift), len(monitor.counts)) == (1, reported)
