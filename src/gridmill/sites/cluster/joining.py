"""Becoming a source of a farm: once, with the one-time secret of its join line."""

import hashlib
import re
import socket
from dataclasses import replace
from pathlib import Path

from gridmill import __version__
from gridmill.errors import InputError, StorageError
from gridmill.model.address import read_address
from gridmill.model.farm import JoinRequest
from gridmill.sites.cluster.credentials import Credentials, Keeping, keeping
from gridmill.sites.cluster.farm import Farm

PORT = 8700
_HOST = 16  # farms take 23 characters
_FORM = re.compile(r"(?P<fingerprint>[0-9a-f]{64}):(?P<secret>\S{16,200})")


def become_source(home: Path, name: str, controller: str, line: str) -> None:
    """Join the farm at HOST:PORT (or ssh://USER@HOST) by FINGERPRINT:SECRET; what it gives is kept in `home`.

    Without a line a membership that is there is kept, at that address. Raises InputError, also for another
    certificate than that of the line, UnavailableError, StorageError.
    """
    at = read_controller(controller)
    kept = keeping(home, name)
    try:
        if line:
            _join(kept, source_name(home), at, line)
        else:
            known = kept.read()
            moved = replace(at, fingerprint=known.fingerprint, token=known.token)
            kept.write(moved, kept.certificate.read_text())
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", place=str(kept.folder)) from error


def _join(kept: Keeping, source: str, at: Credentials, line: str) -> None:
    fingerprint, secret = read_line(line)
    draft = Keeping(kept.folder.with_name(f".{kept.folder.name}.draft"))
    farm = Farm(replace(at, fingerprint=fingerprint))
    try:
        asked = JoinRequest(source=source, secret=secret, request=draft.request(source), version=__version__)
        joined = farm.join(asked)
    finally:
        farm.close()
    kept.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft.key.rename(kept.key)
    kept.write(replace(at, fingerprint=fingerprint, token=joined.token), joined.certificate)
    draft.folder.rmdir()


def read_controller(text: str) -> Credentials:
    """Where a farm is: HOST[:PORT], or ssh://[USER@]HOST[:SSHPORT] with the farm's own address behind `/`
    (default: 127.0.0.1:8700 there). Raises InputError."""
    if not text.startswith("ssh://"):
        host, port = read_address(text, port=PORT, place="--controller")
        return Credentials(host=host, port=port, fingerprint="", token="")
    destination, _, behind = text.removeprefix("ssh://").partition("/")
    host, port = read_address(behind or "127.0.0.1", port=PORT, place="--controller")
    if not destination or destination.startswith("-"):
        raise InputError(f"{text!r} names no host", place="--controller", hint="ssh://user@gpu1")
    return Credentials(host=host, port=port, fingerprint="", token="", ssh=f"ssh://{destination}")


def read_line(line: str) -> tuple[str, str]:
    """Fingerprint and secret of a join line. Raises InputError; the line is a secret, so it is not shown."""
    found = _FORM.fullmatch(line.strip())
    if found is None:
        raise InputError(
            "that is not FINGERPRINT:SECRET",
            place="--join",
            hint="`gridmill up --light` (or `gridmill farm invite`) on the farm says the whole line.",
        )
    return found["fingerprint"], found["secret"]


def source_name(home: Path) -> str:
    """How this home is called at farms: the machine, and a mark of the home, for it may have several."""
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower())
    mark = hashlib.sha256(str(home).encode()).hexdigest()[:6]
    return f"{host.lstrip('-0123456789')[:_HOST] or 'source'}-{mark}"
