"""Unix sockets: with paths of any length, deletion of unused socket files, and a check of the user at the
other end."""

import contextlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from gridmill.errors import HomeInUseError, StorageError, UnavailableError

_LONGEST_ADDRESS = 100  # below the 108 bytes that sun_path holds on Linux, and the 104 bytes on macOS
_BACKLOG = 512


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yields `path`, or a short symbolic link to it if the path is too long for the kernel."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    link = f"/tmp/.gridmill-{os.urandom(8).hex()}"
    # os.symlink fails if the link exists, so no other user can have created it before
    os.symlink(path.parent.absolute(), link)
    try:
        yield f"{link}/{path.name}"
    finally:
        os.unlink(link)


def peer_uid(sock: socket.socket) -> int:
    """Returns the user id of the process at the other end, as the kernel reports it."""
    if sys.platform == "linux":
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[1])
    credentials = sock.getsockopt(0, 1, 76)  # SOL_LOCAL, LOCAL_PEERCRED: struct xucred of macOS and BSD
    return int(struct.unpack_from("2I", credentials)[1])


def is_trusted(uid: int) -> bool:
    """Returns whether the user is the user of this process or root."""
    return uid in (os.geteuid(), 0)


def dial(path: Path) -> socket.socket:
    """Returns a connected, non-blocking socket. Raises OSError if no process of a trusted user answers."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        with _address(path) as address:
            sock.connect(address)
        if not is_trusted(peer_uid(sock)):
            raise PermissionError(f"{path} belongs to user {peer_uid(sock)}")
    except OSError:
        sock.close()
        raise
    return sock


def listen(path: Path) -> socket.socket:
    """Returns a listening socket at `path` with mode 0600. If a killed process left a socket file at the
    path, the file is replaced.

    Missing folders are created so that only this user has access. Raises HomeInUseError if a process answers
    at the path, and StorageError if the path cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_free(path)
        return _bind(path)
    except OSError as error:
        raise StorageError(
            f"a socket cannot be created here: {error.strerror or error}", place=str(path)
        ) from error


def _check_free(path: Path) -> None:
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise StorageError("a file that is not a socket has this path", place=str(path))
    try:
        dial(path).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return
    except BlockingIOError:
        pass  # not stale: a process listens and is busy
    raise HomeInUseError("a control node runs in this home", place=str(path))


def _bind(path: Path) -> socket.socket:
    """Binds the socket to a temporary path, restricts the access to the file at this path, and then renames
    the file to `path`. Because of the renaming, the file at `path` is always a socket that can be used."""
    temporary = path.with_name(f".{os.urandom(4).hex()}")
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        with _address(temporary) as address:
            sock.bind(address)
        os.chmod(temporary, 0o600)
        sock.listen(_BACKLOG)
        os.rename(temporary, path)
    except OSError:
        sock.close()
        temporary.unlink(missing_ok=True)
        raise
    return sock


def accept(listener: socket.socket, user: int | None = None) -> socket.socket:
    """Returns the next connection as a non-blocking socket. Raises BlockingIOError if no connection waits.
    Raises UnavailableError if the user of the client is neither trusted nor equal to `user`."""
    sock, _ = listener.accept()
    sock.setblocking(False)
    uid = peer_uid(sock)
    if is_trusted(uid) or uid == user:
        return sock
    sock.close()
    raise UnavailableError(f"user {uid} may not connect")
