"""The checks of `gridmill doctor`: they test this machine, its farm, and the farms that its home has joined.

For each joined farm, the connection, the version, the clock and the capacity are checked. On the machine of
a farm, the GPUs and their driver, the address, and the tenants are checked.
"""

import hashlib
import hmac
import os
import platform
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path

from gridmill.bootstrap.home_lock import open_store
from gridmill.disk_space import space_of
from gridmill.domain.amounts import GIB, Amounts, show_bytes, show_count
from gridmill.domain.farm_protocol import FarmStatus, check_versions
from gridmill.domain.naming import is_loopback, read_address
from gridmill.errors import GridmillError, HungNodeError, InputError, StorageError, explained
from gridmill.farm.confinement import look_at_isolation, why_not_isolated
from gridmill.farm.listening import listening
from gridmill.farm.store import open_records
from gridmill.farm.tenant import Tenant
from gridmill.farm.unix_users import why_one_user
from gridmill.jobs.containers import check_gpus, check_runtime, find_runtime
from gridmill.pod.cgroups import PodGroups
from gridmill.ports.host import Check, FarmAddress
from gridmill.sdk.discovery import open_home
from gridmill.settings import Settings, is_farm
from gridmill.sites.farm.credentials import CredentialFiles, keeping
from gridmill.sites.machine import free_bytes, gpus
from gridmill.sites.machine_memory import homes_text, overbooked_text, pod_claims
from gridmill.storage.filesystem import check_root, find_mount
from gridmill.storage.recovery import marks_of
from gridmill.version import __version__

_DAY_SECONDS = 86_400.0
_APART_SECONDS = 60.0
_SOON_SECONDS = 30 * _DAY_SECONDS


def look_at_clusters(settings: Settings) -> Iterator[Check]:
    """Yields the result of one check for each farm that this home has joined."""
    folder = settings.home / "clusters"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        if not name.startswith("."):
            yield f"farm {name}", *_looked(settings.home, name)


def _looked(home: Path, name: str) -> tuple[bool, str]:
    if find_spec("cryptography") is None:
        return False, "cryptography is missing: pip install 'gridmill[tls]'"
    kept = keeping(home, name)
    try:
        renew = "run `gridmill farm rotate` on the farm, then paste the line that it prints here"
        problem = look_at_dates(kept.certificate, time.time(), renew)
        return (False, problem) if problem else _farm_answer(kept)
    except GridmillError as error:
        return False, ". ".join(filter(None, (error.message, error.hint)))
    except OSError as error:
        return (
            False,
            f"{kept.folder} cannot be read: {error.strerror}. Join the farm again: `gridmill farm invite` on "
            "the farm prints a line",
        )


def look_at_dates(certificate: Path, now: float, renew: str) -> str:
    """Returns the reason why a certificate is not valid now, or an empty text if it is valid. Raises
    InputError."""
    from gridmill.sites.farm import certificate_request as signing

    try:
        begins, ends = signing.holds(certificate.read_bytes())
    except OSError as error:
        return f"{certificate} cannot be read: {error.strerror}"
    if now < begins:
        return (
            f"the certificate is valid from {_day(begins)}, but the date here is {_day(now)}: set the clock"
        )
    if now > ends - _SOON_SECONDS:
        return f"the certificate is valid until {_day(ends)} (the date here is {_day(now)}): {renew}"
    return ""


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def _farm_answer(kept: CredentialFiles) -> tuple[bool, str]:
    from gridmill.sites.farm.client import member

    farm = member(kept)
    try:
        status: FarmStatus = farm.status()
        apart_seconds = farm.clock() - time.time()
    finally:
        farm.close()
    summary = _farm_summary(status)
    if abs(apart_seconds) > _APART_SECONDS:
        later = "ahead" if apart_seconds > 0 else "behind"
        return False, f"{summary}; its clock is {abs(apart_seconds):.0f} s {later}: set one of the two clocks"
    # lost results only cause warnings, because the farm itself is healthy
    return True, "; ".join((summary, *status.warnings))


def _farm_summary(status: FarmStatus) -> str:
    gpus = sum(node.capacity.gpus for node in status.nodes)
    staged = f"{show_bytes(status.staged_bytes)} of {show_bytes(status.quota_bytes)} of transferred data"
    nodes = f"{show_count(len(status.nodes), 'node')}, {show_count(gpus, 'GPU')}"
    return f"up, version {status.version}, {nodes}, {staged}"


_SECONDS = 5.0


def look_at_gpus(devices: Path = Path("/dev")) -> Check:
    """Checks the GPUs and their driver. The check fails if there are devices that the driver does not
    report."""
    device_count = len(list(devices.glob("nvidia[0-9]*")))
    gpu_list = gpus()
    if not gpu_list:
        missing = (
            f"{show_count(device_count, 'device')} in {devices}, but nvidia-smi lists none: is"
            " the driver loaded?"
        )
        return "gpus", not device_count, missing if device_count else "none"
    models = ", ".join(f"{one.model} {show_bytes(one.memory_bytes)}" for one in gpu_list)
    return "gpus", True, f"{models}; driver {_driver()}"


def look_at_containers(environment: Mapping[str, str], user: tuple[int, int]) -> Check:
    """Checks whether this user can run jobs in containers, with GPUs if the machine has some. A machine
    without a runtime is no problem, because only jobs with `container` need one."""
    try:
        runtime = find_runtime(environment)
    except InputError:
        return "containers", True, "none: jobs with `container` need podman or docker"
    name = Path(runtime).name
    try:
        runner = check_runtime(runtime, environment, user)
        check_gpus(runtime, ("0",) if gpus() else (), environment)
    except GridmillError as error:
        return "containers", False, explained(error)
    alone = "; the user has no range in /etc/subuid, so that only root in the container can be used"
    return "containers", True, f"{name}{alone if runner.is_alone else ''}"


def _driver() -> str:
    words = [
        shutil.which("nvidia-smi") or "nvidia-smi",
        "--query-gpu=driver_version",
        "--format=csv,noheader",
    ]
    try:
        stdout = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return next(iter(stdout.split()), "unknown")


def look_at_farm(settings: Settings) -> Iterator[Check]:
    """Yields the checks of the farm in this home, or none if the home has no farm."""
    try:
        address = listening(settings)
    except GridmillError:
        return
    yield "farm packages", *_packages()
    if find_spec("cryptography") is not None and (settings.home / "farm" / "control.crt").exists():
        yield "farm certificate", *_dates(settings.home / "farm" / "control.crt")
    yield "farm address", *_address(address)
    yield from _tenants(settings)


def _packages() -> tuple[bool, str]:
    if find_spec("cryptography") is None:
        return False, "cryptography is missing: pip install 'gridmill[tls]'"
    return True, "cryptography"


def _dates(certificate: Path) -> tuple[bool, str]:
    """Checks the dates of the farm's own certificate. If the clock was set back, the certificate is not
    valid yet, and all tenants refuse it."""
    try:
        problem = look_at_dates(
            certificate,
            time.time(),
            "move the certificate and control.key to another folder; all tenants must join again",
        )
    except GridmillError as error:
        return False, f"{certificate} {error.message}"
    return not problem, problem or "holds"


def _address(address: FarmAddress) -> tuple[bool, str]:
    """Checks whether the farm answers at its address, or whether the address is free."""
    host, port = read_address(address.address)
    try:
        shown = _shown(host, port)
    except OSError:
        return _could_listen(host, port)
    if not hmac.compare_digest(shown, address.fingerprint):
        return False, f"{address.address}: another server answers, with the certificate {shown[:16]}…"
    return True, f"{address.address}, up{'; only this machine can dial it' if is_loopback(host) else ''}"


def _shown(host: str, port: int) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), _SECONDS) as plain, context.wrap_socket(plain) as secure:
        return hashlib.sha256(secure.getpeercert(binary_form=True) or b"").hexdigest()


def _could_listen(host: str, port: int) -> tuple[bool, str]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return False, f"{host}:{port} cannot be listened at: {error.strerror}"
    return True, f"{host}:{port} is free; the farm is not running"


def _tenants(settings: Settings) -> Iterator[Check]:
    why = why_one_user(settings.home / "farm" / "tenants")
    yield "farm users", True, f"one tenant only: {why}" if why else "one for each tenant"
    yield "farm isolation", True, _isolation(settings, why)
    records = open_records(settings)
    try:
        tenants = records.all(Tenant)
        damaged = records.check()
    finally:
        records.close()
    yield "farm records", not damaged, f"damaged: {', '.join(damaged)}" if damaged else "as they were written"
    unfit = [f"{tenant.name} had {tenant.version}" for tenant in tenants if not _fits(tenant.version)]
    summary = f"{show_count(len(tenants), 'tenant')} for version {__version__}"
    yield "farm tenants", not unfit, f"{summary}; {', '.join(unfit)}" if unfit else summary


def _isolation(settings: Settings, one_user: str) -> str:
    """Checks how the jobs of tenants are isolated from each other on this machine."""
    if one_user:
        return "none: jobs run as the farm's own user, and are limited like jobs of this machine's own grid"
    isolation = look_at_isolation(settings.cgroups)
    missing = why_not_isolated(isolation)
    held = [
        f"memory, processes and CPUs of each tenant and pod by control groups {isolation.groups}"
        if isolation.groups
        else "processes and open files by resource limits",
        "each pod has its own processes, shared memory, /tmp and /var/tmp" if isolation.namespaces else "",
        "all other files of the machine are read-only" if isolation.read_only else "",
    ]
    return "; ".join(filter(None, (f"one tenant only: {missing}" if missing else "", *held)))


def _fits(version: str) -> bool:
    try:
        check_versions(tenant=version, farm=__version__)
    except GridmillError:
        return False
    return True


_PACKAGES = {
    "sinks and datasets": ("pyarrow", "deltalake", "duckdb"),
    "training": ("numpy", "torch", "scikit-learn", "safetensors", "onnx"),
    "predictions": ("numpy", "onnxruntime"),
}
_MOST_RECORDS = 100


def checks_of(settings: Settings) -> Iterator[Check]:
    """Run all checks."""
    python_text = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.platform(terse=True)}"
    )
    yield "python", sys.version_info >= (3, 11), python_text
    yield _folder("home", settings.home, settings.disk_reserve_bytes)
    yield _folder("storage root", settings.root, settings.disk_reserve_bytes)
    yield from _store(settings)
    yield (
        "cpus",
        True,
        f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}",
    )
    yield look_at_memory(settings.home)
    yield look_at_gpus()
    yield look_at_containers(os.environ, (os.getuid(), os.getgid()))
    yield "cgroups", True, _cgroups() if settings.cgroups else "not used (GRIDMILL_CGROUPS=0)"
    yield "slurm", True, _slurm()
    for purpose, packages in _PACKAGES.items():
        yield _check_packages(purpose, packages, needed=not is_farm(settings.home))
    farm = list(look_at_farm(settings))
    yield from farm or [_control(settings)]
    yield from look_at_clusters(settings)


def _folder(what: str, path: Path, reserve_bytes: int | None) -> Check:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return what, False, f"{path}: {existing} cannot be written"
    space = space_of(what, existing, reserve_bytes)
    mount = find_mount(existing)
    kind = f" on {mount.type}" if mount is not None else ""
    if what == "home" and mount is not None and mount.shared:
        return what, False, f"{path}{kind}: the home must be on a local disk (the storage root need not)"
    try:
        check_root(existing)
    except StorageError as error:
        return what, False, f"{path}{kind}: {error.message}"
    has = f"{path}{kind}, {show_bytes(space.free_bytes)} free (reserve {show_bytes(space.reserve_bytes)})"
    if space.is_short:
        has += f": {space.shortage}; no attempt starts until there is room"
    return what, not space.is_short, has


def _store(settings: Settings) -> Iterator[Check]:
    """Checks whether all records in this home's record store are undamaged. The check names each damaged
    record."""
    try:
        if not settings.store and not (
            (settings.home / "store.db").exists() or marks_of(settings.root, settings.home)
        ):
            return
        store = open_store(settings)
        try:
            lost = store.check()
        finally:
            store.close()
    except GridmillError as error:
        yield "store", False, ". ".join(filter(None, (error.message, error.hint)))
        return
    untold = [one for one in lost if not one.told]
    hint = "; to restore records from the storage root: gridmill recover" if untold else ""
    found = f"{show_count(len(lost), 'damaged record')}{hint}" if lost else "no record is damaged"
    yield "store", not untold, found
    for one in lost[:_MOST_RECORDS]:
        yield "lost record", one.told, f"{one.name}: {one.problem}"
    if len(lost) > _MOST_RECORDS:
        yield "lost record", not untold, f"and {len(lost) - _MOST_RECORDS:,} more"


def look_at_memory(home: Path) -> Check:
    """Checks the memory of the machine: the total memory, the free memory, and the memory reserved by pods
    of other homes."""
    memory, free, claims = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        free_bytes(),
        pod_claims(),
    )
    others = homes_text(str(home), claims)
    shared = f"; pods of other homes may use {others}" if others else ""
    warning = overbooked_text(str(home), claims, free)
    told = f"{show_bytes(memory)}, {show_bytes(free)} free"
    return "memory", memory >= GIB, f"{told}; warning: {warning}" if warning else f"{told}{shared}"


def _cgroups() -> str:
    root = Path("/sys/fs/cgroup")
    version = "v2" if (root / "cgroup.controllers").exists() else "v1" if (root / "memory").exists() else ""
    if not version:
        return "none: Gridmill samples the memory of jobs to keep its limit"
    with tempfile.TemporaryDirectory(prefix="gridmill-doctor-") as made:
        groups = PodGroups.make(Path(made), Amounts(cpus=1.0, memory_bytes=GIB))
        attempt = groups.attempt("doctor", GIB) if groups is not None else None
        limits = attempt is not None and attempt.limits_memory
        if groups is not None:
            groups.remove()
    if limits:
        return f"{version}: limits the memory of this user's jobs (tried)"
    return f"{version}, but this user's jobs cannot be limited by it (tried): Gridmill samples their memory"


def _slurm() -> str:
    if shutil.which("sbatch") is None:
        return "sbatch is not on this machine; a site of kind slurm needs --address ssh://USER@HOST"
    try:
        completed = subprocess.run(
            ["sinfo", "--version"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "this machine has sbatch, but sinfo cannot be run"
    if completed.returncode != 0:
        error_lines = completed.stderr.strip().splitlines()
        why = error_lines[-1] if error_lines else "sinfo prints nothing"
        return f"this machine has sbatch, but no cluster: {why}"
    return f"{completed.stdout.strip()}: `gridmill add site NAME --kind slurm` uses it"


def _check_packages(purpose: str, packages: tuple[str, ...], *, needed: bool) -> Check:
    """Checks the installed packages. Without `needed`, missing packages are no problem, because a farm needs
    only the packages that the jobs of its tenants need."""
    installed, missing = [], []
    for package in packages:
        try:
            installed.append(f"{package} {version_of(package)}")
        except PackageNotFoundError:
            missing.append(package)
    package_text = ", ".join(installed) + (f"; missing: {', '.join(missing)}" if missing else "")
    return purpose, not missing or not needed, package_text


def _control(settings: Settings) -> Check:
    try:
        dialled = open_home(settings, embed=False)
        control = dialled.grid.control()
    except HungNodeError as error:
        return "control node", False, explained(error)
    except GridmillError:
        return "control node", True, "none is running (`gridmill run` starts one)"
    dialled.close()
    return "control node", True, f"up, version {control.version}, process {control.pid}"
