"""A request to the simulated Lambda Cloud that was read and is allowed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.lambda_cloud.refusal import invalid
from gridmill.testing.cloud.lambda_cloud.world import LambdaWorld


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request. `subject` is the id in its path, if it has one, `now` the time at which it has its effect,
    and `as_of` the time whose state a list shows."""

    world: LambdaWorld
    subject: str
    body: Mapping[str, Any]
    now: float
    as_of: float

    def text(self, name: str, *, longest: int, pattern: str = "", default: str | None = None) -> str:
        """Returns a field that is a text. Raises LambdaRefusalError if the field is missing and has no
        default, or if it is wrong."""
        value = self.body.get(name, default)
        if value is None:
            raise invalid(f"{name} is missing.")
        if not isinstance(value, str) or len(value) > longest:
            raise invalid(f"{name} is not a text of at most {longest} characters.")
        if pattern and not re.fullmatch(pattern, value):
            raise invalid(f"{name} does not match {pattern}.")
        return value

    def items(self, name: str) -> Sequence[Any]:
        """Returns a field that is a list, which is empty if the field is missing."""
        value = self.body.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise invalid(f"{name} is not a list.")
        return value

    def allow_only(self, *names: str) -> None:
        """Raises LambdaRefusalError if the request has a field that is not named here."""
        for name in self.body:
            if name not in names:
                raise invalid(f"{name} is not a field of this request.")
