"""This module has the measured use of earlier attempts: the newest measurements of each job and of each kind
of work."""

from gridmill.domain.resource import Measurement

PER_JOB = 20  # enough to show the variation of a job; older data sizes say little
PER_SUBJECT = 60  # more than PER_JOB, because several jobs share a subject


PROBE = "/probe"
"""The suffix of the subject of a probe's measurements, which sizes and forecasts do not use."""


class MeasurementHistory:
    """The measurements of earlier attempts: the newest `PER_JOB` measurements of each job, and the newest
    `PER_SUBJECT` measurements of each subject.

    The same attempt is counted once in the history, however often it is added.
    """

    def __init__(self) -> None:
        # tuples: most jobs have one measurement, for which a deque would take ten times as much memory
        self._by_job: dict[str, tuple[Measurement, ...]] = {}
        self._by_subject: dict[str, tuple[Measurement, ...]] = {}

    def add(self, measurement: Measurement) -> None:
        """Add the measurement of one attempt to the history."""
        same_job = self._by_job.get(measurement.job, ())
        if any(known.attempt_id == measurement.attempt_id for known in same_job):
            return
        same_subject = self._by_subject.get(measurement.subject, ())
        self._by_job[measurement.job] = (*same_job, measurement)[-PER_JOB:]
        self._by_subject[measurement.subject] = (*same_subject, measurement)[-PER_SUBJECT:]

    def of_job(self, name: str, subject: str) -> tuple[Measurement, ...]:
        """Return the measurements of `pipeline/job` that were made under this subject, oldest first."""
        measurements = self._by_job.get(name)
        return tuple([one for one in measurements if one.subject == subject]) if measurements else ()

    def of_workers(self, name: str, subject: str) -> tuple[Measurement, ...]:
        """Return the measurements from which advice on the workers of the job is computed: its successful
        attempts and probes, in the order in which they ended."""
        measurements = (*self.of_job(name, subject), *self.of_job(name, subject + PROBE))
        return tuple(
            sorted((one for one in measurements if not one.memory_killed), key=lambda one: one.ended)
        )

    def of_subject(self, subject: str) -> tuple[Measurement, ...]:
        """Return the measurements of all jobs of a subject, oldest first."""
        return self._by_subject.get(subject, ())
