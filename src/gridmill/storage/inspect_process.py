"""Reads versions in a separate process, because the libraries that read tables are never loaded in this
process."""

import subprocess
import sys

from gridmill.codec import decode, encode
from gridmill.domain.comparison import ArtifactAnswer, ArtifactQuery
from gridmill.errors import InternalError, UnavailableError, from_body

_LONGEST_SECONDS = 300.0


def ask(question: ArtifactQuery) -> ArtifactAnswer:
    """Returns the answer of the separate process to the question. Raises the error that the answer contains,
    and UnavailableError after the time limit."""
    argv = [sys.executable, "-m", "gridmill.jobs.inspect_versions"]
    try:
        done = subprocess.run(
            argv, input=encode(question), capture_output=True, check=False, timeout=_LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"reading {question.artifact.id} took more than {_LONGEST_SECONDS:g} s"
        ) from error
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        why = last or f"the process failed with exit code {done.returncode}"
        raise InternalError(f"{question.artifact.id} cannot be read: {why}")
    seen = decode(done.stdout, ArtifactAnswer)
    if seen.error is not None:
        raise from_body(dict(seen.error))
    return seen
