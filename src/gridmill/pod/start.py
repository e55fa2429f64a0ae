"""Starts the process of an attempt: forked by the pod, ahead or now, or by its warm zygote."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from gridmill.codec import decode
from gridmill.domain.gang import RANK_VARIABLES
from gridmill.domain.job import JobKind
from gridmill.domain.pod_protocol import Order
from gridmill.errors import GridmillError, InputError
from gridmill.jobs.main import failed_outcome, write_outcome
from gridmill.plugins import MODEL_PREIMPORTS
from gridmill.pod.attempt import Attempt
from gridmill.pod.commands import (
    command_environment,
    devices,
    execute,
    foreign_environment,
    markers,
    prepare_foreign,
    rank_variables,
    runs_foreign_code,
)
from gridmill.pod.folders import PodFolder
from gridmill.pod.launch import Launch, Pipes, enter, fork
from gridmill.pod.prefork import Spare, Spares
from gridmill.pod.zygote_client import Nursery

_OURS = "GRIDMILL_"


class Starter:
    """`nursery` is None where every job is executed, `spares` where none is forked ahead."""

    def __init__(
        self,
        *,
        folder: PodFolder,
        base: Mapping[str, str],
        nursery: Nursery | None,
        spares: Spares | None,
        grace_seconds: float,
    ) -> None:
        self.grace_seconds = grace_seconds
        self._folder, self._nursery, self._spares = folder, nursery, spares
        self._base = _without_ranks(base)

    def spare(self, order: Order) -> Spare | None:
        """A process forked ahead for that order, which is the caller's."""
        return self._spares.take() if self._spares and order.job.kind == JobKind.COMMAND else None

    def start(
        self, attempt: Attempt, pipes: Pipes, affinity: tuple[int, ...], *, warm: bool = True
    ) -> int | None:
        """The pid; None when the nursery will tell. Takes the pipes over. Raises InputError, OSError."""
        order = attempt.order
        try:
            environment = self.environment(order, attempt.folder / "work", attempt.environment)
        except InputError:
            pipes.close()
            raise
        launch = Launch(
            attempt_id=order.attempt_id,
            folder=str(attempt.folder),
            environment=environment,
            joins=attempt.group.joins if attempt.group else (),
            affinity=affinity,
            imports=_imports(order),
        )
        if (
            warm
            and self._nursery is not None
            and _may_be_warm(order)
            and self._nursery.request(launch, pipes)
        ):
            return None
        try:
            return _wake(attempt.spare, launch, pipes) or self._fork(order, launch, pipes)
        finally:
            pipes.close()

    def _fork(self, order: Order, launch: Launch, pipes: Pipes) -> int:
        become = self._become(order, launch)

        def child(parent: int) -> None:
            enter(launch, pipes, parent)
            become()

        return fork(child)

    def cancel(self, attempt_id: str) -> bool:
        """Take back what the nursery has not begun; False when it has."""
        return self._nursery is not None and self._nursery.cancel(attempt_id)

    def environment(
        self, order: Order, work: Path, client: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """The environment of the attempt's process: on that of the client whose run it is of, or else the
        pod's."""
        base = self._base if client is None else _of_client(client, self._base)
        if order.job.kind == JobKind.COMMAND:
            return command_environment(order, base=base, work=work, pod_folder=self._folder.path)
        if runs_foreign_code(order):
            return foreign_environment(order, base=base, work=work, pod_folder=self._folder.path)
        own = {**devices(order, base), **rank_variables(order, base)}
        own |= {**markers(order, self._folder.path), "TMPDIR": str(work)}
        return {**base, **own, "PYTHONUNBUFFERED": "1"}

    def _become(self, order: Order, launch: Launch) -> Callable[[], NoReturn]:
        def built_in() -> NoReturn:
            folder = Path(launch.folder)
            os.chdir(folder / "work")
            try:
                prepare_foreign(order, self._folder.home, folder / "work")
            except (GridmillError, OSError) as error:
                write_outcome(folder, failed_outcome(error))
                raise SystemExit(1) from error
            argv = [sys.executable, "-P", "-m", "gridmill.jobs.main", launch.folder]
            os.execve(sys.executable, argv, os.environ)

        if order.job.kind == JobKind.COMMAND:
            return lambda: become_command(launch, self._folder.home)
        return built_in


def _without_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in RANK_VARIABLES}


def _of_client(client: Mapping[str, str], pod: Mapping[str, str]) -> dict[str, str]:
    """The client's variables, but for Gridmill's own: what the pod has was settled when it was brought up."""
    theirs = {name: value for name, value in client.items() if not name.startswith(_OURS)}
    return _without_ranks({**theirs, **{name: one for name, one in pod.items() if name.startswith(_OURS)}})


def become_command(launch: Launch, home: Path) -> NoReturn:
    """Execute the command whose order lies in the launch's folder."""
    folder = Path(launch.folder)
    try:
        execute(decode((folder / "order.json").read_bytes(), Order), home, folder / "work")
    except (GridmillError, OSError) as error:
        write_outcome(folder, failed_outcome(error))
        raise SystemExit(1) from error


def _wake(spare: Spare | None, launch: Launch, pipes: Pipes) -> int:
    """The pid of the spare that becomes the job; 0 where there is none, or it has died meanwhile."""
    if spare is not None:
        with contextlib.suppress(OSError):
            spare.launch(launch, pipes)
            return spare.pid
    return 0


def _imports(order: Order) -> tuple[str, ...]:
    training = order.job.training
    return MODEL_PREIMPORTS.get(training.model, ()) if training else ()


def _may_be_warm(order: Order) -> bool:
    """Commands and what runs a project's code are executed, and GPU libraries never start in a fork."""
    return order.job.kind != JobKind.COMMAND and not order.given.gpus and not runs_foreign_code(order)
