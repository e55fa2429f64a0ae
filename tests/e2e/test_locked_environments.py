"""A version with code of its own keeps the packages with which it was made, also where its environment is
built again after newer packages have appeared."""

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gridmill.codec import decode, encode
from gridmill.domain.serving import ServedVersion, Verification
from gridmill.errors import DataError
from gridmill.jobs.context import CODE
from gridmill.jobs.model_files import CARD, ModelCard, load_card
from gridmill.jobs.training.run import run
from gridmill.serving.code_model import python_of
from gridmill.serving.served_model import load_version
from tests.kit.learning_data import series, training_context, write_dataset
from tests.kit.served_models import code_model

pytestmark = pytest.mark.e2e
TRAIN = """
import factor

def fit(data):
    (data.output / "nothing").touch()

def predict(folder, inputs):
    return inputs[:, 0] * factor.VALUE
"""


def write_wheel(folder: Path, version: str, value: int) -> None:
    """Write a package with a number. It finds the numpy of this Python, so that none is installed."""
    folder.mkdir(exist_ok=True)
    info = f"factor-{version}.dist-info"
    files = {
        "factor.py": f"VALUE = {value}\n",
        "zz_numpy.pth": f"{Path(np.__file__).parents[1]}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: factor\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"factor-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)


def test_a_version_is_computed_by_the_packages_that_made_it(tmp_path, monkeypatch):
    home, index = tmp_path / "home", tmp_path / "index"
    monkeypatch.setenv("GRIDMILL_POD_HOME", str(home))
    monkeypatch.setenv("GRIDMILL_ENVIRONMENT_BUILDER", "gridmill.pod.version_environment")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", index.as_uri())
    write_wheel(index, "1.0", 10)
    python = python_of(tmp_path, load_card(code_model(tmp_path / "m", environment="factor\n")))

    made = training_context(
        tmp_path,
        write_dataset(tmp_path, series(160)),
        "custom",
        script="train.py:fit",
        predict="train.py:predict",
        environment="packages.txt",
    )
    made = replace(made, pythons={"": python})
    (made.work / CODE).mkdir()
    (made.work / CODE / "train.py").write_text(TRAIN)
    (made.work / CODE / "packages.txt").write_text("factor\n")
    details = run(made).outputs[0].details
    assert "factor==1.0" in details["locked"]
    assert details["packages"]["factor"] == "1.0"
    assert {"python", "gridmill", "numpy"} <= details["packages"].keys()

    # another machine, which has a newer package
    shutil.rmtree(home)
    write_wheel(index, "2.0", 20)
    version = ServedVersion(label="m@1", folder=str(made.output), trust=True)
    model = load_version(version, "1", 1)
    assert model.predict(np.ones((1, len(model.card.inputs)))).tolist() == [10.0]
    assert (model.verification, model.differences) == (Verification.VERIFIED, ())
    assert len(model.golden or ()) == 20
    model.close()

    # an environment of the same requirements with other versions is not the environment of the version
    card = load_card(made.output)
    newer = python_of(made.output, replace(card, locked=()))
    assert newer != python_of(made.output, card)
    unlocked = replace(decode((made.output / CARD).read_bytes(), ModelCard), locked=())
    (made.output / CARD).write_bytes(encode(unlocked))
    with pytest.raises(DataError, match="golden row"):
        load_version(version, "1", 1)

    # without golden rows, the difference is still reported
    (made.output / "golden.arrow").unlink()
    model = load_version(version, "1", 1)
    assert model.differences == ("factor 1.0 made the version, 2.0 computes it",)
    assert model.verification is Verification.NOT_VERIFIED
    model.close()
