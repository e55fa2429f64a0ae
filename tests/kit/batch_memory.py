"""A batch service in memory and a bucket in a folder, which fail on request, for tests of batch sites."""

from collections.abc import Iterator, Mapping, Sequence

from gridmill.domain.frozen import replace
from gridmill.errors import GridmillError, UnavailableError
from gridmill.ports.batch import BatchJob, BatchPhase, BatchRequest, OpenJob, QueueProblem
from gridmill.transfer.bucket import BucketClient


class Bucket(BucketClient):
    """A bucket in a folder, which can refuse or not answer."""

    error: GridmillError | None = None

    def get(self, name: str, *more: object) -> bytes:
        self._check()
        return super().get(name, *more)  # type: ignore[arg-type]

    def names(self, folder: str) -> Iterator[Sequence[str]]:
        self._check()
        return super().names(folder)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error


class Service:
    """A batch service in memory. A job ends when it is cancelled, unless it is `stubborn`."""

    def __init__(self) -> None:
        self.jobs: dict[str, BatchJob] = {}
        self.names: dict[str, str] = {}
        self.cancelled: list[str] = []
        self.refused: list[str] = []
        self.error: GridmillError | None = None
        self.account_name = "memory"
        self.loses_answer = self.is_late = self.stubborn = False

    def check(self) -> str:
        return "memory"

    def account(self) -> str:
        return self.account_name

    def submit(self, request: BatchRequest) -> str:
        job_id = f"job-{len(self.jobs) + 1}"
        self.jobs[job_id] = BatchJob(id=job_id, phase=BatchPhase.RUNNING, status="RUNNING", started=1.0)
        self.names.setdefault(request.name, job_id)
        if self.loses_answer:
            self.loses_answer = False
            raise UnavailableError("the answer was lost")
        return job_id

    def find(self, name: str) -> str | None:
        return None if self.is_late else self.names.get(name)

    def describe(self, ids: Sequence[str]) -> Mapping[str, BatchJob]:
        if self.error is not None:
            raise self.error
        return {one: self.jobs[one] for one in ids if one in self.jobs}

    def open_jobs(self, mark: str) -> Sequence[OpenJob]:
        if self.error is not None:
            raise self.error
        names = {id: name for name, id in self.names.items()}
        running = [one for one in self.jobs.values() if one.phase is not BatchPhase.ENDED]
        jobs = [
            OpenJob(id=one.id, name=names.get(one.id, ""), status=one.status, end_command=f"end {one.id}")
            for one in running
        ]
        return [one for one in jobs if one.name.startswith(f"gm-{mark}-")]

    def cancel(self, id: str, reason: str) -> None:
        if self.error is not None:
            self.refused.append(id)
            raise self.error
        self.cancelled.append(id)
        if not self.stubborn and id in self.jobs:
            self.end(id)

    def end(self, id: str, **more: object) -> None:
        ended = replace(self.jobs[id], phase=BatchPhase.ENDED, status="FAILED", ended=9.0)
        self.jobs[id] = replace(ended, **more)  # type: ignore[arg-type]

    def diagnose(self, job: BatchJob, request: BatchRequest) -> QueueProblem | None:
        return None

    def bucket_credentials(self, bucket: str) -> None:
        """The environment has the credentials."""

    def close(self) -> None:
        pass
