"""The values of secrets in the process of a built-in job.

The process receives the values of the secrets that its job names through an inherited file descriptor, so
that the values are neither in its arguments nor in its environment. Child processes that the job forks
inherit the values.
"""

import json
import os
import re
from collections.abc import Mapping
from urllib.parse import quote

from gridmill.domain.masking import Masking
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.secret import fill_in_secrets
from gridmill.settings import fill_in_environment

SECRETS_FD = "GRIDMILL_SECRETS_FD"
"""The environment variable with the file descriptor from which the process reads the values."""
_REFERENCE = re.compile(r"\$\{(env|secret):[^}]*\}")
_values: dict[str, str] = {}


def receive_values() -> None:
    """Read the values that the pod passed to this process, once, at the start of the process."""
    descriptor = os.environ.pop(SECRETS_FD, "")
    if descriptor:
        with os.fdopen(int(descriptor), "rb") as file:
            take_values(json.loads(file.read()))


def take_values(values: Mapping[str, str]) -> None:
    """Replace the values that this process knows."""
    _values.clear()
    _values.update(values)


def fill_in(text: str, place: str, *, in_url: bool = False) -> str:
    """Return the text in which each `${env:NAME}` is replaced by the value of an environment variable, and
    each `${secret:NAME}` by the value of a secret. The result must not be stored anywhere.

    With `in_url`, values inside a longer text are quoted so that they are valid inside a URL. Raises
    InputError at `place` if a variable or a value is missing.
    """
    alone = _REFERENCE.fullmatch(text) is not None

    def value(match: re.Match[str]) -> str:
        if match[1] == "env":
            found = fill_in_environment(match[0], place)
        else:
            found = fill_in_secrets(match[0], _values, place)
        return quote(found, safe="") if in_url and not alone else found

    return _REFERENCE.sub(value, text)


def masked(outcome: AttemptOutcome) -> AttemptOutcome:
    """Return the outcome with the values that this process knows masked."""
    return Masking(_values.values()).outcome(outcome) if _values else outcome
