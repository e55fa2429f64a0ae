"""Runs the code of a job in a container, by podman or docker.

The process of the job is the client of the runtime, so that its output, its signals and its exit code are
those of the container. The container has the network, the process numbers and the shared memory of the
machine, and sees of its files only the folders of the attempt, under the same paths. The credentials of a
registry are only in a file in memory, while the image is pulled.

Sources: the manual pages podman-run, podman-pull and containers-auth.json, and the reference of `docker run`.
"""

import base64
import json
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.domain.amounts import Amounts
from gridmill.domain.container import LABEL, ContainerRecord, ContainerRuntime, is_pinned, registry_of
from gridmill.domain.frozen import dataclass
from gridmill.errors import GridmillError, InputError, UnavailableError
from gridmill.private_files import write_private

RECORD = "container.json"
"""The file in the folder of an attempt that names its container."""
EVENTS = "GRIDMILL_EVENTS_FD"
RUNTIME_VARIABLES = ("CONTAINERS_", "DOCKER_", "STORAGE_")
"""The beginnings of the names of variables that configure podman and docker."""
_HOST_ONLY = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "XDG_RUNTIME_DIR"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "GRIDMILL_PYTHONS", "GRIDMILL_SECRETS_FD"),
    }
)
"""Variables that are true only outside of the container."""
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_.-]+")
_MEMORY = Path("/dev/shm")
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_PULL_SECONDS = 3600.0
_QUICK_SECONDS = 60.0
_REMOVE_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerJob:
    """What a container needs: the id and the folder of its attempt, its image, the folders that it can read
    and those that it can write, its working folder, its memory and CPUs, the numbers of its GPUs, and the
    login at the registry (`USER:PASSWORD`; empty: none)."""

    attempt_id: str
    folder: Path
    image: str
    readable: tuple[Path, ...]
    writable: tuple[Path, ...]
    cwd: Path
    given: Amounts
    gpus: tuple[str, ...] = ()
    login: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeUser:
    """The user that runs containers: the numbers of the user and of its group, and the global options of the
    runtime. With `is_alone`, the user is the only one that its containers can have, because it has no range
    of further users in /etc/subuid. The tenants of a farm are such users. Then root in the container is this
    user on the machine, and podman does not limit the container."""

    uid: int
    gid: int
    is_alone: bool = False
    options: tuple[str, ...] = ()


def container_argv(
    job: ContainerJob,
    argv: Sequence[str],
    environment: Mapping[str, str],
    user: tuple[int, int] | None = None,
) -> tuple[str, ...]:
    """Pull the image, record the container, and return the command that runs `argv` in it. The command must
    run with `environment`, which contains the variables of the job. `user` are the numbers of the user and
    of the group (default: those of this process). Raises InputError, UnavailableError."""
    runtime = find_runtime(environment)
    check_gpus(runtime, job.gpus, environment)
    numbers = user if user is not None else (os.getuid(), os.getgid())
    runner = check_runtime(runtime, environment, numbers)
    client = _Client(runtime=runtime, environment=environment, options=runner.options)
    _pull(client, job)
    image_id, digest = _image(client, job.image)
    record = ContainerRecord(
        runtime=runtime, name=container_name(job.attempt_id), image=job.image, digest=digest
    )
    write_private(job.folder / RECORD, encode(record))
    print(f"container: {job.image} is {digest}", flush=True)
    return run_argv(record, job, image_id, argv, environment, runner)


def check_runtime(
    runtime: str, environment: Mapping[str, str], user: tuple[int, int], ranges: Path = Path("/etc/subuid")
) -> RuntimeUser:
    """Return how this user runs containers. Raises InputError if the runtime does not work for the user."""
    uid, gid = user
    client = _Client(runtime=runtime, environment=environment)
    is_podman = _is_podman(runtime)
    words = ("--format", "{{.Store.GraphDriverName}}") if is_podman else ("--format", "{{.ServerVersion}}")
    done = client.run("info", *words)
    answer = done.stdout.strip()
    if done.returncode or not answer:
        why = (done.stderr.strip().splitlines() or ["it printed no reason"])[-1]
        raise InputError(
            f"{Path(runtime).name} does not work for the user {uid} of this machine: {why}",
            hint=f"Try it as this user: {Path(runtime).name} info. Docker permits only root and its group.",
        )
    if not is_podman or uid == 0 or has_range(uid, ranges):
        return RuntimeUser(uid=uid, gid=gid)
    options = ("--log-level", "error", "--storage-opt", f"{answer}.ignore_chown_errors=true")
    return RuntimeUser(uid=uid, gid=gid, is_alone=True, options=options)


def has_range(uid: int, ranges: Path) -> bool:
    """Return whether a user has a range of further users (subuid(5)), so that podman can map all users of an
    image."""
    try:
        owners = {line.partition(":")[0] for line in ranges.read_text().splitlines()}
    except OSError:
        return False
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # the user of a tenant has no name
        name = ""
    return bool(owners & {str(uid), name or str(uid)})


def find_runtime(environment: Mapping[str, str]) -> str:
    """Return the path of podman or docker. Raises InputError if the machine has neither."""
    for name in ContainerRuntime:
        found = shutil.which(name, path=environment.get("PATH"))
        if found:
            return found
    raise InputError(
        "the job runs in a container, but this machine has neither podman nor docker",
        hint="Install one of them: apt-get install podman. Or use an image of machines that has one.",
    )


def check_gpus(
    runtime: str,
    gpus: Sequence[str],
    environment: Mapping[str, str],
    folders: Iterable[Path] = _CDI_FOLDERS,
) -> None:
    """Raise InputError if containers cannot use the GPUs of this machine."""
    if not gpus:
        return
    if _is_podman(runtime):
        has_toolkit = any(next(folder.glob("nvidia*"), None) for folder in folders if folder.is_dir())
        missing = "no description of its GPUs in /etc/cdi or /var/run/cdi"
        hint = "Run: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    else:
        has_toolkit = shutil.which("nvidia-ctk", path=environment.get("PATH")) is not None
        missing = "no NVIDIA Container Toolkit"
        hint = "Install it: apt-get install nvidia-container-toolkit && nvidia-ctk runtime configure"
    if not has_toolkit:
        raise InputError(f"the container needs GPUs, but this machine has {missing}", hint=hint)


def container_name(attempt_id: str) -> str:
    """Return the name of the container of an attempt. It differs for each attempt."""
    digest = sha256(attempt_id.encode()).hexdigest()[:8]
    return f"gridmill-{_NOT_IN_NAMES.sub('-', attempt_id)[:80]}-{digest}"


def run_argv(
    record: ContainerRecord,
    job: ContainerJob,
    image_id: str,
    argv: Sequence[str],
    environment: Mapping[str, str],
    user: RuntimeUser,
) -> tuple[str, ...]:
    """Return the command that runs `argv` in a container. The values of variables are not in the command:
    the runtime takes them from its own environment. Raises InputError for a path that the runtimes cannot
    mount."""
    is_podman = _is_podman(record.runtime)
    names = sorted(passed_variables(environment, has_events=is_podman))
    return (
        *(record.runtime, *user.options, "run", "--rm", "--name", record.name),
        *("--label", f"{LABEL}={job.attempt_id}", "--network", "host", "--pid", "host"),
        *_memory_arguments(user),
        *_user_arguments(user, is_podman=is_podman),
        *(("--preserve-fds", "1") if is_podman and EVENTS in names else ()),
        *(() if user.is_alone else _limits(job.given)),
        *_gpu_arguments(job.gpus, is_podman=is_podman),
        *(word for folder in job.writable for word in ("--mount", _mount(folder))),
        *(word for folder in job.readable for word in ("--mount", f"{_mount(folder)},readonly")),
        *("--workdir", str(job.cwd)),
        *("--env", f"HOME={environment.get('TMPDIR', '/tmp')}"),
        *(("--env", f"CUDA_VISIBLE_DEVICES={_numbers(job.gpus)}") if job.gpus else ()),
        *(word for name in names for word in ("--env", name)),
        *("--entrypoint", argv[0], image_id, *argv[1:]),
    )


def _user_arguments(user: RuntimeUser, *, is_podman: bool) -> tuple[str, ...]:
    numbers = "0:0" if user.is_alone else f"{user.uid}:{user.gid}"
    keep = ("--userns", "keep-id") if is_podman and user.uid and not user.is_alone else ()
    return ("--user", numbers, "--security-opt", "no-new-privileges", *keep)


def _memory_arguments(user: RuntimeUser, queues: Path = Path("/dev/mqueue")) -> tuple[str, ...]:
    """Return the arguments for the shared memory of the machine. A user without a range of further users
    cannot use `--ipc host` on a machine without message queues."""
    if not user.is_alone or queues.exists():
        return ("--ipc", "host")
    return ("--mount", f"type=bind,source={_MEMORY},destination={_MEMORY}")


def passed_variables(environment: Mapping[str, str], *, has_events: bool) -> set[str]:
    """Return the names of the variables that the container gets."""
    hidden = {*_HOST_ONLY, "CUDA_VISIBLE_DEVICES", *(() if has_events else (EVENTS,))}
    return {name for name in environment if name not in hidden and not name.startswith(RUNTIME_VARIABLES)}


def _limits(given: Amounts) -> tuple[str, ...]:
    memory = ("--memory", f"{given.memory_bytes}b") if given.memory_bytes else ()
    return (*memory, *(("--cpus", f"{given.cpus:g}") if given.cpus else ()))


def _gpu_arguments(gpus: Sequence[str], *, is_podman: bool) -> tuple[str, ...]:
    if not gpus:
        return ()
    if is_podman:
        return tuple(word for gpu in gpus for word in ("--device", f"nvidia.com/gpu={gpu}"))
    return ("--gpus", f'"device={",".join(gpus)}"')


def _numbers(gpus: Sequence[str]) -> str:
    """Return the numbers that the GPUs have in the container, which sees only these."""
    return ",".join(str(number) for number in range(len(gpus)))


def _mount(folder: Path) -> str:
    if any(letter in str(folder) for letter in ',"\n'):
        raise InputError(
            f"the folder {str(folder)!r} cannot be mounted in a container, because its name has a comma or "
            "a quotation mark"
        )
    return f"type=bind,source={folder},destination={folder}"


def _is_podman(runtime: str) -> bool:
    return Path(runtime).name == ContainerRuntime.PODMAN


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    """A runtime, the environment in which its commands run, and options of all its commands."""

    runtime: str
    environment: Mapping[str, str]
    options: tuple[str, ...] = ()

    def run(
        self, *words: str, options: Sequence[str] = (), seconds: float = _QUICK_SECONDS
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command of the runtime. Raises UnavailableError if it takes too long."""
        known = {
            name: text
            for name, text in self.environment.items()
            if name in _HOST_ONLY or name.startswith((*RUNTIME_VARIABLES, "http", "no_proxy", "HTTP", "NO_P"))
        }
        try:
            return subprocess.run(
                [self.runtime, *self.options, *options, *words],
                env=known,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(
                f"{Path(self.runtime).name} {words[0]} did not end in {seconds:.0f} s"
            ) from error


def _pull(client: _Client, job: ContainerJob) -> None:
    is_here = client.run("image", "inspect", job.image).returncode == 0
    if is_here and (is_pinned(job.image) or registry_of(job.image) == "localhost"):
        return
    print(f"container: pulls {job.image}", flush=True)
    done = _pulled(client, job)
    if done.returncode == 0:
        return
    reason = (done.stderr.strip().splitlines() or ["no reason is known"])[-1]
    if not is_here:
        raise InputError(
            f"the image {job.image} could not be pulled: {reason}",
            hint="For a private registry, write `registry_login: {secret: NAME}`; the value of the secret "
            "is USER:PASSWORD.",
        )
    print(f"container: uses the image of this machine, because the pull failed: {reason}", flush=True)


def _pulled(client: _Client, job: ContainerJob) -> "subprocess.CompletedProcess[str]":
    if not job.login:
        return client.run("pull", "--quiet", job.image, seconds=_PULL_SECONDS)
    folder = login_folder(job.attempt_id)
    try:
        folder.mkdir(mode=0o700)
        code = base64.b64encode(job.login.encode()).decode()
        auths = {"auths": {registry_of(job.image): {"auth": code}}}
        write_private(folder / "config.json", json.dumps(auths).encode())
        if _is_podman(client.runtime):
            words: tuple[str, ...] = ("pull", "--quiet", "--authfile", str(folder / "config.json"), job.image)
            return client.run(*words, seconds=_PULL_SECONDS)
        options = ("--config", str(folder))
        return client.run("pull", "--quiet", job.image, options=options, seconds=_PULL_SECONDS)
    except OSError as error:
        raise UnavailableError(f"the login file cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def login_folder(attempt_id: str) -> Path:
    """Return the folder in memory in which the login file of an attempt is while its image is pulled."""
    return _MEMORY / f"{container_name(attempt_id)}-login"


def _image(client: _Client, image: str) -> tuple[str, str]:
    """Return the id of an image of this machine, and its digest. An image that was never in a registry has
    the digest of its configuration, which is its id."""
    done = client.run("image", "inspect", image)
    try:
        found = json.loads(done.stdout)[0]
        image_id = str(found["Id"])
        digests = [str(one).rpartition("@")[2] for one in found.get("RepoDigests") or ()]
    except (ValueError, LookupError, TypeError) as error:
        raise UnavailableError(f"the image {image} cannot be read: {done.stderr.strip()}") from error
    whole = image_id if image_id.startswith("sha256:") else f"sha256:{image_id}"
    given = image.rpartition("@")[2] if is_pinned(image) else ""
    return image_id, given or next(iter(digests), whole)


def read_record(folder: Path) -> ContainerRecord | None:
    """Return the record of the container of an attempt, whose folder this is; None if it had none."""
    try:
        return decode((folder / RECORD).read_bytes(), ContainerRecord)
    except (OSError, GridmillError):
        return None


def remove_container(folder: Path, attempt_id: str, run: Callable[..., object] = subprocess.run) -> None:
    """End the container of an attempt, and remove what is left of it and of its login. The call can be
    repeated, and does nothing for an attempt without a container."""
    record = read_record(folder)
    if record is not None:
        with suppress(OSError, subprocess.TimeoutExpired):
            run(
                [record.runtime, "rm", "--force", "--volumes", record.name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_REMOVE_SECONDS,
                check=False,
            )
    if login_folder(attempt_id).exists():
        shutil.rmtree(login_folder(attempt_id), ignore_errors=True)
