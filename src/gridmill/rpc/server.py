"""The server side of calls in the control node: one thread for each connection, and one thread that accepts
connections."""

import contextlib
import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.domain.run import RunRequest
from gridmill.domain.views import RunView
from gridmill.errors import GridmillError, InputError, InternalError, UnavailableError, to_body
from gridmill.ports.grid import Grid
from gridmill.ports.usecases import use_case
from gridmill.process_memory import LARGE_BYTES, return_free_memory
from gridmill.rpc.client import GIVE_WAY
from gridmill.rpc.connected_clients import Attendance, AttendedClient
from gridmill.rpc.protocol import (
    REQUEST_BYTES,
    Call,
    Hello,
    SessionMessage,
    Welcome,
    frame,
    peer_pid,
    readable,
    receive_frame,
    send_frame,
)
from gridmill.transport.unix import accept, listen

_LOG = logging.getLogger("gridmill.rpc")
_HELLO_SECONDS = 30.0
_WARNING_CHARACTERS = 2000


class CallServer:
    """A server that answers calls until `close` is called. `notices` returns texts about differences between
    the settings of a client and the settings of the control node."""

    def __init__(
        self,
        path: Path,
        grid: Grid,
        attendance: Attendance,
        *,
        give_way: Callable[[], None],
        release: Callable[[], None] = lambda: None,
        notices: Callable[[Hello], tuple[str, ...]] = lambda hello: (),
    ) -> None:
        """Listens at the socket of the home. Raises HomeInUseError, StorageError."""
        self._path, self._grid, self._attendance = path, grid, attendance
        self._give_way, self._release, self._notices = give_way, release, notices
        self._listener = listen(path)
        self._inode = path.stat().st_ino
        self._bell, self._ring = socket.socketpair()
        self._connections: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._let_in, name="calls", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accepts no more connections. Open connections end together with this process or with their
        client."""
        self._ring.close()
        self._thread.join()
        self._listener.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def cut(self) -> None:
        """Closes all connections, as they would be closed at the end of the process."""
        for sock in tuple(self._connections):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _let_in(self) -> None:
        with selectors.DefaultSelector() as selector, self._bell:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._bell in ready:
                    return
                with contextlib.suppress(OSError, UnavailableError):
                    sock = accept(self._listener)
                    sock.settimeout(_HELLO_SECONDS)
                    threading.Thread(target=self._serve, args=(sock,), name="call", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        self._connections.add(sock)
        with sock, contextlib.suppress(OSError):
            try:
                parts = receive_frame(sock, REQUEST_BYTES)
                if parts is not None:
                    self._greet(sock, decode(parts[0], Hello))
            # only logged, because a client of Gridmill looks for the next node when this control node ends
            except GridmillError as error:
                _LOG.info("a client is refused: %s", error)
        self._connections.discard(sock)

    def _greet(self, sock: socket.socket, hello: Hello) -> None:
        if hello.client:
            client = self._attendance.client(hello.client)
            send_frame(sock, [encode(Welcome(client=client.name, pid=os.getpid(), stays=False))])
            sock.settimeout(None)
            return self._answer_all(sock, client)
        pid = peer_pid(sock)
        with contextlib.ExitStack() as held:
            # must precede the welcome: after that, the client may end at any time
            ended = _process(pid)
            if ended is not None:
                held.callback(os.close, ended)
            return self._be_with(sock, hello, pid, ended)

    def _be_with(self, sock: socket.socket, hello: Hello, pid: int, ended: int | None) -> None:
        """Serves the first connection of a client: sends the message Welcome, then answers until the client
        disconnects."""
        client = self._attendance.enter(pid, hello.command, hello.environment)
        stays = partial(_send_message, sock, SessionMessage(stays=True))
        try:
            for run in hello.attends:
                self._attendance.attend(client, run)
            stay = self._attendance.stays
            welcome = Welcome(client=client.name, pid=os.getpid(), stays=stay, notices=self._notices(hello))
            send_frame(sock, [encode(welcome)])
            client.warn = lambda warning: _send_message(
                sock, SessionMessage(warning=warning[:_WARNING_CHARACTERS])
            )
            said_bye = self._accompany(sock, client, ended)
        except BaseException:
            self._attendance.leave(client)
            raise
        self._attendance.leave(client, stays if said_bye else lambda: None)
        with contextlib.suppress(OSError):
            # waits until the client closes its end, because this end closes only with the process
            while said_bye and sock.recv(1):
                continue

    def _accompany(self, sock: socket.socket, client: AttendedClient, ended: int | None) -> bool:
        """Waits for the end of the client, and returns whether the client sent `bye`. A client ends when its
        process ends, even if a forked child process still has the connection open."""
        sock.settimeout(_HELLO_SECONDS)
        while True:
            if sock.fileno() not in readable(sock, ended, milliseconds=None):
                return False
            word = _word(sock)
            if word is None or word.bye:
                return word is not None
            if word.attend:
                self._attendance.attend(client, word.attend)
            if word.release and self._attendance.is_alone(client):
                self._release()

    def _answer_all(self, sock: socket.socket, client: AttendedClient) -> None:
        """Answers the calls of a connection. An answer is a frame with an empty part and the result, or with
        the error."""
        while (parts := receive_frame(sock, REQUEST_BYTES)) is not None:
            size = sum(map(len, parts))
            try:
                with self._attendance.calling():
                    answer = [b"", encode(self._call(parts, client))]
            except GridmillError as error:
                answer = [encode(to_body(error))]
            except Exception as error:  # noqa: BLE001  a defect is the answer of one call
                _LOG.exception("a call failed")
                answer = [encode(to_body(InternalError(f"the control node failed: {type(error).__name__}")))]
            send_frame(sock, answer)
            if size >= LARGE_BYTES:
                del parts
                return_free_memory()

    def _call(self, parts: list[bytes], client: AttendedClient) -> object:
        """Returns the result of the call in the parts of a frame."""
        call = decode(parts[0], Call)
        if call.name == GIVE_WAY:
            return self._give_way()
        case = use_case(call.name)
        for name in call.arguments:
            if name not in case.takes:
                raise InputError(f"there is no argument {name!r}")
        given = {
            name: part if case.takes[name] is bytes else decode(part, case.takes[name])
            for name, part in zip(call.arguments, parts[1:], strict=True)
        }
        use = getattr(self._grid, call.name)
        if not case.starts_run:
            return use(**given)
        request = RunRequest(attended=call.attend, request=call.key)
        with self._attendance.starting(client, request, again=call.again) as start:
            view: RunView = self._grid.run(start.run_id) if start.run_id else use(**given)
            start.run_id = view.run.id
        return view


def _word(sock: socket.socket) -> SessionMessage | None:
    try:
        parts = receive_frame(sock, REQUEST_BYTES)
        return None if parts is None else decode(parts[0], SessionMessage)
    except (OSError, InputError):
        return None


def _send_message(sock: socket.socket, word: SessionMessage) -> None:
    """Sends a message to a client without waiting. If the client does not read, it misses the message, but
    the log of the control node contains all messages.
    """
    with contextlib.suppress(OSError):
        sock.send(frame([encode(word)]), socket.MSG_DONTWAIT)


def _process(pid: int) -> int | None:
    """Returns a file descriptor that can be read as soon as the process has ended, or None if the system has
    no such descriptors. Raises ProcessLookupError if the process has already ended."""
    try:
        return os.pidfd_open(pid) if pid else None
    except ProcessLookupError:
        raise
    # the system is not Linux, or its kernel is old, so that it has no pidfd_open()
    except (AttributeError, OSError):
        return None
