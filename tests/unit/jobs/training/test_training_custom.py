"""Custom trainings: what the script says, what is made of it, trials of a search, mistakes."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from tests.kit.clean_process import train
from tests.kit.learning_data import (
    artifact_of,
    context_of,
    events_of,
    series,
    training_context,
    write_dataset,
)

from gridmill.domain.artifact import Input
from gridmill.domain.frozen import dataclass
from gridmill.domain.job import Job
from gridmill.domain.prediction import PredictionSpec
from gridmill.domain.remarks import remarks_of
from gridmill.domain.tuning import EarlyStop, Range, Search
from gridmill.errors import DataError, InputError, JobError
from gridmill.jobs.context import CODE, JobContext, PrunedError
from gridmill.jobs.subprocess_model import RUNNER
from gridmill.jobs.training import custom
from gridmill.jobs.training.data import read_frame
from gridmill.jobs.training.run import run
from gridmill.pod.program import requirements_of
from gridmill.storage.manifests import new_manifest, write_manifest
from gridmill.transfer import tree_writer
from gridmill.transfer.contents import list_contents

CONSTANT = """
import numpy as np

def fit(data):
    c = data.options["c"]
    if c < 0:
        raise SystemExit("no such constant")
    (data.output / "c").write_text(str(c))
    (data.output / f"left-{c}").touch()

def predict(folder, inputs):
    return np.full(len(inputs), float((folder / "c").read_text()))
"""


def context(root: Path, code: str, **options: object) -> JobContext:
    """Of a training by that script, `train.py`."""
    made = training_context(root, write_dataset(root, series(160)), "custom", **options)
    (made.work / CODE).mkdir()
    (made.work / CODE / "train.py").write_text(code)
    return replace(made, order=replace(made.order, workers=2))


def by_function(root: Path, script: str, **options: object) -> JobContext:
    return context(root, script, script="train.py:fit", predict="train.py:predict", **options)


TIDYING = """
import os, pathlib, shutil
import numpy as np

def fit(data):
    folder = pathlib.Path(os.environ["GRIDMILL_DATASET"])
    assert folder == data.dataset
    for file in folder.iterdir():
        file.chmod(0o666)
        file.write_bytes(b"")
    (folder / "cache.npy").touch()
    (data.output / "c").write_text("1")

def predict(folder, inputs):
    return np.full(len(inputs), 50.0)
"""


def test_what_a_script_does_to_the_datasets_files_happens_to_nobody_else(tmp_path: Path):
    made = by_function(tmp_path, TIDYING)
    folder = tmp_path / "datasets/d"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    train(made)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_script_that_changes_files_that_others_read_too_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tree_writer, "COPIED_BYTES", 0)
    made = by_function(tmp_path, TIDYING.replace('(folder / "cache.npy").touch()', ""))
    dataset = made.input("d")
    write_manifest(tmp_path, new_manifest(dataset, list_contents(tmp_path / dataset.output.uri)))
    with pytest.raises(DataError, match="p/d@1 was changed after it was made"):
        run(made)


def test_trials_side_by_side_have_folders_of_their_own(tmp_path: Path):
    search = Search(
        trials=8, parallel=2, parameters={"c": Range(among=(10.0, 45.0, 50.0))}, early_stop=EarlyStop.NONE
    )
    made = by_function(tmp_path, CONSTANT, search=search)
    details = train(made).outputs[0].details
    values = {(one["parameters"]["c"], one["value"]) for one in details["search"]["trials"]}
    assert len(values) == len({c for c, _ in values}), "the same constant has the same error"
    best = details["options"]["c"]
    assert [path.name for path in made.output.glob("left-*")] == [f"left-{best}"]


def test_settings_that_the_script_fails_with_fail_their_trial_only(tmp_path: Path):
    search = Search(trials=6, parameters={"c": Range(among=(-1.0, 50.0))}, early_stop=EarlyStop.NONE)
    details = train(by_function(tmp_path, CONSTANT, search=search, seed=1)).outputs[0].details
    states = {one["parameters"]["c"]: one["state"] for one in details["search"]["trials"]}
    assert states == {-1.0: "fail", 50.0: "complete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Impatient(JobContext):
    """Ends the training at its first loss."""

    def metric(self, name: str, value: float, step: float | None = None) -> None:
        raise PrunedError


WAITING = r"""
import os, signal
open("pid", "w").write(str(os.getpid()))
open(os.environ["GRIDMILL_METRICS"], "a").write('{"name": "validation_loss", "value": 1, "step": 0}\n')
signal.pause()
"""


def test_a_script_that_is_ended_early_does_not_go_on(tmp_path: Path):
    made = context(
        tmp_path,
        WAITING,
        script="train.py",
    )
    impatient = Impatient(order=made.order, work=made.work)
    spec = made.order.job.training
    assert spec is not None
    with pytest.raises(PrunedError):
        custom.fit(read_frame(made, spec), spec, impatient)
    with pytest.raises(ProcessLookupError):
        os.kill(int((made.work / CODE / "pid").read_text()), 0)


METRICS = r"""
import os
said = ['{"name": "train_loss", "value": 1, "step": 1}', '{"name": "validation_loss", "value": 2, "step": 1}',
        '{"name": "a", "value": 3, "step": "soon"}', 'b', '{"name": "c", "value": NaN, "step": 2}', '[]',
        '{"name": "train_loss", "value": Infinity, "step": 2}', '{"name": "last", "value": 4}']
open(os.environ["GRIDMILL_METRICS"], "a").write("\n".join(said))
output = os.environ["GRIDMILL_OUTPUT"]
open(output + "/metrics.json", "w").write('{"score": 5, "undefined": NaN}')
"""
PREDICT = "\ndef predict(folder, inputs):\n    return inputs[:, 0]\n"


def test_metrics_are_told_and_what_is_none_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    made = context(tmp_path, METRICS, script="train.py", predict="use.py:predict")
    (made.work / CODE / "use.py").write_text(PREDICT)
    result = run(made)
    told = {(e["name"], e["value"], e["step"]) for e in events_of(made) if e["type"] == "metric"}
    assert told >= {("train_loss", 1.0, 1.0), ("validation_loss", 2.0, 1.0), ("own_last", 4.0, None)}
    assert not {name for name, *_ in told} & {"own_a", "own_b", "own_c"}
    assert result.metrics["own_score"] == 5.0
    assert "own_undefined" not in result.metrics
    assert result.outputs[0].details["own_not_finite"] == {
        "own_c": "nan", "train_loss": "inf", "own_undefined": "nan",
    }  # fmt: skip
    remarks = [one.text for one in remarks_of(artifact_of("m", result.outputs[0]))]
    assert any("not finite: own_c nan, train_loss inf, own_undefined nan" in text for text in remarks)
    assert result.outputs[0].details["curve"] == [[1.0, 1.0, 2.0]]
    said = capfd.readouterr().out
    assert '"soon"' in said
    assert "metric own_c is nan at step 2" in said
    assert "metric train_loss is inf at step 2" in said


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("def fitt(data): pass" + PREDICT, "train.py has no function 'fit'; it has: fitt, predict"),
        (
            "def fit(data): return 3" + PREDICT,
            "train.py:fit returned a int, but metrics must be names with numbers",
        ),
        ("def fit(data): return {'a': 'b'}" + PREDICT, "train.py:fit returned a dict"),
    ],
)
def test_mistakes_of_a_function_are_said_without_a_traceback_of_ours(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], script: str, text: str
):
    with pytest.raises(JobError, match="ended with exit code 1"):
        run(by_function(tmp_path, script))
    said = capfd.readouterr()
    assert text in said.out + said.err
    assert "Traceback" not in said.out + said.err


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("5", r"returned None or a single number for \d+ rows"),
        ("inputs[:3, 0]", r"returned 3 predictions for \d+ rows"),
        ("inputs[:, :2]", r"returned an array of shape"),
        ("inputs[:, 0] * float('nan')", r"predicted no number for (\d+) of \1 rows of the validation split"),
    ],
)
def test_answers_of_another_shape_and_no_numbers_are_refused(tmp_path: Path, answer: str, text: str):
    script = f"def fit(data): pass\ndef predict(folder, inputs): return {answer}\n"
    with pytest.raises(DataError, match=text):
        run(by_function(tmp_path, script))


def graph_of(inputs: int) -> bytes:
    """An ONNX graph that adds up so many inputs."""
    dtype = TensorProto.FLOAT
    weights = helper.make_tensor("w", dtype, [inputs, 1], [1.0] * inputs)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", dtype, [None, inputs])],
        [helper.make_tensor_value_info("y", dtype, [None, 1])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def test_a_graph_of_other_inputs_is_refused_in_words(tmp_path: Path):
    made = context(tmp_path, "", file="model.onnx")
    (made.work / CODE / "model.onnx").write_bytes(graph_of(99))
    with pytest.raises(DataError, match=r"model.onnx does not map \d+ inputs to numbers"):
        run(made)


def test_a_model_is_as_large_as_its_files(tmp_path: Path):
    script = "def fit(data): (data.output / 'large').write_bytes(bytes(100_000))" + PREDICT
    made = by_function(tmp_path, script)
    size = run(made).outputs[0].size_bytes
    assert size == sum(path.stat().st_size for path in made.output.rglob("*") if path.is_file()) > 100_000


def test_what_a_function_does_after_its_metrics_is_its_own(tmp_path: Path):
    made = by_function(tmp_path, "def fit(data): return None" + PREDICT)
    assert "validation_rmse" in run(made).metrics


def test_requirements_that_refer_to_files_are_found_with_the_model(tmp_path: Path):
    made = by_function(tmp_path, "def fit(data): pass" + PREDICT, environment="needs/all.txt")
    (made.work / CODE / "needs").mkdir()
    (made.work / CODE / "needs/all.txt").write_text("-r base.txt\n")
    made = replace(made, order=replace(made.order, bundle="b" * 64))
    output = run(made).outputs[0]
    artifact = artifact_of("m", output)
    job = Job(name="swarm", prediction=PredictionSpec(dataset="d", models=("m",), trust=True))
    order = context_of(tmp_path, job, {"m": artifact}).order
    found = requirements_of(Input(name="m", artifact=artifact), "-r base.txt\n", order, tmp_path)
    assert found.file == tmp_path / "outputs/m/code/needs/all.txt"
    assert found.file.read_text() == found.text
    assert found.bundle == "b" * 64


PEEKING = """
import numpy as np

def fit(data):
    c = float(np.nanmean(data.target))
    (data.output / "c").write_text(str(c))
    hidden = np.isnan(data.target)
    return {
        "hidden_test": int(hidden[data.test].sum()),
        "test_rows": len(data.test),
        "hidden_others": int(hidden[data.train].sum() + hidden[data.validation].sum()),
        "test_rmse": 0.0,
    }

def predict(folder, inputs):
    return np.full(len(inputs), float((folder / "c").read_text()))
"""


@pytest.mark.parametrize("name", ["code", "model.json", "learned.safetensors", "held-out.npz"])
def test_names_of_what_gridmill_adds_to_a_model_are_refused(tmp_path: Path, name: str):
    code = f"def fit(data):\n    (data.output / {name!r}).mkdir()\n\ndef predict(folder, inputs): pass\n"
    with pytest.raises(InputError, match=f"the script wrote '{name}'"):
        train(by_function(tmp_path, code))


def test_a_script_gets_no_targets_of_test_rows_and_its_own_claim_about_them_is_replaced(tmp_path: Path):
    metrics = train(by_function(tmp_path, PEEKING)).outputs[0].metrics
    assert metrics["own_hidden_test"] == metrics["own_test_rows"] > 0
    assert metrics["own_hidden_others"] == 0
    assert metrics["test_rmse"] > 0, "Gridmill has measured it"
    assert metrics["own_test_rmse"] == 0, "what the code claims is marked"


def test_an_environment_without_numpy_is_named(tmp_path: Path):
    environment = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    arguments = [environment / "bin/python", RUNNER, "fit", "train.py:fit"]
    ended = subprocess.run(arguments, env={}, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"numpy is not installed in the environment {environment}, ")
