"""Joins a farm as a tenant. A home joins a farm once, with the one-time secret in the join line."""

import hashlib
import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path

from gridmill.domain.farm_protocol import JoinRequest, JoinResponse
from gridmill.domain.naming import read_address
from gridmill.errors import AwayError, ConflictError, GridmillError, InputError, StorageError
from gridmill.private_files import write_private
from gridmill.sites.farm.client import FarmClient
from gridmill.sites.farm.credentials import CredentialFiles, FarmCredentials, keeping
from gridmill.version import __version__

PORT = 8700
_AWAY = (
    "Check that `gridmill up --light` runs at the farm and that this machine can reach the address and port. "
    "Run `gridmill doctor` at the farm."
)
_HOST = 16  # a hyphen and the mark of the home follow, and farms accept names of 23 characters
_FORM = re.compile(r"(?P<fingerprint>[0-9a-f]{64}):(?P<secret>\S{16,200})")


def become_tenant(home: Path, name: str, controller: str, line: str) -> None:
    """Joins the farm at HOST:PORT or ssh://USER@HOST with a join line FINGERPRINT:SECRET, and stores the
    credentials in `home`.

    If no join line is given, the home must be a tenant already, and only the address of the farm is
    replaced. Raises InputError, also if the farm's certificate differs from the fingerprint in the line.
    Raises ConflictError if the farm was joined under another name, UnavailableError, and StorageError.
    """
    at = read_controller(controller)
    kept = keeping(home, name)
    try:
        if line:
            _join(kept, tenant_name(home), at, line)
        else:
            existing = kept.read()
            moved = replace(at, fingerprint=existing.fingerprint, token=existing.token)
            kept.write(moved, kept.certificate.read_text())
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", place=str(kept.folder)) from error


def join_machine(
    folder: Path, home: Path, *, port: int, ssh: str, ssh_options: tuple[str, ...], line: str
) -> None:
    """Joins the farm on a machine that is reached through SSH, with a join line, and stores the credentials
    in `folder`. The farm listens on the loopback address of the machine. If the farm was joined before, the
    function does nothing. Raises InputError, UnavailableError, StorageError."""
    kept = CredentialFiles(folder=folder)
    if kept.is_kept:
        return
    at = FarmCredentials(
        host="127.0.0.1", port=port, fingerprint="", token="", ssh=ssh, ssh_options=ssh_options
    )
    try:
        _join(kept, tenant_name(home), at, line)
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", place=str(folder)) from error


def _join(kept: CredentialFiles, tenant: str, at: FarmCredentials, line: str) -> None:
    fingerprint, secret = read_line(line)
    _check_new(kept, fingerprint)
    draft = CredentialFiles(folder=kept.folder.with_name(f".{kept.folder.name}.draft"))
    farm = FarmClient(replace(at, fingerprint=fingerprint))
    try:
        join_request = JoinRequest(
            tenant=tenant, secret=secret, request=draft.request(tenant), version=__version__
        )
        joined = _join_response(farm, join_request)
    except GridmillError as error:
        may_have_heard = isinstance(error, AwayError) and farm.reached > float("-inf")
        # otherwise the farm may know the key of the draft, so that the request can be repeated with it
        if not may_have_heard:
            shutil.rmtree(draft.folder, ignore_errors=True)
        raise
    kept.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(kept.key, draft.key.read_bytes())
    kept.write(replace(at, fingerprint=fingerprint, token=joined.token), joined.certificate)
    shutil.rmtree(draft.folder, ignore_errors=True)


def _join_response(farm: FarmClient, request: JoinRequest) -> JoinResponse:
    """Sends the join request. If the farm answers with an error, the function changes the text of the error
    so that it helps the user who typed the join line."""
    try:
        return farm.join(request)
    except AwayError as error:
        raise AwayError(error.message, hint=error.hint or _AWAY) from error
    except (InputError, ConflictError) as error:
        raise type(error)(error.message, hint=error.hint, place="--join") from error
    finally:
        farm.close()


def _check_new(kept: CredentialFiles, fingerprint: str) -> None:
    """Refuses a second site for a farm that this home has already joined. Two sites for one farm would be
    one tenant at the farm and would receive each other's messages."""
    for folder in sorted(kept.folder.parent.glob("[!.]*")):
        other = CredentialFiles(folder=folder)
        if folder != kept.folder and other.is_kept and other.read().fingerprint == fingerprint:
            credentials = other.read()
            raise ConflictError(
                f"this home has already joined that farm as {folder.name}",
                hint=f"Add the farm as a site: `gridmill add cluster {folder.name} --controller "
                f"{credentials.host}:{credentials.port}`.",
            )


def read_controller(text: str) -> FarmCredentials:
    """Parses the address of a farm. The address is HOST[:PORT], or ssh://[USER@]HOST[:SSHPORT] with the
    farm's own address after `/` (default: 127.0.0.1:8700 at the farm). Raises InputError."""
    if not text.startswith("ssh://"):
        host, port = read_address(text, port=PORT, place="--controller")
        return FarmCredentials(host=host, port=port, fingerprint="", token="")
    destination, _, behind = text.removeprefix("ssh://").partition("/")
    host, port = read_address(behind or "127.0.0.1", port=PORT, place="--controller")
    if not destination or destination.startswith("-"):
        raise InputError(f"{text!r} has no host", place="--controller", hint="ssh://user@gpu1")
    return FarmCredentials(host=host, port=port, fingerprint="", token="", ssh=f"ssh://{destination}")


def read_line(line: str) -> tuple[str, str]:
    """Returns the fingerprint and the secret of a join line, or of a command that ends with a join line.
    Raises InputError. The join line is a secret, so the error message does not show it."""
    words = line.split() or [""]
    match = _FORM.fullmatch(words[-1])
    if match is None:
        raise InputError(
            f"the value is not FINGERPRINT:SECRET{_why_invalid(words[-1])}",
            place="--join",
            hint="Run `gridmill farm invite` on the farm and copy the whole line that it prints.",
        )
    return match["fingerprint"], match["secret"]


def _why_invalid(word: str) -> str:
    """Describes the error in a join line without showing the content of the line."""
    fingerprint, colon, _ = word.partition(":")
    if not colon:
        return ""
    if not re.fullmatch("[0-9a-f]{64}", fingerprint):
        return f": a fingerprint has 64 characters, 0 to 9 and a to f; this one has {len(fingerprint)}"
    return ": its secret is not complete"


def tenant_name(home: Path) -> str:
    """Returns the name of this home at farms. The name consists of the machine's name and a hash of the
    home's path, because a machine may have several homes."""
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower())
    mark = hashlib.sha256(str(home).encode()).hexdigest()[:6]
    return f"{host.lstrip('-0123456789')[:_HOST] or 'tenant'}-{mark}"
