"""Models that need their own code to predict. A model with its own code runs in a separate process with its
own environment."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

import numpy as np

from gridmill.domain.frozen import dataclass
from gridmill.errors import DataError, InputError, JobError
from gridmill.jobs.features import Floats
from gridmill.jobs.model_files import ModelCard, shaped
from gridmill.transfer.tree_writer import hand_tree, is_small

RUNNER = Path(__file__).parent / "training" / "custom_runner.py"


@dataclass(slots=True, kw_only=True)
class ModelProcess:
    """The process that has loaded a model with its own code. The process receives lines, and sends its
    answers on `replies`."""

    process: "subprocess.Popen[str]"
    replies: TextIO
    scratch: "TemporaryDirectory[str]"
    owner: int = field(default_factory=os.getpid)
    """The id of the process that started the process of the model. Forks of the owner must not use the
    process of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePackages:
    """The packages of the process of a model's code, by name, with their versions. `loaded` are Python and
    the packages whose modules the process has imported. `installed` are all packages of its environment."""

    loaded: Mapping[str, str]
    installed: Mapping[str, str]


def read_packages(line: str) -> CodePackages:
    """Return the packages from the answer of the process."""
    answer = json.loads(line)
    return CodePackages(loaded=answer["loaded"], installed=answer["installed"])


@dataclass(frozen=True, kw_only=True)
class CodePredictor:
    """Predicts by calling a `predict` function of the user or a pickled model.

    A CodePredictor is created only if the user has declared trust in the code.
    """

    card: ModelCard
    folder: Path
    python: str = sys.executable

    @cached_property
    def _helper(self) -> ModelProcess:
        scratch: TemporaryDirectory[str] = TemporaryDirectory(prefix="gridmill-model-")
        folder = _own_folder(self.folder, Path(scratch.name) / "model")
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                [
                    # with -B, Python writes no .pyc files into the folder of the version
                    *(self.python, "-B", str(RUNNER), "predict"),
                    *(str(writing), str(folder), str(folder / self.card.predict)),
                ],
                stdin=subprocess.PIPE,
                stdout=2,  # the descriptor itself, because sys.stderr has no descriptor in a notebook
                pass_fds=(writing,),
                cwd=folder,
                text=True,
            )
        finally:
            os.close(writing)
        helper = ModelProcess(process=process, replies=os.fdopen(reading), scratch=scratch)
        if not helper.replies.readline():
            ended = self._ended(helper)
            helper.replies.close()
            scratch.cleanup()
            raise ended
        return helper

    def open(self) -> int:
        """Start the process and wait until it has loaded its code. Returns the id of the process. Raises
        JobError."""
        return self._helper.process.pid

    def close(self) -> None:
        """End the process and delete its files. The next prediction starts the process again."""
        helper: ModelProcess | None = self.__dict__.pop("_helper", None)
        if helper is not None and helper.owner == os.getpid():
            assert helper.process.stdin is not None
            with suppress(BrokenPipeError):
                helper.process.stdin.close()
            helper.process.kill()
            helper.process.wait()
            helper.replies.close()
            helper.scratch.cleanup()

    def __del__(self) -> None:
        self.close()

    def packages(self) -> CodePackages:
        """Return the packages of the process. Raises JobError if the process has ended."""
        return read_packages(self._ask([]))

    def predict(self, inputs: Floats) -> Floats:
        """See Predictor. Raises JobError if the code fails, DataError for a result of a wrong shape."""
        helper = self._helper
        source, result = (Path(helper.scratch.name) / name for name in ("inputs.npy", "outputs.npy"))
        np.save(source, inputs)
        self._ask([str(source), str(result)])
        found = np.load(result)
        if found.ndim == 0 or len(found) != len(inputs):
            answers = f"{len(found)} predictions" if found.ndim else "None or a single number"
            raise DataError(f"{self.card.predict} returned {answers} for {len(inputs)} rows")
        return shaped(found, self.card)

    def _ended(self, helper: ModelProcess) -> JobError:
        code = helper.process.wait()
        return JobError(
            f"the process that runs {self.card.predict!r} ended with exit code {code}",
            hint="The job's log has its output.",
        )

    def _ask(self, question: list[str]) -> str:
        helper = self._helper
        try:
            assert helper.process.stdin is not None
            helper.process.stdin.write(json.dumps(question) + "\n")
            helper.process.stdin.flush()
            answered = helper.replies.readline()
        except BrokenPipeError:
            answered = ""
        if not answered:
            raise self._ended(helper)
        return answered


def _own_folder(model: Path, own: Path) -> Path:
    """Return a folder with the files of the model into which its code may write.

    If copying the files would take too long, return the original folder of the model.
    """
    with suppress(OSError):
        if os.stat(model).st_dev == os.stat(own.parent).st_dev or is_small(model):
            hand_tree(model, own)
            return own
    return model


def check_trust(
    card: ModelCard, name: str, trust: bool, place: str, how: str = "write `trust: true`"
) -> None:
    """Raise InputError if a model needs its own code to predict, and the user has not allowed this code.

    `how` is the declaration that allows the code.
    """
    if card.predict and not trust:
        what = "its own code" if ":" in card.predict else f"a pickled file ({card.predict})"
        raise InputError(
            f"model {name!r} predicts with {what}, which can execute any code on this machine",
            hint=f"If you trust the author of the model, {how}. ONNX models need no trust.",
            place=place,
        )
