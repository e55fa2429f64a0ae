"""The measured use of earlier attempts: the newest few per job and per kind of work."""

from collections import deque

from gridmill.domain.resource import Measurement

PER_JOB = 20  # enough to see a job's spread; older sizes of the data say little
PER_SUBJECT = 60  # several jobs share a subject


PROBE = "/probe"
"""Suffix of the subject of a probe's measurements: sizes and forecasts do not use these."""


class MeasurementHistory:
    """Bounded: the newest `PER_JOB` measurements of each job, `PER_SUBJECT` of each subject.

    The same attempt is counted once, however often it is added.
    """

    def __init__(self) -> None:
        self._by_job: dict[str, deque[Measurement]] = {}
        self._by_subject: dict[str, deque[Measurement]] = {}

    def add(self, measurement: Measurement) -> None:
        """Learn from one attempt."""
        same_job = self._by_job.setdefault(measurement.job, deque(maxlen=PER_JOB))
        if any(known.attempt_id == measurement.attempt_id for known in same_job):
            return
        same_job.append(measurement)
        self._by_subject.setdefault(measurement.subject, deque(maxlen=PER_SUBJECT)).append(measurement)

    def of_job(self, name: str, subject: str) -> tuple[Measurement, ...]:
        """Measurements of `pipeline/job` while it was of that subject, oldest first."""
        measurements = self._by_job.get(name)
        return tuple([one for one in measurements if one.subject == subject]) if measurements else ()

    def of_workers(self, name: str, subject: str) -> tuple[Measurement, ...]:
        """Measurements of its attempts and probes that succeeded, in the order of their ends: what advice on
        its workers learns from."""
        measurements = (*self.of_job(name, subject), *self.of_job(name, subject + PROBE))
        return tuple(
            sorted((one for one in measurements if not one.memory_killed), key=lambda one: one.ended)
        )

    def of_subject(self, subject: str) -> tuple[Measurement, ...]:
        """Measurements of every job of a subject, oldest first."""
        measurements = self._by_subject.get(subject)
        return tuple(measurements) if measurements else ()
