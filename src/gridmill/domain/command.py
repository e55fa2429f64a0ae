"""This module declares a command job: a program of the user, run as one process, as a gang or once per node.

`Each` selects the nodes of a site on which a command runs once.
"""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from gridmill.domain.amounts import Amounts
from gridmill.domain.container import check_container
from gridmill.domain.frozen import dataclass
from gridmill.domain.gang import RANK_VARIABLES, check_gang
from gridmill.domain.site import Node
from gridmill.domain.storage_uri import below
from gridmill.errors import InputError, UnsafePathError


@dataclass(frozen=True, slots=True, kw_only=True)
class Each:
    """A selection of nodes. A node is selected if its name is one of these names and if its total amounts
    are at least these amounts. In a name, `*` and `?` match any characters; if there are no names, all nodes
    match."""

    nodes: tuple[str, ...] = ()
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int = 0

    def matches(self, node: Node) -> bool:
        """Return whether this selection of nodes contains the node."""
        named = not self.nodes or any(fnmatchcase(node.name, name) for name in self.nodes)
        least = Amounts(cpus=self.cpus or 0.0, memory_bytes=self.memory_bytes or 0, gpus=self.gpus)
        return named and least.fits_in(node.capacity)


SHELL = "/bin/sh -e"
"""The shell that executes a `run` that is a string."""
_SHELLS = ("sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "busybox")
"""Shells that understand the quoting of a POSIX shell, which is used for parameter values."""


def check_shell(shell: str | None, run: str | tuple[str, ...]) -> None:
    """Raise InputError if `shell` is not a known shell, or if `shell` is set for a command that is a
    list."""
    if shell is None:
        return
    if not isinstance(run, str):
        raise InputError(
            "a list is executed as it is, without a shell",
            hint="Leave out `shell`, or write `run` as one string.",
            place="command.shell",
        )
    try:
        words = shlex.split(shell)
    except ValueError as error:
        raise InputError(f"{shell!r} is not a valid command line: {error}", place="command.shell") from error
    if not words or PurePosixPath(words[0]).name not in _SHELLS:
        raise InputError(
            f"{shell!r} is not a POSIX shell ({', '.join(_SHELLS)}) with options",
            hint="Write for example `shell: bash -eo pipefail`. To use another program, write `run` as a"
            " list.",
            place="command.shell",
        )


INPUT = "GRIDMILL_INPUT_"
OWN_VARIABLES = frozenset(
    f"GRIDMILL_{name}"
    for name in (
        *("RUN", "JOB", "ATTEMPT", "POD", "NODE", "EVENTS_FD", "FAILED"),
        *("OUTPUT", "CHECKPOINTS", "GPU_SHARE"),
    )
)
"""Environment variables that only Gridmill sets, in addition to the variables of inputs."""


def input_variable(job: str) -> str:
    """Return the name of the environment variable whose value is the folder of a needed job. The name is
    `GRIDMILL_INPUT_MY_JOB` for `my-job`, and `GRIDMILL_INPUT_OTHER_JOB_PROD` for the result `other/job@prod`
    of another pipeline."""
    return INPUT + "".join(letter if letter.isalnum() else "_" for letter in job).upper()


def check_env(env: Mapping[str, str], *, in_gang: bool) -> None:
    """Raise InputError if the name of an environment variable is invalid, or if only Gridmill sets this
    variable."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise InputError(
                f"the environment variable {name!r} cannot be set: the name is empty, or it contains '=' or"
                f" NUL",
                place="command.env",
            )
        if name in OWN_VARIABLES or name.startswith(INPUT):
            raise InputError(
                f"{name} is set by Gridmill", hint="Give the variable another name.", place="command.env"
            )
        if in_gang and name in RANK_VARIABLES:
            raise InputError(
                f"{name} is set for each rank of a gang, but would be {value!r} in all of them",
                hint="Leave out the variable, or leave out `workers` and `roles`.",
                place="command.env",
            )


def check_outputs(outputs: tuple[str, ...]) -> None:
    """Raise InputError if an output is not below GRIDMILL_OUTPUT."""
    for name in outputs:
        try:
            below("GRIDMILL_OUTPUT", name)
        except UnsafePathError as error:
            raise InputError(
                f"{name!r} is not below GRIDMILL_OUTPUT",
                hint="Write a relative path, without '..': model.bin, or parts/*.parquet.",
                place="command.outputs",
            ) from error


def check_inputs(inputs: tuple[str, ...], place: str) -> None:
    """Raise InputError if an input is not below the folder of the pipeline."""
    for name in inputs:
        try:
            below("folder", name)
        except UnsafePathError as error:
            raise InputError(
                f"{name!r} is not below the folder of the pipeline",
                hint="Write a relative path, without '..': src/clean.py, or src/**/*.py.",
                place=place,
            ) from error


def has_output(name: str, files: Collection[str]) -> bool:
    """Return whether a file in the list has that name, matches that pattern, or is in a folder of that
    name."""
    wanted = PurePosixPath(name).as_posix()
    if any(letter in wanted for letter in "*?["):
        return any(_matches(PurePosixPath(file).parts, PurePosixPath(wanted).parts) for file in files)
    return wanted in files or any(file.startswith(f"{wanted}/") for file in files)


def _matches(file: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Compare the path of a file with a pattern, one path component at a time, so that `*` does not match a
    slash."""
    return len(file) >= len(pattern) and all(map(fnmatchcase, file, pattern))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """The declaration of a command job. A `run` that is a list is executed without a shell. A `run` that is
    a string is executed by `/bin/sh -e`, which ends the command at the first line that fails, or by the
    POSIX shell that `shell` names (such as `bash -eo pipefail`, or `sh` for a command that continues after a
    failure).

    The command starts in a private copy of the project's code bundle, or in `folder` if it is set. A
    relative `folder` is a folder of this copy, and an absolute `folder` is a folder of the machine itself.
    `GRIDMILL_OUTPUT` names a folder whose content is stored as the version of the job.
    `GRIDMILL_INPUT_<JOB>` names the output folder of each job in `needs` (`GRIDMILL_INPUT_OTHER_MODEL_PROD`
    for `other/model@prod`), or an empty folder if that job wrote no files. `environment` is a requirements
    file of the project. Gridmill builds the Python environment once for each content of the requirements
    file. With `container`, the command runs in a container of this image, and `registry_login` is a
    reference to the secret with the login at its registry.

    `workers` makes the job a gang: all of its ranks start together or none starts, and the environment of
    each rank has the variables that torchrun, TensorFlow and JAX read. `roles` has the number of ranks of
    each role (`chief`, `worker`, `ps`, `evaluator`), for frameworks that distinguish ranks. The next attempt
    of a gang receives the files that the gang wrote to `GRIDMILL_CHECKPOINTS`. With `each`, the command runs
    once on every matching node of its site. Such a command is executed in every run, and its files are not
    stored.

    `outputs` are the files (or folders, or patterns such as `parts/*.csv`) that the command must write to
    `GRIDMILL_OUTPUT`: if an output is missing, the job fails. Files in `GRIDMILL_OUTPUT` that are not in
    `outputs` are stored too. If an output is a link, the file or folder to which the link points is stored.
    `inputs` are the files of the project that the command reads (or folders, or patterns such as
    `src/**/*.py`), relative to the folder of the pipeline: the command runs again when an input changes.
    Without `inputs`, all files of the code bundle are inputs, except pipeline files and files that sinks of
    the pipeline load. A change of `environment` always makes the command run again.
    """

    run: str | tuple[str, ...]
    shell: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    environment: str | None = None
    container: str | None = None
    registry_login: str | None = None
    workers: int | None = None
    roles: Mapping[str, int] = field(default_factory=dict)
    each: Each | None = None
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()

    def references(self) -> tuple[str, ...]:
        """Return no names: a command names the results of other jobs that it reads in the field `needs` of
        its job."""
        return ()

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the program that is executed, with its arguments."""
        if isinstance(self.run, str):
            return (*shlex.split(self.shell or SHELL), "-c", self.run)
        return self.run

    def check(self) -> None:
        """Raise InputError for a shell that cannot run the command, for variables that the command must not
        set, for an invalid number of workers or invalid roles of a gang, and for a gang with `each`."""
        check_shell(self.shell, self.run)
        check_env(self.env, in_gang=bool(self.workers or self.roles))
        check_outputs(self.outputs)
        check_container(self.container, self.registry_login, "command")
        if self.container is not None and self.environment is not None:
            raise InputError(
                "a command in a container has the packages of its image",
                hint="Leave out `environment`, or `container`.",
                place="command.environment",
            )
        check_inputs(self.inputs, "command.inputs")
        check_gang(self.workers, self.roles, "command")
        if self.each is not None:
            self._check_each()

    def _check_each(self) -> None:
        if self.workers or self.roles:
            raise InputError(
                "a command that runs once on each node has no ranks",
                hint="Leave out `each`, or `workers` and `roles`.",
                place="command.each",
            )
        words = (self.run,) if isinstance(self.run, str) else self.run
        if self.outputs or any("GRIDMILL_OUTPUT" in word for word in words):
            raise InputError(
                "a command that runs once on each node keeps no files",
                hint="Write to a folder of the node, or print the result: the log is stored.",
                place="command.each",
            )
