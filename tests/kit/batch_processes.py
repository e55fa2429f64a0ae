"""A batch service whose containers are processes of this machine, for tests of batch sites without a
provider."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gridmill.domain.states import Cause
from gridmill.errors import UnavailableError
from gridmill.ports.batch import BatchJob, BatchPhase, BatchRequest, OpenJob, QueueProblem

_SERVICES: dict[str, "ProcessBatch"] = {}


def make(settings: Mapping[str, str], place: str) -> "ProcessBatch":
    """The service with the name in the setting `queue`, which outlives the sites that use it."""
    del place
    return _SERVICES[settings["queue"]]


class ProcessBatch:
    """`holds` keeps new jobs in the queue, and `loses_answers` is the number of submissions whose answer is
    lost. Like the files of a container, the temporary files of a job go with the service, however the job
    ended."""

    def __init__(self, name: str) -> None:
        self.name, self.holds, self.loses_answers = name, False, 0
        self.problem: QueueProblem | None = None
        self.requests: dict[str, BatchRequest] = {}
        self.jobs: dict[str, BatchJob] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._reasons: dict[str, tuple[str, Cause]] = {}
        self._files = Path(tempfile.mkdtemp(prefix="gmb"))  # short: sockets are in it
        self._lock = threading.RLock()
        _SERVICES[name] = self

    def check(self) -> str:
        return "processes"

    def account(self) -> str:
        return self.name

    def submit(self, request: BatchRequest) -> str:
        with self._lock:
            job_id = f"job-{len(self.jobs) + 1}"
            self.requests[job_id] = request
            self.jobs[job_id] = BatchJob(
                id=job_id, phase=BatchPhase.QUEUED, status="RUNNABLE", created=time.time()
            )
            if not self.holds:
                self.begin(job_id)
            if self.loses_answers:
                self.loses_answers -= 1
                raise UnavailableError("the answer was lost")
            return job_id

    def begin(self, job_id: str) -> None:
        request = self.requests[job_id]
        variables = os.environ | {"TMPDIR": str(self._files)} | dict(request.variables)
        self.processes[job_id] = subprocess.Popen(request.command, env=variables, start_new_session=True)
        self._change(job_id, phase=BatchPhase.RUNNING, status="RUNNING", started=time.time())

    def _change(self, job_id: str, **fields: object) -> None:
        before = self.jobs[job_id]
        values = {name: getattr(before, name) for name in BatchJob.__dataclass_fields__}
        self.jobs[job_id] = BatchJob(**{**values, **fields})

    def find(self, name: str) -> str | None:
        return next((job_id for job_id, one in self.requests.items() if one.name == name), None)

    def describe(self, ids: Sequence[str]) -> Mapping[str, BatchJob]:
        with self._lock:
            for job_id in ids:
                process = self.processes.get(job_id)
                if process is not None and process.poll() is not None:
                    reason, cause = self._reasons.get(
                        job_id, ("Essential container in task exited", Cause.LOST)
                    )
                    status = "FAILED" if process.returncode else "SUCCEEDED"
                    ended = {"phase": BatchPhase.ENDED, "status": status, "ended": time.time()}
                    self._change(job_id, **ended, exit_code=process.returncode, reason=reason, cause=cause)
            return {job_id: self.jobs[job_id] for job_id in ids if job_id in self.jobs}

    def open_jobs(self, mark: str) -> Sequence[OpenJob]:
        states = self.describe(list(self.jobs))
        return [
            OpenJob(id=id, name=self.requests[id].name, status=one.status, end_command=f"end {id}")
            for id, one in states.items()
            if one.phase is not BatchPhase.ENDED and self.requests[id].name.startswith(f"gm-{mark}-")
        ]

    def cancel(self, id: str, reason: str) -> None:
        with self._lock:
            process = self.processes.get(id)
            if process is None:
                self._change(id, phase=BatchPhase.ENDED, status="FAILED", reason=reason, ended=time.time())
            elif process.poll() is None:
                self._reasons.setdefault(id, (reason, Cause.LOST))
                process.send_signal(signal.SIGTERM)

    def reclaim(self, id: str, *, notice: bool = True) -> None:
        """End the machine of a job, as the provider does with Spot machines."""
        self._reasons[id] = ("Host EC2 (instance i-1) terminated.", Cause.TAKEN)
        os.killpg(self.processes[id].pid, signal.SIGTERM if notice else signal.SIGKILL)

    def diagnose(self, job: BatchJob, request: BatchRequest) -> QueueProblem | None:
        return self.problem

    def running(self) -> list[str]:
        return [job_id for job_id, one in self.processes.items() if one.poll() is None]

    def bucket_credentials(self, bucket: str) -> None:
        """The environment has the credentials."""

    def close(self) -> None:
        """The jobs continue."""

    def end(self) -> None:
        for job_id in self.running():
            os.killpg(self.processes[job_id].pid, signal.SIGKILL)
            self.processes[job_id].wait()
        until = time.monotonic() + 20
        while self._files.exists() and time.monotonic() < until:  # a pod may end after its container
            shutil.rmtree(self._files, ignore_errors=True)
        _SERVICES.pop(self.name, None)
