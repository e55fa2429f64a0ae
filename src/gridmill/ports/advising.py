"""The use cases of advice on workers."""

from typing import Protocol

from gridmill.model.advice import Advice
from gridmill.model.view import RunView


class Advising(Protocol):
    """What a face can ask about the workers of a job."""

    def advise(self, name: str) -> Advice:
        """Advice on `pipeline/job`, from what its attempts measured.

        Raises NotFoundError where there is no such job, ConflictError where no attempt of it has succeeded
        yet, InputError for a job without workers.
        """
        ...

    def probe(self, name: str, *, workers: int, share: float) -> RunView:
        """Start a run of that job alone, with so many workers on a share of its data; answers at once.

        It reads the newest versions of what the job needs; what it makes is thrown away, what it measured is
        kept. Raises NotFoundError, InputError.
        """
        ...
