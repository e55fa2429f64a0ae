"""The verb of advice: what more workers would buy, and runs that tell."""

from collections.abc import Callable

from gridmill.errors import ConflictError, JobError
from gridmill.model.advice import Advice, Probe
from gridmill.model.state import RunState
from gridmill.sdk.runs import RunVerbs

_FIRST = Probe(workers=1, share=0.05)
"""For a job that never ran; it says how large the second one must be."""
_MOST = 2
"""Probes of one advice."""


class AdviceVerbs(RunVerbs):
    """The verb of advice."""

    def advise(
        self, job: str, *, probe: bool = False, on_probe: Callable[[int, float], None] | None = None
    ) -> Advice:
        """Advice on the workers of `pipeline/job`; with `probe` after at most two runs that tell more.

        Probes do a part of the job's data and keep nothing but what they measured; `on_probe` is told of each
        before it starts: workers, and share of the data.
        Raises NotFoundError, ConflictError where nothing was measured, InputError, JobError for a probe that
        failed.
        """
        if probe:
            for _ in range(_MOST):
                one = self._next_probe(job)
                if one is None:
                    break
                if on_probe is not None:
                    on_probe(one.workers, one.share)
                self._probe(job, one)
        return self._ask(lambda grid: grid.advise(job))

    def _next_probe(self, job: str) -> Probe | None:
        try:
            return next(iter(self.grid.advise(job).probes), None)
        except ConflictError:
            return _FIRST

    def _probe(self, job: str, one: Probe) -> None:
        run = self.attend(lambda grid: grid.probe(job, workers=one.workers, share=one.share)).run.id
        ended = self.wait(run)
        if ended.run.state != RunState.SUCCEEDED:
            why = next((line.job.message for line in ended.jobs if line.job.message), ended.run.message)
            raise JobError(f"probe {run} {ended.run.state}: {why}", hint=f"`gridmill logs {run}` has more.")
