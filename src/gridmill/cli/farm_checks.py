"""What `doctor` looks at on a farm's machine: GPUs and their driver, the address, who may use it."""

import hashlib
import hmac
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from gridmill import __version__
from gridmill.cli.cluster_checks import look_at_dates
from gridmill.cli.farm import Listening, listening
from gridmill.errors import GridmillError
from gridmill.model.address import is_loopback, read_address
from gridmill.model.amounts import show_bytes, show_count
from gridmill.model.farm import check_versions
from gridmill.settings import Settings
from gridmill.sites.machine import gpus

Check = tuple[str, bool, str]
_SECONDS = 5.0


def look_at_gpus(devices: Path = Path("/dev")) -> Check:
    """The GPUs and the driver; amiss where there are devices that the driver does not tell of."""
    there = len(list(devices.glob("nvidia[0-9]*")))
    found = gpus()
    if not found:
        missing = (
            f"{show_count(there, 'device')} in {devices}, but nvidia-smi tells of none: is the driver loaded?"
        )
        return "gpus", not there, missing if there else "none"
    models = ", ".join(f"{one.model} {show_bytes(one.memory_bytes)}" for one in found)
    return "gpus", True, f"{models}; driver {_driver()}"


def _driver() -> str:
    words = [
        shutil.which("nvidia-smi") or "nvidia-smi",
        "--query-gpu=driver_version",
        "--format=csv,noheader",
    ]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return next(iter(told.split()), "unknown")


def look_at_farm(settings: Settings) -> Iterator[Check]:
    """Nothing where this home is no farm's."""
    try:
        known = listening(settings)
    except GridmillError:
        return
    yield "farm packages", *_packages()
    if find_spec("cryptography") is not None and (settings.home / "farm" / "control.crt").exists():
        yield "farm certificate", *_dates(settings.home / "farm" / "control.crt")
    yield "farm address", *_address(known)
    yield from _sources(settings)


def _packages() -> tuple[bool, str]:
    if find_spec("cryptography") is None:
        return False, "cryptography is missing: pip install 'gridmill[tls]'"
    return True, "cryptography"


def _dates(certificate: Path) -> tuple[bool, str]:
    """A clock that was set back refuses all sources: theirs are signed by it."""
    try:
        amiss = look_at_dates(certificate, time.time(), "move it and control.key away; all sources join anew")
    except GridmillError as error:
        return False, f"{certificate} {error.message}"
    return not amiss, amiss or "holds"


def _address(known: Listening) -> tuple[bool, str]:
    """Whether the farm answers there, or could."""
    host, port = read_address(known.address)
    try:
        shown = _shown(host, port)
    except OSError:
        return _could_listen(host, port)
    if not hmac.compare_digest(shown, known.fingerprint):
        return False, f"{known.address}: something else answers, with the certificate {shown[:16]}…"
    return True, f"{known.address}, up{'; only this machine can dial it' if is_loopback(host) else ''}"


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
    return True, f"{host}:{port} is free; the farm is not up"


def _sources(settings: Settings) -> Iterator[Check]:
    from gridmill.farm import acting
    from gridmill.farm.source import Source
    from gridmill.farm.start import open_records

    why = acting.why_one_user(settings.home / "farm" / "sources")
    yield "farm users", True, f"one source only: {why}" if why else "one for each source"
    records = open_records(settings)
    try:
        sources = records.all(Source)
    finally:
        records.close()
    unfit = [f"{one.name} had {one.version}" for one in sources if not _fits(one.version)]
    found = f"{show_count(len(sources), 'source')} for version {__version__}"
    yield "farm sources", not unfit, f"{found}; {', '.join(unfit)}" if unfit else found


def _fits(version: str) -> bool:
    try:
        check_versions(source=version, farm=__version__)
    except GridmillError:
        return False
    return True
