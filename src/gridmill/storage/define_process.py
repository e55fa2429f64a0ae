"""Defines the contextual features of a service in a separate process, because the libraries that read tables
are not loaded in this process, and because the process can be ended after a time limit."""

import subprocess
import sys

from gridmill.codec import decode, encode
from gridmill.domain.service_features import FeatureAnswer, FeatureQuestion
from gridmill.errors import UnavailableError

LONGEST_SECONDS = 120.0


def define(question: FeatureQuestion, longest_seconds: float = LONGEST_SECONDS) -> FeatureAnswer:
    """Return the answer to a question. Raises UnavailableError if there is none."""
    argv = [sys.executable, "-P", "-m", "gridmill.online.define"]
    try:
        done = subprocess.run(
            argv, input=encode(question), capture_output=True, check=False, timeout=longest_seconds
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"the features of service {question.service!r} were not defined within {longest_seconds:g} s"
        ) from error
    except OSError as error:
        raise UnavailableError(f"the features cannot be defined: {error.strerror}") from error
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UnavailableError(f"the features cannot be defined: exit code {done.returncode}: {last}")
    return decode(done.stdout, FeatureAnswer)
