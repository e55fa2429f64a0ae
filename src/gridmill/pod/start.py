"""How an attempt's process comes to be: forked and executed by the pod, or forked by the warm zygote."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from gridmill.errors import GridmillError, InputError
from gridmill.jobs.main import failed_outcome, write_outcome
from gridmill.model.job import JobKind
from gridmill.model.message import Order
from gridmill.pod.attempt import Attempt
from gridmill.pod.commands import command_environment, devices, execute, markers
from gridmill.pod.folders import PodFolder
from gridmill.pod.launch import Launch, Pipes, fork
from gridmill.pod.nursery import Nursery


class Starter:
    """`nursery` is None where every job is executed."""

    def __init__(
        self, *, folder: PodFolder, base: Mapping[str, str], nursery: Nursery | None, grace_seconds: float
    ) -> None:
        self.grace_seconds = grace_seconds
        self._folder, self._base, self._nursery = folder, base, nursery

    def start(
        self, attempt: Attempt, pipes: Pipes, affinity: tuple[int, ...], *, warm: bool = True
    ) -> int | None:
        """The pid; None when the nursery will tell. Takes the pipes over. Raises InputError, OSError."""
        order = attempt.order
        try:
            environment = self.environment(order, attempt.folder / "work")
        except InputError:
            pipes.close()
            raise
        launch = Launch(
            attempt_id=order.attempt_id,
            folder=str(attempt.folder),
            environment=environment,
            joins=attempt.group.joins if attempt.group else (),
            affinity=affinity,
        )
        if (
            warm
            and self._nursery is not None
            and _may_be_warm(order)
            and self._nursery.request(launch, pipes)
        ):
            return None
        try:
            return fork(launch, pipes, self._become(order, attempt.folder))
        finally:
            pipes.close()

    def cancel(self, attempt_id: str) -> bool:
        """Take back what the nursery has not begun; False when it has."""
        return self._nursery is not None and self._nursery.cancel(attempt_id)

    def environment(self, order: Order, work: Path) -> dict[str, str]:
        """The environment of the attempt's process."""
        if order.job.kind == JobKind.COMMAND:
            return command_environment(order, base=self._base, work=work, pod_folder=self._folder.path)
        own = {**devices(order), **markers(order, self._folder.path), "TMPDIR": str(work)}
        return {**self._base, **own, "PYTHONUNBUFFERED": "1"}

    def _become(self, order: Order, folder: Path) -> Callable[[], NoReturn]:
        def command() -> NoReturn:
            try:
                execute(order, self._folder.home, folder / "work")
            except (GridmillError, OSError) as error:
                write_outcome(folder, failed_outcome(error))
                raise SystemExit(1) from error

        def built_in() -> NoReturn:
            os.chdir(folder / "work")
            argv = [sys.executable, "-P", "-m", "gridmill.jobs.main", str(folder)]
            os.execve(sys.executable, argv, os.environ)

        return command if order.job.kind == JobKind.COMMAND else built_in


def _may_be_warm(order: Order) -> bool:
    """Commands are executed, and GPU libraries never start in a fork."""
    return order.job.kind != JobKind.COMMAND and not order.given.gpus
