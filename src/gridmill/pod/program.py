"""Prepares `command` jobs, and built-in jobs that run the code of a project: their environment, folder and
program.

Built-in jobs that run the code of a project are custom trainings, and predictions with models that need
their own code. The code of the built-in job itself is part of Gridmill. A job that runs the code of a
project gets a private copy of the code, and a Python environment for each requirements file. The variable
GRIDMILL_PYTHONS contains the interpreters of these environments.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NoReturn

from gridmill.domain.amounts import POD_GPU_SHARES, POD_GPUS, devices_of, share_of
from gridmill.domain.artifact import Input
from gridmill.domain.command import CommandSpec, check_env, input_variable
from gridmill.domain.frozen import dataclass
from gridmill.domain.gang import Gang
from gridmill.domain.job import JobKind, When
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.secret import fill_in_secrets, names_in
from gridmill.domain.storage_uri import below
from gridmill.errors import InputError, InternalError
from gridmill.jobs.containers import RUNTIME_VARIABLES, ContainerJob, container_argv
from gridmill.jobs.context import CODE
from gridmill.jobs.rank_env import gang_environment
from gridmill.jobs.secret_values import fill_in, receive_values
from gridmill.pod.inputs import hand_over, input_folders
from gridmill.pod.launch import EVENTS_FD, thread_environment
from gridmill.pod.network import interface_of
from gridmill.pod.python_environments import Requirements, private_copy, ready_environment, unpacked
from gridmill.telemetry import QUIET
from gridmill.transfer.verify import check_order

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "XDG_RUNTIME_DIR"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
"""The variables of Gridmill's environment that a command gets, in addition to the variables LC_* and the
variables of Slurm. The list protects credentials: other variables are not passed on."""

GPU_SHARE = "GRIDMILL_GPU_SHARE"
"""The variable with the job's share of its GPU. The variable is set if the job does not have the whole
GPU."""
_OF_SHARE = 0.9
"""When JAX starts, it allocates this fraction of the job's GPU share. The contexts and kernels of all jobs
on the GPU need the remaining memory."""

GLOO = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program that a command executes, and the folder in which it runs."""

    argv: tuple[str, ...]
    cwd: Path


def markers(order: AttemptOrder, pod_folder: Path) -> dict[str, str]:
    """Returns the variables that every process of an attempt has. The last two variables make it possible to
    find the processes of the attempt."""
    return {
        "GRIDMILL_RUN": order.run_id,
        "GRIDMILL_JOB": order.job.name,
        "GRIDMILL_EVENTS_FD": str(EVENTS_FD),
        "GRIDMILL_ATTEMPT": order.attempt_id,
        "GRIDMILL_POD": str(pod_folder),
    }


def devices(order: AttemptOrder, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for threads and GPUs.

    The GPU numbers in the order are indexes into the list of the pod's GPUs. Raises InputError for a gang
    whose workers would share a GPU.
    """
    own = [name for name in base.get(POD_GPUS, "").split(",") if name]
    names = [own[index] if index < len(own) else str(index) for index in _gpus(order)]
    shares, threads = int(base.get(POD_GPU_SHARES, "1")), thread_environment(order.given.cpus, base)
    if shares == 1:
        return {**threads, "CUDA_VISIBLE_DEVICES": ",".join(names), **QUIET}
    if order.gang is not None and len(order.gang.me.gpus) % shares:
        raise InputError(
            f"workers of a gang cannot share a GPU, and {len(order.gang.me.gpus)} is not a whole number of "
            "GPUs here",
            hint=f"Each GPU counts as {shares} here: give the resource `gpus: {shares}`, or a multiple.",
            place=f"job {order.job.name}",
        )
    numbers = list(map(int, names))
    visible = ",".join(map(str, devices_of(numbers, shares)))
    return {**threads, "CUDA_VISIBLE_DEVICES": visible, **_share(share_of(numbers, shares)), **QUIET}


def _share(share: float) -> dict[str, str]:
    """Returns the variables that prevent libraries from allocating all the memory of a shared GPU.
    Gridmill's own libraries read the first of these variables."""
    if share == 1:
        return {}
    return {
        GPU_SHARE: f"{share:g}",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{share * _OF_SHARE:.3g}",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


def _gpus(order: AttemptOrder) -> tuple[int, ...]:
    """Returns the GPU numbers of the job. A rank of a gang gets the GPUs of all ranks on its host. A rank
    selects its own GPU by its local rank, as with torchrun."""
    if order.gang is None:
        return order.gpu_indices
    return tuple(gpu for member in order.gang.local_members for gpu in member.gpus)


def rank_variables(order: AttemptOrder, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a rank of a gang, or an empty mapping for any other job."""
    if order.gang is None:
        return {}
    return {**gang_environment(order.gang), **_gloo(order.gang, base)}


def _gloo(gang: Gang, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable that sets the network interface for gloo.

    By default, gloo listens at the address of the host's own name. Other hosts often cannot reach this
    address (on Debian it is 127.0.1.1). The returned interface is the interface that other hosts reach, or
    the interface that the owner of the machine set.
    """
    if len({member.address for member in gang.members}) == 1:
        return {}
    name = base.get(GLOO) or interface_of(gang.me.address)
    return {GLOO: name} if name else {}


def command_environment(
    order: AttemptOrder,
    *,
    base: Mapping[str, str],
    work: Path,
    pod_folder: Path,
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Returns the environment variables of a command. Variables that the job declares replace all other
    variables, except Gridmill's own, and references in them are replaced by the values of secrets. Raises
    InputError if a variable cannot be set."""
    spec = _spec(order)
    check_env(spec.env, in_gang=order.gang is not None)
    kept = inherited(base, pip=spec.environment is not None)
    if spec.container is not None:
        kept |= {name: text for name, text in base.items() if name.startswith(RUNTIME_VARIABLES)}
    return {
        **kept,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath))),
        "TMPDIR": str(work / "tmp"),
        "PYTHONUNBUFFERED": "1",
        **devices(order, base),
        **rank_variables(order, base),
        **{name: fill_in_secrets(text, secrets, f"command.env.{name}") for name, text in spec.env.items()},
        **markers(order, pod_folder),
        **_checkpoints(order),
        **({"GRIDMILL_NODE": order.part.node} if order.part and order.part.node else {}),
        **({"GRIDMILL_FAILED": " ".join(order.failed)} if order.job.when != When.SUCCESS else {}),
        "GRIDMILL_OUTPUT": str(below(order.root, order.output_uri)),
        **{input_variable(name): str(path) for name, path in input_folders(order, work).items()},
    }


def _checkpoints(order: AttemptOrder) -> dict[str, str]:
    uri = order.checkpoint_uri
    return {"GRIDMILL_CHECKPOINTS": str(below(order.root, uri))} if uri else {}


def inherited(base: Mapping[str, str], *, pip: bool) -> dict[str, str]:
    """Returns the variables of Gridmill's environment that the code of a project gets. With `pip`, the
    result includes the variables that are needed to build the environment of the code."""
    prefixes = ("LC_", "SLURM_", "PIP_") if pip else ("LC_", "SLURM_")
    return {name: value for name, value in base.items() if name in INHERITED or name.startswith(prefixes)}


def _spec(order: AttemptOrder) -> CommandSpec:
    if order.job.command is None:
        raise InternalError(f"job {order.job.name!r} is not a command")
    return order.job.command


def execute(order: AttemptOrder, home: Path, work: Path) -> NoReturn:
    """Prepares the folder of the command and executes the command. Raises InputError, StorageError,
    OSError."""
    check_order(order, order.root, print)
    program = make_ready(order, home, work, os.environ)
    if _spec(order).container is not None:
        program = in_container(order, program, work)
    os.chdir(program.cwd)
    try:
        os.execvpe(program.argv[0], program.argv, os.environ)
    except OSError as error:
        raise not_executed(program.argv[0], error, os.environ) from error
    except ValueError as error:
        raise InputError(f"the command cannot be executed: {error}") from error


def in_container(order: AttemptOrder, program: Program, work: Path) -> Program:
    """Pulls the image of the command, and returns the program that runs the command in a container. Raises
    InputError, UnavailableError."""
    spec = _spec(order)
    receive_values()
    login = fill_in(spec.registry_login, "command.registry_login") if spec.registry_login else ""
    named = ("GRIDMILL_OUTPUT", "GRIDMILL_CHECKPOINTS")
    job = ContainerJob(
        attempt_id=order.attempt_id,
        folder=work.parent,
        image=str(spec.container),
        readable=tuple(input_folders(order, work).values()),
        writable=(work, *(Path(os.environ[name]) for name in named if name in os.environ)),
        cwd=program.cwd,
        given=order.given,
        gpus=tuple(name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name),
        login=login,
    )
    return Program(argv=container_argv(job, program.argv, os.environ), cwd=program.cwd)


def login_secrets(order: AttemptOrder, secrets: Mapping[str, str]) -> dict[str, str]:
    """Returns the secret with the login at the registry of a command's image, which only the process that
    pulls the image gets."""
    spec = order.job.command
    names = names_in((spec.registry_login,)) if spec is not None and spec.registry_login else ()
    return {name: secrets[name] for name in names if name in secrets}


def make_ready(order: AttemptOrder, home: Path, work: Path, environment: Mapping[str, str]) -> Program:
    """Makes all files and folders that the command needs. Raises InputError, StorageError, OSError."""
    program = prepare(order, home, work)
    make_folder(environment["GRIDMILL_OUTPUT"])
    hand_over(order, work)
    if order.checkpoint_uri:
        make_folder(environment["GRIDMILL_CHECKPOINTS"])
    return program


def make_folder(path: str | Path) -> None:
    """Makes the folder if the pod has not made it before. Raises OSError."""
    if not os.path.isdir(path):
        os.makedirs(path, exist_ok=True)


def not_executed(name: str, error: OSError, environment: Mapping[str, str]) -> InputError:
    """Returns the error that explains why the program of a command could not be executed."""
    if isinstance(error, FileNotFoundError) or _is_nowhere(name, environment):
        return InputError(f"there is no program {name!r}", hint=_PATH_HINT)
    return InputError(f"{name!r} cannot be executed: {error.strerror}")


def programs(name: str, environment: Mapping[str, str]) -> list[str]:
    """Returns the files that may be the program of a command, in the order in which they are tried. Relative
    paths are relative to the folder of the command."""
    if os.sep in name:
        return [name]
    found = [os.path.join(folder, name) for folder in os.get_exec_path(environment)]
    return [path for path in found if not os.path.isabs(path) or os.path.exists(path)]


def _is_nowhere(name: str, environment: Mapping[str, str]) -> bool:
    """Returns whether no readable folder in PATH contains the program. If a folder in PATH is not readable,
    the error is "permission denied"."""
    return os.sep not in name and not any(
        os.path.exists(os.path.join(folder, name)) for folder in os.get_exec_path(environment)
    )


_PATH_HINT = "A list is executed without a shell; for shell syntax write the command as one string."


def prepare(order: AttemptOrder, home: Path, work: Path) -> Program:
    """Makes all files and folders that the command needs. Raises InputError, StorageError."""
    spec = _spec(order)
    spec.check()
    if not isinstance(spec.run, str) and not spec.run:
        raise InputError(f"command {order.job.name!r} has nothing to run")
    code = unpack_code(order, home, work)
    if spec.environment:
        requirements = read_requirements(spec.environment, code, order.bundle or "")
        enter_environment(ready_environment(home, requirements))
    return Program(argv=spec.argv, cwd=_folder(spec, code))


def unpack_code(order: AttemptOrder, home: Path, work: Path) -> Path:
    """Makes a private copy of the project's code in the folder `code` of the work folder, and returns its
    path. Raises InputError, StorageError."""
    code = work / CODE
    make_folder(work / "tmp")
    if order.bundle is None:
        make_folder(code)
    else:
        private_copy(unpacked(home, order.bundle, order.bundle_path), code)
    return code


def _folder(spec: CommandSpec, code: Path) -> Path:
    folder = code / (spec.folder or "")
    inside = spec.folder is None or PurePosixPath(spec.folder).is_absolute()
    if not inside and not folder.resolve().is_relative_to(code.resolve()):
        raise InputError(f"the command's folder {spec.folder!r} is outside the project")
    if not folder.is_dir():
        where = "on this machine" if folder == Path(spec.folder or "") else "in the project's code"
        raise InputError(f"the command's folder {spec.folder!r} does not exist {where}")
    return folder


def read_requirements(name: str, code: Path, bundle: str) -> Requirements:
    """Returns the requirements file with this name from the project's code. Raises InputError."""
    path = code / name
    if not path.resolve().is_relative_to(code.resolve()):
        raise InputError(f"the environment {name!r} is outside the project")
    try:
        return Requirements(file=path, text=path.read_text("utf-8"), bundle=bundle)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the environment {name!r} cannot be read: {error}",
            hint="`environment` names a requirements file of the project.",
        ) from error


def enter_environment(folder: Path) -> None:
    """Puts the programs of this Python environment first in PATH, so that `python` starts its
    interpreter."""
    os.environ["VIRTUAL_ENV"] = str(folder)
    os.environ["PATH"] = os.pathsep.join((str(folder / "bin"), os.environ["PATH"]))


def runs_foreign_code(order: AttemptOrder) -> bool:
    """Returns whether the job is a built-in job that runs the code of a project."""
    job = order.job
    return (job.runs_code and job.command is None) or (
        job.prediction is not None and job.prediction.trust and any(map(_needs_code, order.inputs))
    )


def _needs_code(entry: Input) -> bool:
    return bool(entry.artifact.output.details.get("predict"))


def foreign_environment(
    order: AttemptOrder, *, base: Mapping[str, str], work: Path, pod_folder: Path
) -> dict[str, str]:
    """Returns the environment variables for the process of the job: the variables that a command gets, and
    the variables that Gridmill itself needs."""
    beginnings = ("GRIDMILL_", "PYTHON", *(RUNTIME_VARIABLES if order.job.container else ()))
    ours = {name: value for name, value in base.items() if name.startswith(beginnings)}
    return {
        **inherited(base, pip=True),
        **ours,
        "TMPDIR": str(work),
        "PYTHONUNBUFFERED": "1",
        **devices(order, base),
        **rank_variables(order, base),
        **markers(order, pod_folder),
    }


def prepare_foreign(order: AttemptOrder, home: Path, work: Path) -> None:
    """Makes all files and folders that the code of the job needs, and sets the environment of this process.
    Raises InputError, StorageError."""
    if not runs_foreign_code(order):
        return
    pythons: dict[str, str] = {}
    if order.job.kind == JobKind.TRAINING and order.job.training is not None:
        code = unpack_code(order, home, work)
        if order.job.training.environment:
            wanted = read_requirements(order.job.training.environment, code, order.bundle or "")
            pythons[""] = _python(home, wanted)
    for entry in order.inputs:
        if _needs_code(entry) and (text := str(entry.artifact.output.details.get("environment") or "")):
            pythons[entry.name] = _python(home, requirements_of(entry, text, order, work))
    os.environ["GRIDMILL_PYTHONS"] = json.dumps(pythons)


def requirements_of(entry: Input, text: str, order: AttemptOrder, work: Path) -> Requirements:
    """Returns the requirements files with which a model was trained. The requirements files are in the copy
    of the model's code, because they may refer to other files there."""
    output = entry.artifact.output
    name, bundle = output.details.get("requirements"), output.details.get("bundle")
    locked = tuple(output.details.get("locked") or ())
    kept = below(order.root, output.uri) / CODE / str(name)
    if name and kept.is_file():
        return Requirements(file=kept, text=text, bundle=str(bundle or ""), locked=locked)
    file = work / f"requirements-{entry.name.replace('/', '.')}.txt"
    file.write_text(text)
    return Requirements(file=file, text=text, bundle="", locked=locked)


def _python(home: Path, requirements: Requirements) -> str:
    return str(ready_environment(home, requirements) / "bin" / "python")
