"""A model that predicts with its own Python code, computed in a process beside the replica.

The process has the environment of the version. If the code does not answer in time, uses more and more
memory or more GPU memory than its share, or ends, only this process is replaced, and the replica goes on.
"""

import json
import logging
import math
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from gridmill.domain.amounts import MIB, show_bytes
from gridmill.domain.serving import BUILDER_VARIABLE
from gridmill.errors import DataError, InputError, JobError
from gridmill.jobs.features import Floats
from gridmill.jobs.model_files import ModelCard, shaped
from gridmill.jobs.subprocess_model import RUNNER, CodePackages, read_packages
from gridmill.serving.gpu_memory import GpuShare

_LOG = logging.getLogger(__name__)
GROWTH_FACTOR, GROWTH_BYTES = 2, 512 * MIB
"""The process is replaced if its memory exceeds this factor times its memory after the first prediction, plus
these bytes."""
_LOAD_SECONDS = 600.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FAILED = "failed"


class _CodeProcess:
    """A process that has loaded, or still loads, the code of a model."""

    def __init__(self, card: ModelCard, folder: Path, python: str, threads: int) -> None:
        # files without a name, so that nothing is left when the replica is killed
        self._files = [_nameless_file() for _ in range(2)]
        self._inputs, self._outputs = (f"/dev/fd/{one}" for one in self._files)
        self._text = b""
        self.is_loaded = False
        self._replies, writing = os.pipe()
        os.set_blocking(self._replies, False)
        try:
            self._process = subprocess.Popen(
                [
                    *(python, "-B", str(RUNNER), "serve"),
                    *(str(writing), str(folder), str(folder / card.predict), str(os.getpid())),
                ],
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=(writing, *self._files),
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                # so that the processes that the code starts end with it
                start_new_session=True,
            )
        finally:
            os.close(writing)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def memory_bytes(self) -> int:
        """The resident memory of the process, or 0 if it has ended."""
        with suppress(OSError, IndexError, ValueError):
            return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        return 0

    def load(self, seconds: float) -> bool:
        """Wait until the code is loaded, for at most `seconds`. Returns whether it is. Raises JobError if the
        process has ended."""
        if not self.is_loaded:
            self.is_loaded = self._reply(seconds) is not None
        return self.is_loaded

    def packages(self) -> CodePackages:
        """Return the packages of the process. Raises JobError if the process does not answer."""
        reply = self._ask([], _LOAD_SECONDS)
        if reply is None:
            raise JobError(f"the code of the model did not answer within {_LOAD_SECONDS:g} s")
        return read_packages(reply)

    def predict(self, inputs: Floats, seconds: float) -> Floats | None:
        """Return what the code returns, or None if it does not answer within `seconds`. Raises JobError if
        the code fails."""
        with open(self._inputs, "wb") as file:
            np.save(file, inputs)
        reply = self._ask([self._inputs, self._outputs], seconds)
        if reply is None:
            return None
        word, _, what = reply.partition(" ")
        if word == _FAILED:
            raise JobError(f"the code of the model raised {what}")
        with open(self._outputs, "rb") as file:
            found: Floats = np.load(file)
        return found

    def _ask(self, question: list[str], seconds: float) -> str | None:
        line = json.dumps(question) + "\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error
        return self._reply(seconds)

    def _reply(self, seconds: float) -> str | None:
        deadline = time.monotonic() + seconds
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._replies], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            data = os.read(self._replies, 4096)
            if not data:
                raise self._ended()
            self._text += data
        line, _, self._text = self._text.partition(b"\n")
        return line.decode("utf-8", "replace")

    def _ended(self) -> JobError:
        return JobError(f"the process of the model's code ended with exit code {self._process.wait()}")

    def close(self) -> None:
        """End the process with all processes that it started, and delete its files."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        for descriptor in (self._replies, *self._files):
            os.close(descriptor)


def _nameless_file() -> int:
    """Return the descriptor of an empty file in memory, which has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("gridmill-model")
    with TemporaryFile() as file:
        return os.dup(file.fileno())


class CodeModel:
    """A predictor that runs the code of a version. One thread at a time may call it."""

    def __init__(
        self,
        card: ModelCard,
        folder: Path,
        *,
        python: str,
        threads: int,
        timeout_seconds: float,
        growth_bytes: int = GROWTH_BYTES,
        gpu: GpuShare | None = None,
    ) -> None:
        self._card, self._folder, self._python, self._threads = card, folder, python, threads
        self._timeout_seconds, self._growth_bytes = timeout_seconds, growth_bytes
        self._first_bytes = 0
        self._gpu, self._is_admitted = gpu, False
        self._gpu_limit_bytes = gpu.share_bytes if gpu is not None else 0
        self.gpu_bytes = 0
        """The GPU memory of the code in bytes at the last prediction."""
        self.gpu_needed_bytes = 0
        """The GPU memory of the code in bytes after its largest batch; 0 if it was not measured."""
        self.loaded_at = math.inf
        """The monotonic time at which the code was loaded last, in seconds; infinite while it is loaded."""
        self._successor: _CodeProcess | None = None
        self._current: _CodeProcess | None = self._start()

    @property
    def pid(self) -> int | None:
        """The id of the process that computes, or None while there is none."""
        return self._current.pid if self._current is not None else None

    @property
    def card(self) -> ModelCard:
        """See Predictor."""
        return self._card

    def predict(self, inputs: Floats) -> Floats:
        """See Predictor. Raises JobError if the code fails, does not answer in time, or returns a result of
        a wrong shape."""
        process = self._ready()
        try:
            found = process.predict(inputs, self._timeout_seconds)
        except JobError:
            if not process.memory_bytes:
                self._replace()
            raise
        if found is None:
            self._replace()
            raise JobError(f"the code of the model did not answer within {self._timeout_seconds:g} s")
        self._limit_gpu_memory(process)
        self._limit_memory(process.memory_bytes)
        if found.ndim == 0 or len(found) != len(inputs):
            answers = f"{len(found)} predictions" if found.ndim else "None or a single number"
            raise JobError(f"{self._card.predict} returned {answers} for {len(inputs)} rows")
        try:
            return shaped(found, self._card)
        except DataError as error:  # the code is wrong, not the rows of the request
            raise JobError(f"{self._card.predict}: {error.message}", hint=error.hint) from error

    def packages(self) -> CodePackages:
        """Return the packages of the process that computes. Raises JobError if the process fails."""
        return self._ready().packages()

    def close(self) -> None:
        """End the processes."""
        for one in (self._current, self._successor):
            if one is not None:
                one.close()
        self._current = self._successor = None

    def _start(self) -> _CodeProcess:
        return _CodeProcess(self._card, self._folder, self._python, self._threads)

    def _ready(self) -> _CodeProcess:
        """Return the process that computes next: the successor as soon as it is loaded."""
        if self._successor is not None and self._current is not None:
            self._take_over(self._current, self._successor)
        if self._current is None:
            self._current = self._start()
        try:
            if not self._current.is_loaded:
                self.loaded_at = math.inf
            if not self._current.load(_LOAD_SECONDS):
                raise JobError(f"the code of the model was not loaded within {_LOAD_SECONDS:g} s")
        except JobError:
            self._current.close()
            self._current = None
            raise
        if self.loaded_at == math.inf:
            self.loaded_at = time.monotonic()
        return self._current

    def _take_over(self, current: _CodeProcess, successor: _CodeProcess) -> None:
        try:
            if not successor.load(0.0):
                return
        except JobError as error:
            _LOG.error("the successor of the process of the model failed: %s", error)
            successor.close()
        else:
            current.close()
            self._current, self._first_bytes = successor, 0
        self._successor = None

    def _replace(self) -> None:
        """End the current process, and start another one, which loads the code in the meantime."""
        _LOG.error("the process of the model's code is replaced")
        self.close()
        self._current, self._first_bytes = self._start(), 0

    def _limit_gpu_memory(self, process: _CodeProcess) -> None:
        """Replace a process that uses more than its share of a GPU, which other programs need. The prediction
        is still answered."""
        if self._gpu is None:
            return
        self.gpu_bytes = self._gpu.memory.of_group(process.pid)
        if self._is_admitted and self.gpu_bytes > self._gpu_limit_bytes:
            _LOG.error("%s", self._above_share())
            self._replace()

    def admit(self, largest: Floats) -> None:
        """Measure the GPU memory of the code while it has computed its largest batch. Raises JobError if the
        code uses more than its share of the GPU."""
        if self._gpu is None:
            return
        self.predict(largest)
        self.gpu_bytes = self._gpu.memory.of_group(self._ready().pid, wait=True)
        if self.gpu_bytes > self._gpu_limit_bytes:
            raise JobError(
                self._above_share(),
                hint="Give the resource of the service more GPUs, or start fewer replicas or a smaller "
                "--max-batch.",
            )
        self._is_admitted, self.gpu_needed_bytes = True, self.gpu_bytes
        # code that was not found on a GPU keeps its whole share
        if self.gpu_bytes:
            self._gpu_limit_bytes = self._gpu.limit_after(self.gpu_bytes)

    def _above_share(self) -> str:
        used, share = show_bytes(self.gpu_bytes), show_bytes(self._gpu_limit_bytes)
        return f"the code of the model uses {used} of GPU memory; its share is {share}"

    def _limit_memory(self, memory_bytes: int) -> None:
        """Start a successor of a process whose memory grows. The process computes until the successor has
        loaded the code."""
        self._first_bytes = self._first_bytes or memory_bytes
        limit = GROWTH_FACTOR * self._first_bytes + self._growth_bytes
        if memory_bytes > limit and self._successor is None:
            _LOG.error("the code of the model uses %d bytes; its limit is %d", memory_bytes, limit)
            self._successor = self._start()


def python_of(folder: Path, card: ModelCard) -> str:
    """Return the interpreter of the environment of a version, which is built at the first use. Raises
    InputError if it cannot be built."""
    if not card.environment:
        return sys.executable
    builder = os.environ.get(BUILDER_VARIABLE)
    if not builder:
        raise InputError("the model needs its own Python environment, which only a pod can build")
    command = [sys.executable, "-P", "-m", builder, str(folder)]
    wanted = {"requirements": card.environment, "locked": card.locked}
    done = subprocess.run(command, input=json.dumps(wanted), stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        answer = {"error": f"the process that builds it ended with exit code {done.returncode}", "hint": ""}
    if "error" in answer:
        raise InputError(f"the environment of the model: {answer['error']}", hint=answer["hint"])
    return str(answer["python"])
