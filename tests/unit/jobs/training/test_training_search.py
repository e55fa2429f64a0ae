"""Searching settings: what is tried, what is ended early, what is kept, and what a crash costs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from tests.kit.clean_process import train
from tests.kit.learning_data import series, training_context, write_dataset

from gridmill.codec import decode, encode
from gridmill.declarations import parse_declarations
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.training import ModelKind, Objective, TrainingSpec
from gridmill.domain.tuning import EarlyStop, Range, Search
from gridmill.errors import InputError, JobError
from gridmill.jobs.context import JobContext
from gridmill.jobs.training.study import INSTEAD_OF, JOURNAL, ask, is_whole, open_study
from gridmill.jobs.training.tuning import find_best

TREES = {"max_leaves": Range(between=(2, 40)), "learning_rate": Range(log=(0.01, 0.3))}


def context_of(root: Path, model: str, search: Search, workers: int = 2, **options: object) -> JobContext:
    dataset = write_dataset(root, series(160))
    context = training_context(root, dataset, model, search=search, **options)
    return replace(context, order=replace(context.order, workers=workers, checkpoint_uri="checkpoints/p/m/f"))


def test_the_best_trial_is_learned_again_and_kept(tmp_path):
    result = train(context_of(tmp_path, "gbdt", Search(trials=6, parameters=TREES), trees=10))
    details = result.outputs[0].details
    trials = {trial["number"]: trial for trial in details["search"]["trials"]}
    best = trials[details["search"]["best"]]
    assert sorted(trials) == list(range(6))
    assert best["value"] == min(trial["value"] for trial in trials.values())
    assert result.metrics["validation_rmse"] == pytest.approx(best["value"])
    assert details["options"]["max_leaves"] == best["parameters"]["max_leaves"]
    assert isinstance(best["parameters"]["max_leaves"], int)
    assert len({json.dumps(trial["parameters"]) for trial in trials.values()}) > 3


@pytest.mark.long
def test_one_after_the_other_the_same_seed_tries_the_same(tmp_path):
    found = [
        train(context_of(tmp_path / str(number), "gbdt", Search(trials=4, parameters=TREES), 1, trees=10))
        for number in range(2)
    ]
    first, again = (result.outputs[0].details["search"]["trials"] for result in found)
    assert [trial["parameters"] for trial in first] == [trial["parameters"] for trial in again]


@pytest.mark.parametrize(
    ("workers", "parallel", "trials", "each"),
    [(2, None, 6, 2), (1, None, 6, 4), (4, None, 6, 1), (9, None, 6, 1), (2, 1, 6, 4), (4, None, 3, 1)],
)
def test_trials_side_by_side_divide_the_threads(tmp_path, workers, parallel, trials, each):
    search = Search(trials=trials, parameters=TREES, parallel=parallel)
    context = context_of(tmp_path, "gbdt", search, workers)
    given = replace(context.order.given, cpus=4)
    context = replace(context, order=replace(context.order, given=given))

    def threads(settings, trial):
        return float(trial.threads)

    found = find_best(context.order.job.training, search, context, lambda: (Objective.REGRESSION, threads))
    assert {trial["value"] for trial in found.trials} == {each}
    assert context.threads == 4, "the training with the best settings has all of them"


@pytest.mark.long
def test_trials_that_are_worse_are_ended_early(tmp_path):
    parameters = {"learning_rate": Range(among=(0.01, 1e-6))}
    search = Search(trials=9, parameters=parameters, early_stop=EarlyStop.MEDIAN)
    options = {"sequence": 6, "hidden": 8, "epochs": 4, "patience": 4, "batch_size": 64}
    details = train(context_of(tmp_path, "lstm", search, 1, **options)).outputs[0].details
    pruned = [trial for trial in details["search"]["trials"] if trial["state"] == "pruned"]
    assert pruned
    assert all(trial["steps"] < 4 for trial in pruned)
    assert details["options"]["learning_rate"] == 0.01


def test_a_search_goes_on_after_a_crash(tmp_path):
    context = context_of(tmp_path, "gbdt", Search(trials=5, parameters=TREES), trees=10)
    folder = tmp_path / "checkpoints/p/m/f"
    folder.mkdir(parents=True)
    backend = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL))
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(backend), study_name="search", direction="minimize"
    )
    for value in (0.7, None):  # one that ended, and one that was under way when its process was killed
        trial = study.ask()
        leaves = trial.suggest_int("max_leaves", 2, 40)
        trial.suggest_float("learning_rate", 0.01, 0.3, log=True)
        if value is not None:
            study.tell(trial, value)
    trials = train(context).outputs[0].details["search"]["trials"]
    ended = [trial for trial in trials if trial["state"] == "complete"]
    assert len(ended) == 5
    assert ended[0]["value"] == 0.7
    assert leaves in [trial["parameters"]["max_leaves"] for trial in ended[1:]]


def tried(folder: Path, kills: frozenset[int], trials: int = 12) -> list[dict[str, object]]:
    """The settings of a search; its process is killed in each trial of `kills` (by the order of asking)."""
    search = Search(trials=trials, parameters=TREES)
    spec = TrainingSpec(dataset="d", model=ModelKind.GBDT, search=search, seed=7)
    study, asked, settings = open_study(folder, search, "rmse"), 0, []
    while len(settings) < trials:
        trial, values = ask(study, spec, search)
        asked += 1
        if asked in kills:
            with (folder / JOURNAL).open("ab") as journal:
                journal.write(b'{"op_code":6,"wor')  # it was just writing
            (folder / f"{JOURNAL}.lock").symlink_to(folder / JOURNAL)
            study = open_study(folder, search, "rmse")
            continue
        settings.append(values)
        study.tell(trial, values["max_leaves"] * values["learning_rate"])
    return settings


def test_a_search_that_was_killed_tries_as_many_settings_as_an_undisturbed_one(tmp_path):
    undisturbed = tried(tmp_path / "0", frozenset())
    assert len({json.dumps(values) for values in undisturbed}) == 12
    for kills in (frozenset({1}), frozenset({3, 5, 9}), frozenset({2, 3, 4}), frozenset(range(1, 13, 2))):
        found = tried(tmp_path / str(sorted(kills)), kills)
        assert len({json.dumps(values) for values in found}) == 12


def test_an_interrupted_trial_is_repeated_once_however_often_the_search_is_killed(tmp_path):
    search = Search(trials=3, parameters=TREES)
    spec = TrainingSpec(dataset="d", model=ModelKind.GBDT, search=search)
    study = open_study(tmp_path, search, "rmse")
    _, values = ask(study, spec, search)
    study.enqueue_trial(values, user_attrs={INSTEAD_OF: 0})  # killed here, before the first was told of
    for _ in range(2):
        study = open_study(tmp_path, search, "rmse")
    assert [trial.state.name for trial in study.trials] == ["FAIL", "WAITING"]
    assert ask(study, spec, search)[1] == values


@pytest.mark.parametrize(
    ("metric", "columns", "reason"),
    [
        ("r2", {"ahead": 3.0}, "the same value in all rows"),
        ("auc", {"ahead": "x"}, "all rows of the validation split belong to one class"),
    ],
)
def test_a_search_by_a_metric_that_is_undefined_ends_with_the_reason(tmp_path, metric, columns, reason):
    data = series(160)
    held = data["split"] == "validation"
    for name, value in columns.items():
        kept = np.where(data["ahead"] > 50, "x", "y") if value == "x" else data[name]
        data[name] = np.where(held, value, kept)
    context = training_context(
        tmp_path, write_dataset(tmp_path, data), "gbdt", search=Search(parameters=TREES, metric=metric)
    )
    with pytest.raises(InputError, match=reason):
        train(context)


@pytest.mark.long
def test_settings_that_cannot_be_learned_with_fail_their_trial_only(tmp_path):
    parameters = {"learning_rate": Range(among=(0.01, 1e30))}
    options = {"sequence": 6, "hidden": 4, "epochs": 2, "batch_size": 64}
    search = Search(trials=8, parameters=parameters)
    details = train(context_of(tmp_path, "lstm", search, 1, **options)).outputs[0].details
    assert {trial["state"] for trial in details["search"]["trials"]} >= {"complete", "fail"}
    assert details["options"]["learning_rate"] == 0.01


def test_a_search_in_which_every_trial_fails_says_why(tmp_path):
    search = Search(trials=2, parameters={"sequence": Range(among=(300, 350))})
    with pytest.raises(
        JobError, match=r"every trial of the search failed; the first one: .*no training row has"
    ):
        train(context_of(tmp_path, "lstm", search))


@pytest.mark.parametrize(
    ("search", "text"),
    [
        (Search(parameters={"hiden": Range(between=(1, 2))}), "a lstm model has no option 'hiden' to search"),
        (Search(parameters={"hidden": Range(between=(1, 2))}, trials=0), "trials is 0"),
        (Search(parameters={}), "no parameters"),
        (Search(parameters={"hidden": Range(between=(2, 1))}), "is not a range"),
        (Search(parameters={"hidden": Range(log=(0, 1))}), "cannot begin a logarithmic range"),
        (Search(parameters={"hidden": Range()}), "needs a list of two numbers"),
        (Search(parameters={"dropout": Range(between=(0, 1.5))}), "dropout is 1.5; it must be"),
        (Search(parameters={"learning_rate": Range(between=(0, 0.1))}), "learning_rate is 0; it must be"),
        (Search(parameters={"hidden": Range(among=(8, 0))}), "hidden is 0; it must be"),
        (Search(parameters={"hidden": Range(between=(1.5, 8))}), "1.5 is not a value of hidden"),
        (Search(parameters={"hidden": Range(among=(8, "many"))}), "'many' is not a value of hidden"),
        (
            Search(parameters={"normalize": Range(among=("last", "first"))}),
            "'first' is not a value of normalize",
        ),
        (Search(parameters={"mixed_precision": Range(between=(0, 1))}), "is a range of numbers"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(search, text):
    with pytest.raises(InputError, match=text):
        TrainingSpec(dataset="d", model=ModelKind.LSTM, search=search).check()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": ModelKind.ENSEMBLE, "models": ("a", "b")}, "an ensemble is not trained"),
        ({"model": ModelKind.CUSTOM, "file": "model.onnx"}, "a model from a file is not trained"),
    ],
)
def test_what_does_not_learn_has_no_settings_to_search(options, text):
    search = Search(parameters={"combine": Range(among=("mean", "weighted"))})
    with pytest.raises(InputError, match=text):
        TrainingSpec(dataset="d", search=search, **options).check()


@pytest.mark.parametrize(
    ("bounds", "whole"), [("[0, 1]", True), ("[0.0, 1.0]", False), ("{log: [1, 8.0]}", False)]
)
def test_options_of_ones_own_are_whole_where_they_are_written_so(bounds, whole):
    text = f"""
pipeline: p
jobs:
  d: {{dataset: {{sql: select 1}}}}
  m: {{training: {{dataset: d, model: custom, script: a.py, search: {{parameters: {{c: {bounds}}}}}}}}}
"""
    (pipeline,) = parse_declarations(text)
    spec = decode(encode(pipeline), Pipeline).job("m").training  # as it comes to a pod
    assert is_whole(spec, "c", spec.search.parameters["c"]) == whole
