"""Runs the preflight in a separate process, because the libraries that read data are not loaded in this
process, and because the process can be ended after a time limit."""

import subprocess
import sys

from gridmill.codec import decode, encode
from gridmill.domain.preflight import PreflightRequest, PreflightResult, UncheckedJob
from gridmill.errors import GridmillError

LONGEST_SECONDS = 20.0


def ask(question: PreflightRequest, longest_seconds: float = LONGEST_SECONDS) -> PreflightResult:
    """Returns the problems that a check of the data finds in a pipeline. The function never raises an error.
    Jobs that cannot be checked are listed with the reason."""
    argv = [sys.executable, "-m", "gridmill.jobs.preflight"]
    try:
        done = subprocess.run(
            argv, input=encode(question), capture_output=True, check=False, timeout=longest_seconds
        )
    except subprocess.TimeoutExpired:
        return _nothing(question, f"the check took more than {longest_seconds:g} s")
    except OSError as error:
        return _nothing(question, f"the check could not start: {error.strerror}")
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return _nothing(question, f"the check failed with exit code {done.returncode}: {last}")
    try:
        checked = decode(done.stdout, PreflightResult)
    except GridmillError as error:
        return _nothing(question, f"the answer of the check cannot be read: {error}")
    if checked.error is not None:
        return _nothing(question, str(checked.error.get("message", "")))
    return checked


def _nothing(question: PreflightRequest, why: str) -> PreflightResult:
    jobs = (job for job in question.jobs if job.name not in question.unchanged and job.command is None)
    return PreflightResult(unchecked=tuple(UncheckedJob(job=job.name, why=why) for job in jobs))
