"""Files and functions of the project that a pipeline names are looked for when it is read."""

from pathlib import Path

import pytest

from gridmill.declarations import parse_declarations, read_pipeline
from gridmill.errors import PipelineError

PIPELINE = """\
pipeline: p
jobs:
  data: {dataset: {sql: select 1 as x}}
  model:
    training:
      dataset: data
      model: custom
      SETTINGS
"""


def read(folder: Path, settings: str) -> str:
    """What is said of a training with these settings; empty where nothing is wrong."""
    file = folder / "pipeline.yaml"
    file.write_text(PIPELINE.replace("SETTINGS", settings.replace("\n", "\n      ")))
    try:
        read_pipeline(file)
    except PipelineError as error:
        return str(error).replace(str(file), "f.yaml")
    return ""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("def fit(data): ...\n\nclass Model:\n    def score(self): ...\n")
    (tmp_path / "requirements.txt").write_text("numpy\n")
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            "script: trian.py",
            "f.yaml:8: jobs.model.training.script: there is no file `trian.py`; did you mean",
        ),
        ("script: train.py:fti", "`train.py` has no function `fti`; did you mean `fit`?"),
        ("script: train.py:fit\npredict: train.py:predict", "jobs.model.training.predict: `train.py` has no"),
        ("script: ../train.py", "`../train.py` is outside the pipeline's folder"),
        ("script: train.py\nenvironment: requirement.txt", "did you mean `requirements.txt`?"),
        ("file: model.onnx", "jobs.model.training.file: there is no file `model.onnx`"),
        (f"script: {'x' * 5000}", "is not a valid file name"),
        ("script: .", "there is no file `.`"),
        (
            "script: train.py\ninputs: [trian.py]",
            "f.yaml:9: jobs.model.training.inputs[0]: `trian.py` does not",
        ),
        ("script: train.py\ninputs: ['lib/**/*.py']", "`lib/**/*.py` matches no file"),
    ],
)
def test_what_is_not_there_is_said_with_its_line(project: Path, settings: str, text: str) -> None:
    assert text in read(project, settings)


def test_several_are_said_at_once(project: Path) -> None:
    assert "2 problems" in read(project, "script: a.py\nenvironment: b.txt")


def test_a_script_that_is_no_python_is_said(project: Path) -> None:
    (project / "broken.py").write_text("def fit(data:\n")
    assert "`broken.py` has a Python syntax error: '(' was never closed (broken.py, line 1)" in read(
        project, "script: broken.py:fit"
    )


@pytest.mark.parametrize(
    "text",
    [
        "from other import fit",
        "from other import *",
        "import other as fit",
        "fit = print",
        "if True:\n    def fit(data): ...",
        "globals()['fit'] = print",
        "def __getattr__(name): return print",
    ],
)
def test_functions_come_about_in_many_ways(project: Path, text: str) -> None:
    (project / "train.py").write_text(text)
    assert read(project, "script: train.py:fit") == ""


def test_a_pipeline_without_a_folder_is_read_as_it_is() -> None:
    assert parse_declarations(PIPELINE.replace("SETTINGS", "script: train.py"))


def test_an_environment_of_a_command_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("pipeline: p\njobs:\n  a: {command: {run: x, environment: r.txt}}\n")
    with pytest.raises(
        PipelineError, match=r"p.yaml:3: jobs.a.command.environment: there is no file `r.txt`"
    ):
        read_pipeline(tmp_path / "p.yaml")
