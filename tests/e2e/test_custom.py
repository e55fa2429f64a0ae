"""Custom trainings: the examples of four libraries, and models that need trust."""

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.conftest import Place, a_place

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples" / "custom"
BUILT = "GRIDMILL_TEST_ENVIRONMENTS"
OWN = "environment: requirements.txt"

REFUSED = """
pipeline: points
jobs:
  points:
    dataset:
      sql: >
        select sin(i * 12.9898) as x, sin(i * 78.233) as y,
               case when sin(i * 12.9898) > sin(i * 78.233) then 'a' else 'b' end as side,
               case when i % 10 < 7 then 'train' when i % 10 = 7 then 'validation' else 'test' end as split
        from range(600) as rows(i) order by i
      label: {column: side}
  pickled: {training: {dataset: points, model: custom, file: evil.pkl}}
  fails: {training: {dataset: points, model: custom, script: fails.py}}
  leaves_nothing: {training: {dataset: points, model: custom, script: leaves_nothing.py}}
"""


def output(view: dict, name: str) -> dict:
    found = next(one for one in view["jobs"] if one["job"]["job"]["name"] == name)
    assert found["artifacts"], found["job"]["message"]
    return found["artifacts"][0]["output"]


def get_its_packages(example: str, file: Path) -> None:
    """With the packages that are here, else in the environment that the example asks for; or not at all."""
    if OWN not in file.read_text() or BUILT in os.environ:
        return
    if find_spec(example) is None:
        said = f"needs the package {example}; or set {BUILT}=1, which downloads it into an environment"
        pytest.skip(f"{said}: see examples/custom/{example}/requirements.txt")
    file.write_text(file.read_text().replace(f", {OWN}", ""))


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(name, marks=pytest.mark.long)
        for name in ("scikit-learn", "pytorch", "xgboost", "tensorflow")
    ],
)
def test_an_example_learns_and_a_swarm_predicts(place: Place, example: str):
    project = Path(shutil.copytree(EXAMPLES / example, place.folder / "project"))
    get_its_packages(example, project / "pipeline.yaml")
    if example == "scikit-learn":
        a_prediction_by_a_models_own_code_needs_trust_too(place, project / "pipeline.yaml")
    view = place.json("run", project / "pipeline.yaml", timeout=600)
    assert view["run"]["state"] == "succeeded", [one["job"]["message"] for one in view["jobs"]]
    model, predicted = output(view, "model"), output(view, "predicted")
    assert model["metrics"]["test_accuracy"] > 0.8
    assert predicted["rows"] == 600
    assert predicted["metrics"]["test_log_loss"] == pytest.approx(model["metrics"]["test_log_loss"], rel=1e-5)


def a_prediction_by_a_models_own_code_needs_trust_too(place: Place, file: Path) -> None:
    text = file.read_text()
    file.write_text(text.replace(", trust: true", ""))
    view = place.json("run", file)
    assert "predicts with its own code" in message(view, "predicted")
    assert "trust: true" in json.dumps(view)
    file.write_text(text)


def message(view: dict, name: str) -> str:
    return next(one["job"]["message"] for one in view["jobs"] if one["job"]["job"]["name"] == name)


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, dict]]:
    """Three models that come to nothing, in one run."""
    with a_place(tmp_path_factory.mktemp("refused")) as place:
        file = place.write(REFUSED)
        (file.parent / "evil.pkl").write_bytes(pickle.dumps(Evil(place.folder / "ran")))
        (file.parent / "fails.py").write_text("raise SystemExit('no luck today')")
        (file.parent / "leaves_nothing.py").write_text("print('done')")
        yield place, place.json("run", file)


def test_a_pickle_is_not_loaded_without_trust(refused: tuple[Place, dict]):
    place, view = refused
    dangers = "evil.pkl is a pickled model: loading it can execute any code on this machine"
    assert dangers in message(view, "pickled")
    assert not (place.folder / "ran").exists()
    place.json("run", place.write(REFUSED.replace("evil.pkl", "evil.pkl, trust: true")), "--only", "pickled")
    assert (place.folder / "ran").exists(), "this pickle does nothing: it would not have been noticed either"


def test_a_script_that_fails_leaves_its_words_in_the_log(refused: tuple[Place, dict]):
    place, view = refused
    assert "fails.py ended with exit code 1" in message(view, "fails")
    assert "no luck today" in place.gridmill("logs", view["run"]["id"], "fails").stdout


def test_a_script_that_leaves_no_model_is_told_what_to_leave(refused: tuple[Place, dict]):
    assert "wrote no model that can predict" in message(refused[1], "leaves_nothing")
