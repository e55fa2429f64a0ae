"""The spool link sends bytes through numbered files, for machines that share a folder but no network.

The file `epoch` exists only while a control node is running. The link uses these files::

    FOLDER/epoch                         the name of the epoch of the running control node
    FOLDER/<epoch>/<connection>/out/     the files that the pod sends: 000000000001, 000000000002, ...
    FOLDER/<epoch>/<connection>/in/      the files that the control node sends

A file is written under another name and then renamed, so that it appears only when it is complete. The
reader deletes each file after reading it. An empty file ends the stream. Each connection has its own folder,
so a file of an earlier connection cannot be mistaken for a file of the present connection. The first file of
the control node is its answer to the pod that opened the connection. Each start of a control node begins a
new epoch and deletes the folders of earlier epochs. When a pod notices the end of its epoch, it connects
again and sends Hello.
"""

import contextlib
import os
import shutil
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from gridmill.errors import StorageError
from gridmill.ports.link import PodLink
from gridmill.transport.channel import Monotonic, encoded_heartbeat, for_spool
from gridmill.transport.pod_side import StreamLink, Waiting
from gridmill.transport.socket import Wire

_QUICKEST_SECONDS, _SLOWEST_SECONDS, _SLOWING = 0.005, 0.5, 1.25
_COUNT_FROM_BYTES = 2**20  # saves listing the folder as long as few bytes are unread
_ANSWER_SECONDS = 90.0


class SpoolWire:
    """A connection between two processes through two folders, one for each direction. With `owns`, the
    folder of the connection is deleted when the wire is closed. Only the control node sets `owns`."""

    def __init__(self, connection: Path, *, read_from: str, write_to: str, owns: bool) -> None:
        self.connection = connection
        self._source, self._target = connection / read_from, connection / write_to
        self._owns = owns
        self._next_read = self._next_write = 1
        self._names: Iterator[str] = iter(())
        """The names of files that were found in the folder and not read yet."""
        self._written: deque[tuple[int, int]] = deque()
        """The number and the size of each file that may be unread."""
        self._written_bytes = 0
        self._ended = False

    def fileno(self) -> int | None:
        """Returns None, because a selector cannot wait for a folder."""
        return None

    def read(self) -> bytes | None:
        """Returns the content of the next file."""
        try:
            return self._take()
        except FileNotFoundError:
            return None  # the wire has ended, because the folder of the connection was deleted
        except OSError:
            # not the end, because the error may be temporary; if it lasts, the channel becomes silent
            return b""

    def _take(self) -> bytes | None:
        name = next(self._names, None) or self._look()
        if name is None or int(name) != self._next_read:
            return b""
        path = self._source / name
        data = path.read_bytes()
        self._next_read += 1
        path.unlink(missing_ok=True)
        return data or None

    def _look(self) -> str | None:
        self._names = iter(sorted(name for name in os.listdir(self._source) if name.isdigit()))
        return next(self._names, None)

    def write(self, data: bytes) -> bool:
        """The next file."""
        try:
            write_whole(self._target, f"{self._next_write:012d}", data)
        except OSError:
            return False
        self._written.append((self._next_write, len(data)))
        self._written_bytes += len(data)
        self._next_write += 1
        return True

    def flush(self) -> bool:
        """Returns True, because nothing is ever queued."""
        return True

    def wants_write(self) -> bool:
        """Returns False, because nothing is ever queued."""
        return False

    def pending_bytes(self) -> int:
        """Returns the number of bytes in the files that the other end has not read and deleted yet."""
        if self._written_bytes > _COUNT_FROM_BYTES:
            self._forget_read()
        return self._written_bytes

    def _forget_read(self) -> None:
        with contextlib.suppress(OSError):
            left = [int(name) for name in os.listdir(self._target) if name.isdigit()]
            oldest = min(left, default=self._next_write)
            while self._written and self._written[0][0] < oldest:
                self._written_bytes -= self._written.popleft()[1]

    def end(self) -> None:
        """Writes an empty file."""
        if not self._ended:
            self._ended = self.write(b"")

    def close(self) -> None:
        """Ends the stream. If this end owns the folder of the connection, the folder is deleted."""
        self.end()
        if self._owns:
            remove(self.connection)


def write_whole(folder: Path, name: str, data: bytes) -> None:
    """Writes a file that appears with all its content or not at all. Raises OSError."""
    temporary = folder / f".{name}"
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    os.rename(temporary, folder / name)


def remove(folder: Path) -> None:
    """Renames a folder so that it is hidden, and then deletes it, because another process may still be
    writing into it."""
    gone = folder.with_name(f".gone-{folder.name}")
    with contextlib.suppress(OSError):
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


# --- the pod's end


def make(folder: str, monotonic: Monotonic = time.monotonic) -> PodLink:
    """Makes the link to the control node that watches `folder`."""

    def dial() -> Generator[Waiting, None, Wire]:
        return _dial(Path(folder))

    return StreamLink(dial, new_liveness=for_spool, attempt_seconds=_ANSWER_SECONDS, monotonic=monotonic)


def _dial(folder: Path) -> Generator[Waiting, None, Wire]:
    """Makes the folder of a connection and waits for the first file of the control node. Raises OSError."""
    epoch = (folder / "epoch").read_text()
    name = os.urandom(8).hex()
    temporary, connection = folder / epoch / f".{name}", folder / epoch / name
    for part in (temporary, temporary / "in", temporary / "out"):
        part.mkdir(mode=0o700)  # without parents, because an epoch that has ended must not be created again
    os.rename(temporary, connection)
    try:
        while not os.listdir(connection / "in"):
            yield None
    except BaseException:  # also for GeneratorExit: an abandoned attempt leaves no connection behind
        remove(connection)
        raise
    return SpoolWire(connection, read_from="in", write_to="out", owns=False)


# --- the control node's end


class SpoolFolder:
    """A source of new wires that must be polled. After an event, the folder is polled often. Without events,
    the folder is polled less often, but at least every half second."""

    def __init__(self, folder: Path, monotonic: Monotonic) -> None:
        """Starts a new epoch. Raises StorageError."""
        self._folder = folder
        self._monotonic = monotonic
        self._name = f"epoch-{os.urandom(8).hex()}"
        self._seen: set[str] = set()
        self._interval = _QUICKEST_SECONDS
        self._due = monotonic()
        try:
            self._begin()
        except OSError as error:
            raise StorageError(
                f"cannot be used as a spool: {error.strerror or error}", place=str(folder)
            ) from error

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._folder.stat().st_uid != os.geteuid():
            raise StorageError("belongs to another user", place=str(self._folder))
        os.chmod(self._folder, 0o700)  # private, because the files contain the orders of attempts
        (self._folder / self._name).mkdir(mode=0o700)
        write_whole(self._folder, "epoch", self._name.encode())
        for entry in os.listdir(self._folder):
            if entry.startswith("epoch-") and entry != self._name:
                remove(self._folder / entry)
            elif entry.startswith(".gone-"):
                shutil.rmtree(self._folder / entry, ignore_errors=True)

    def poll(self) -> Sequence[Wire]:
        """Returns the wires of new connections. Each new connection gets a first file as an answer."""
        self._interval = min(self._interval * _SLOWING, _SLOWEST_SECONDS)
        self._due = self._monotonic() + self._interval
        try:
            names = {name for name in os.listdir(self._folder / self._name) if not name.startswith(".")}
        except OSError:
            return ()  # a temporary error of the file system; if it lasts, all channels become silent
        new, self._seen = sorted(names - self._seen), names
        if new:
            self.stir()
        return [self._answer(name) for name in new]

    def _answer(self, name: str) -> Wire:
        connection = self._folder / self._name / name
        wire = SpoolWire(connection, read_from="out", write_to="in", owns=True)
        wire.write(encoded_heartbeat())
        return wire

    def stir(self) -> None:
        """Polls fast again."""
        self._interval = _QUICKEST_SECONDS
        self._due = min(self._due, self._monotonic() + _QUICKEST_SECONDS)

    def due_seconds(self) -> float:
        """Returns the number of seconds until the next poll."""
        return self._due - self._monotonic()

    def close(self) -> None:
        """Deletes the file with the epoch, so that pods find no control node. Messages that were sent can
        still be read until a control node starts again."""
        with contextlib.suppress(OSError):
            (self._folder / "epoch").unlink()
