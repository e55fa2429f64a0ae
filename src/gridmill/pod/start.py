"""Starts the process of an attempt. Either the pod forks the process, in advance or when the attempt starts,
or the pod's zygote forks the process."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from gridmill.codec import decode
from gridmill.domain.gang import RANK_VARIABLES
from gridmill.domain.job import JobKind
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome
from gridmill.domain.serving import BUILDER_VARIABLE, HOME_VARIABLE
from gridmill.errors import GridmillError, InputError
from gridmill.jobs.main import failed_outcome, write_outcome
from gridmill.plugins import MODEL_PREIMPORTS
from gridmill.pod.attempt import Attempt
from gridmill.pod.folders import PodFolder, write_order
from gridmill.pod.forker import PROGRAMS
from gridmill.pod.launch import Launch, Pipes, enter, fork
from gridmill.pod.prefork import PreforkedProcess, PreforkPool
from gridmill.pod.program import (
    command_environment,
    devices,
    execute,
    foreign_environment,
    login_secrets,
    make_ready,
    markers,
    not_executed,
    prepare_foreign,
    programs,
    rank_variables,
    runs_foreign_code,
)
from gridmill.pod.python_environments import bundle_folder, is_small_code
from gridmill.pod.small_spares import Program, SmallSpare, SmallSpares, read_trouble
from gridmill.pod.zygote_client import ZygoteClient

_OURS = "GRIDMILL_"
BUILDER = "gridmill.pod.version_environment"
"""The module that the processes of a service run to build the Python environment of a version."""
TROUBLE = "not-executed"
"""The file of an attempt that contains the error number if the command of the attempt could not be
executed."""
_EXITED_WITH_1 = 1 << 8  # the status that wait() returns has the exit code in its second byte


class ProcessStarter:
    """Starts the processes of jobs.

    The zygote is None if each job is executed as a new program. `spares` and `small` are None if no process
    is forked in advance.
    """

    def __init__(
        self,
        *,
        folder: PodFolder,
        base: Mapping[str, str],
        nursery: ZygoteClient | None,
        spares: PreforkPool | None,
        small: SmallSpares | None = None,
        grace_seconds: float,
    ) -> None:
        self.grace_seconds = grace_seconds
        self._folder, self._zygote_client, self._prefork_pool = folder, nursery, spares
        self._small = small
        self._base = _without_ranks(base)
        self._small_code: dict[str, bool] = {}

    def expect(self, orders: Sequence[AttemptOrder]) -> None:
        """Prepares the processes for these attempts in parallel. The method must be called before the
        attempts start."""
        if self._small is not None and orders:
            self._small.expect(sum(map(self.is_simple, orders)))

    def spare(self, order: AttemptOrder) -> PreforkedProcess | SmallSpare | None:
        """Returns a process that was forked in advance and is suitable for this order. The process then
        belongs to the caller."""
        if order.job.kind != JobKind.COMMAND:
            return None
        small = self._small.take() if self._small is not None and self.is_simple(order) else None
        return small or (self._prefork_pool.take() if self._prefork_pool else None)

    def is_simple(self, order: AttemptOrder) -> bool:
        """Returns whether the command can start fast, because its code is small and it reads no files."""
        spec = order.job.command
        if spec is None or spec.environment or spec.container or order.gang is not None:
            return False
        if any(entry.artifact.output.uri for entry in order.inputs):
            return False
        return order.part is None and (order.bundle is None or self._is_small_code(order.bundle))

    def _is_small_code(self, bundle: str) -> bool:
        """Returns whether the code is unpacked and has few, small files and no links."""
        if bundle not in self._small_code:
            folder = bundle_folder(self._folder.home, bundle)
            if not folder.is_dir():
                return False
            self._small_code[bundle] = is_small_code(folder)
        return self._small_code[bundle]

    def start(
        self, attempt: Attempt, pipes: Pipes, affinity: tuple[int, ...], *, warm: bool = True
    ) -> int | None:
        """Starts the process of the attempt. Returns its process id, or None if the zygote will report the
        id. The function closes the job's ends of the pipes. Raises InputError, OSError."""
        order = attempt.order
        try:
            if not isinstance(attempt.preforked, SmallSpare):
                write_order(attempt.folder, order)
            environment = self.environment(
                order, attempt.folder / "work", attempt.environment, attempt.secrets
            )
        except (InputError, OSError):
            pipes.close()
            raise
        launch = Launch(
            attempt_id=order.attempt_id,
            folder=str(attempt.folder),
            environment=environment,
            joins=attempt.group.joins if attempt.group else (),
            affinity=affinity,
            imports=_imports(order),
            # the secrets of a command are in its environment, but for its login at a registry
            secrets=login_secrets(order, attempt.secrets)
            if order.job.kind == JobKind.COMMAND
            else attempt.secrets,
        )
        if (
            warm
            and self._zygote_client is not None
            and _may_be_warm(order)
            and self._zygote_client.request(launch, pipes)
        ):
            return None
        try:
            return self._wake(attempt, launch, pipes) or self._fork(order, launch, pipes)
        finally:
            pipes.close()

    def _wake(self, attempt: Attempt, launch: Launch, pipes: Pipes) -> int:
        """Returns the process id of the spare process that becomes the job.

        Returns 0 if there is no spare process, if it has died, or if the job must be executed by a process
        that can report its errors.
        """
        spare = attempt.preforked
        if isinstance(spare, SmallSpare):
            try:
                spare.launch(self._program(attempt.order, launch), pipes)
            except (GridmillError, OSError, ValueError):
                spare.discard()
                write_order(attempt.folder, attempt.order)
                return 0
            return spare.pid
        if spare is not None:
            with contextlib.suppress(OSError):
                spare.launch(launch, pipes)
                return spare.pid
        return 0

    def _program(self, order: AttemptOrder, launch: Launch) -> Program:
        """Makes all files of the simple command, and returns the command. Raises GridmillError, OSError,
        ValueError."""
        folder = Path(launch.folder)
        ready = make_ready(order, self._folder.home, folder / "work", launch.environment)
        paths = programs(ready.argv[0], launch.environment)[:PROGRAMS]
        if not paths:
            raise FileNotFoundError(ready.argv[0])
        return Program(
            argv=ready.argv,
            paths=tuple(paths),
            folder=str(ready.cwd),
            environment=launch.environment,
            affinity=launch.affinity,
            trouble=f"{folder}/{TROUBLE}",
        )

    def not_executed(self, attempt: Attempt) -> AttemptOutcome | None:
        """Returns the outcome of a simple command that could not be executed, or None for any other
        command."""
        exited = attempt.exit is not None and attempt.exit.status == _EXITED_WITH_1
        if not exited or not isinstance(attempt.preforked, SmallSpare) or attempt.order.job.command is None:
            return None
        number = read_trouble(attempt.folder / TROUBLE)
        if number is None:
            return None
        environment = self.environment(
            attempt.order, attempt.folder / "work", attempt.environment, attempt.secrets
        )
        error = OSError(number, os.strerror(number))
        return failed_outcome(not_executed(attempt.order.job.command.argv[0], error, environment))

    def _fork(self, order: AttemptOrder, launch: Launch, pipes: Pipes) -> int:
        become = self._become(order, launch)

        def child(parent: int) -> None:
            enter(launch, pipes, parent, write_outcome)
            become()

        return fork(child)

    def cancel(self, attempt_id: str) -> bool:
        """Cancels the launch of an attempt if the zygote has not started it. Returns False if the zygote has
        already started the attempt."""
        return self._zygote_client is not None and self._zygote_client.cancel(attempt_id)

    def environment(
        self,
        order: AttemptOrder,
        work: Path,
        client: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Returns the environment variables for the attempt's process. The variables extend the environment
        of the client that started the run. If the run has no such client, the variables extend the
        environment of the pod."""
        base = self._base if client is None else _of_client(client, self._base)
        if order.job.kind == JobKind.COMMAND:
            return command_environment(
                order, base=base, work=work, pod_folder=self._folder.path, secrets=secrets or {}
            )
        if runs_foreign_code(order):
            return foreign_environment(order, base=base, work=work, pod_folder=self._folder.path)
        own = {**devices(order, base), **rank_variables(order, base)}
        own |= {**markers(order, self._folder.path), "TMPDIR": str(work)}
        return {**base, **own, "PYTHONUNBUFFERED": "1"}

    def _become(self, order: AttemptOrder, launch: Launch) -> Callable[[], NoReturn]:
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

        def served() -> NoReturn:
            work = f"{launch.folder}/work"
            os.chdir(work)
            # the environments of models with code are built beside those of other jobs
            own = {**os.environ, HOME_VARIABLE: str(self._folder.home), BUILDER_VARIABLE: BUILDER}
            os.execve(sys.executable, [sys.executable, "-P", "-m", "gridmill.serving", work], own)

        if order.job.kind == JobKind.COMMAND:
            return lambda: become_command(launch, self._folder.home)
        return served if order.job.kind == JobKind.SERVICE else built_in


def _without_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in RANK_VARIABLES}


def _of_client(client: Mapping[str, str], pod: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables of the client, without Gridmill's own variables, because the
    settings of the pod were fixed when the pod started."""
    theirs = {name: value for name, value in client.items() if not name.startswith(_OURS)}
    return _without_ranks({**theirs, **{name: one for name, one in pod.items() if name.startswith(_OURS)}})


def become_command(launch: Launch, home: Path) -> NoReturn:
    """Executes the command whose order is in the folder of the launch."""
    folder = Path(launch.folder)
    try:
        execute(decode((folder / "order.json").read_bytes(), AttemptOrder), home, folder / "work")
    except (GridmillError, OSError) as error:
        write_outcome(folder, failed_outcome(error))
        raise SystemExit(1) from error


def _imports(order: AttemptOrder) -> tuple[str, ...]:
    training = order.job.training
    return MODEL_PREIMPORTS.get(training.model, ()) if training else ()


def _may_be_warm(order: AttemptOrder) -> bool:
    """Returns whether the zygote may fork the job. Commands, services, jobs that run the code of a project,
    and jobs with GPUs are executed as new programs, because GPU libraries must not start in a forked
    process."""
    return (
        order.job.kind not in (JobKind.COMMAND, JobKind.SERVICE)
        and not order.given.gpus
        and not runs_foreign_code(order)
    )
