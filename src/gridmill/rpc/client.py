"""The client side of calls: with this module, a client calls the use cases of the control node that listens
at a Unix socket.

The open connection shows the control node that the client is alive. `differences` describes for the user how
the settings of the client differ from the settings of the control node.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.errors import HungNodeError, InputError, UnavailableError, UnreachedError, from_body
from gridmill.ports.grid import Grid
from gridmill.ports.usecases import use_case
from gridmill.rpc.liveness import PATIENCE_SECONDS, hung, owner_of, wait_for_answer
from gridmill.rpc.protocol import (
    Call,
    Hello,
    SessionMessage,
    Welcome,
    peer_pid,
    readable,
    receive_frame,
    send_frame,
)
from gridmill.settings import Settings, as_variables
from gridmill.transport.unix import dial
from gridmill.version import __version__

SOCKET = "client.sock"
"""The file in the home for the socket at which clients of this user on this machine call the control
node."""
_ANSWER_SECONDS = 60.0
_PROBE_SECONDS = 0.9
_CALL_SECONDS = 3600.0
"""The timeout of a call in seconds. The longest call is a backup, because it copies all data of the
backup."""
_END_SECONDS = 30.0
_END_MILLISECONDS = 1000
"""When a process ends, all its connections are closed within this time, in milliseconds."""
GIVE_WAY = "give_way"
"""The name of a call that is not a use case. With this call, a permanent control node asks an embedded
control node to end, and then continues its runs and pods."""


def connect_to(path: Path, hello: Hello, warn: Callable[[str], None]) -> "ClientLink":
    """Connects to the control node that listens at the socket. Raises UnreachedError if no control node
    listens there."""
    sock, welcome = _greet(path, hello)
    return ClientLink(path, sock, welcome, warn)


def _greet(path: Path, hello: Hello) -> tuple[socket.socket, Welcome]:
    sock = None
    try:
        sock = dial(path)
        sock.settimeout(_ANSWER_SECONDS)
        send_frame(sock, [encode(hello)])
        wait_for_answer(sock, peer_pid(sock), str(path))
        parts = receive_frame(sock)
        if parts is None:
            raise ConnectionResetError("it ends")
        return sock, decode(parts[0], Welcome)
    except BaseException as error:
        if sock is not None:
            sock.close()
        # the queue of waiting connections is full, because the process accepts none of them
        if isinstance(error, BlockingIOError):
            raise hung(owner_of(path.parent), str(path)) from error
        if not isinstance(error, OSError | InputError):
            raise
        raise UnreachedError(
            f"the control node at {path} does not answer ({type(error).__name__})",
            hint="Start one: gridmill up",
        ) from error


class ClientLink:
    """The connections of a client to one control node. Several threads may use these connections at the same
    time. While the link is open, the control node treats the client as alive."""

    def __init__(
        self, path: Path, sock: socket.socket, welcome: Welcome, warn: Callable[[str], None]
    ) -> None:
        self.welcome = welcome
        self._path, self._sign, self._warn = path, sock, warn
        self._idle: list[socket.socket] = []
        self._reading = threading.Lock()
        self._ended = False
        self._process = os.getpid()

    def grid(self, *, attend: bool = False, key: str = "", again: bool = False) -> Grid:
        """Returns the use cases. With `attend`, the control node stops the runs that the client started when
        the client ends. `key` identifies the start of a run. With `again`, the control node does not start a
        run that was already started with this key."""
        return cast(Grid, _CallingGrid(link=self, attend=attend, key=key, again=again))

    @contextlib.contextmanager
    def connection(self, name: str) -> Iterator[socket.socket]:
        """A context with a connection for one call of that name. Raises UnreachedError if the control node
        has ended already, and UnavailableError if the connection is lost inside the context, because the
        outcome of the call is then unknown."""
        if self.has_ended():
            raise UnreachedError(f"the control node at {self._path} has ended", hint="Try again.")
        connection = self._connection()
        try:
            yield connection
        except HungNodeError:
            connection.close()
            self._ended = True  # ends without a `bye`, which would get no answer
            raise
        except OSError as error:
            connection.close()
            # waits for the end, so that the next call knows that the control node has ended
            readable(self._sign, milliseconds=_END_MILLISECONDS)
            raise UnavailableError(
                f"the control node at {self._path} ended before it answered `{name}`",
                hint="Check with `gridmill status` whether the call took effect, and retry.",
            ) from error
        except BaseException:  # after an interrupt, the rest of this answer must not be read as the next one
            connection.close()
            raise
        self._idle.append(connection)

    def receive_answer(self, connection: socket.socket) -> list[bytes]:
        """Returns the answer to the call that was sent over the connection (see `result_of`). Raises OSError
        if the connection is lost, and HungNodeError."""
        wait_for_answer(connection, self.welcome.pid, str(self._path), answers=self._answers)
        answer = receive_frame(connection)
        if answer is None:
            raise ConnectionResetError("the connection was closed")
        return answer

    def _answers(self, patient: bool) -> bool:
        """Returns True if the control node accepts a connection immediately. With `patient`, the method
        waits some seconds for this."""
        try:
            with dial(self._path) as sock:
                sock.settimeout(PATIENCE_SECONDS if patient else _PROBE_SECONDS)
                send_frame(sock, [encode(Hello(client=self.welcome.client))])
                return receive_frame(sock) is not None
        except OSError:
            return False

    def attend(self, run: str) -> None:
        """Connects a run with this client, so that the control node stops the run when the client ends."""
        # if the control node has ended, the hello to the next control node names the run
        with contextlib.suppress(OSError):
            send_frame(self._sign, [encode(SessionMessage(attend=run))])

    def release(self) -> None:
        """Declares that this client starts no more runs. If there are no other clients, idle pods may then
        end."""
        with contextlib.suppress(OSError):
            send_frame(self._sign, [encode(SessionMessage(release=True))])

    def has_ended(self) -> bool:
        """Returns True if the control node has ended. The function passes on warnings that have arrived. In
        a forked child process, the result is always True, because the connections belong to the parent."""
        if self._is_of_parent():
            return True
        with self._reading:
            while not self._ended and readable(self._sign):
                word = self._receive_message()
                self._ended = word is None
                if word is not None and word.warning:
                    self._warn(word.warning)
            return self._ended

    def _receive_message(self) -> SessionMessage | None:
        try:
            parts = receive_frame(self._sign)
            return None if parts is None else decode(parts[0], SessionMessage)
        except (OSError, InputError):
            return None

    def _connection(self) -> socket.socket:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread may have taken the last connection
                kept = self._idle.pop()
                if not readable(kept):
                    return kept
                kept.close()
        sock, _ = _greet(self._path, Hello(client=self.welcome.client))
        sock.settimeout(_CALL_SECONDS)
        return sock

    def close(self) -> None:
        """Disconnects the client. If this was the last client, the function waits until the control node has
        ended, so that a later call to the home does not reach a control node that is ending. The call can be
        repeated."""
        if self._is_of_parent():
            return
        with self._reading:
            if not self._ended:
                self._ended = True
                self._send_bye()
            self._drop()

    def _is_of_parent(self) -> bool:
        return os.getpid() != self._process

    def wait_for_end(self, seconds: float) -> bool:
        """Waits for the end of the control node, and returns whether the control node ended within this
        number of seconds."""
        with self._reading, contextlib.suppress(OSError):
            until = time.monotonic() + seconds
            while not self._ended and (left := until - time.monotonic()) > 0:
                if readable(self._sign, milliseconds=int(left * 1000) + 1):
                    self._ended = self._receive_message() is None
        return self._ended

    def _send_bye(self) -> None:
        with contextlib.suppress(OSError):
            self._sign.settimeout(_END_SECONDS)
            send_frame(self._sign, [encode(SessionMessage(bye=True))])
            while (word := self._receive_message()) is not None and not word.stays:
                if word.warning:
                    self._warn(word.warning)

    def _drop(self) -> None:
        self._sign.close()
        while self._idle:
            self._idle.pop().close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallingGrid:
    """The use cases of the control node, each of which is sent as a call over the link."""

    link: ClientLink
    attend: bool
    key: str
    again: bool

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        case = use_case(name)

        def call(*given: Any, **named: Any) -> Any:  # noqa: ANN401  as the use case has them
            names = case.names(len(given), named)
            values = (*given, *(named[name] for name in names[len(given) :]))
            parts = [value if isinstance(value, bytes) else encode(value) for value in values]
            envelope = Call(
                name=name,
                arguments=names,
                attend=self.attend,
                key=self.key,
                again=self.again,
            )
            with self.link.connection(name) as connection:
                send_frame(connection, [encode(envelope), *parts])
                answer = self.link.receive_answer(connection)
            return decode(result_of(answer), case.gives)

        return call


def result_of(answer: list[bytes]) -> bytes:
    """Returns the result in an answer, as JSON. If the call failed, the error of the call is raised."""
    if answer[0]:
        raise from_body(decode(answer[0], dict[str, object]))
    return answer[1]


def ask_to_end(link: ClientLink) -> None:
    """Asks the control node to end, because a permanent control node replaces it. Raises HomeInUseError if
    the control node is itself permanent."""
    with link.connection(GIVE_WAY) as connection:
        send_frame(connection, [encode(Call(name=GIVE_WAY))])
        answer = link.receive_answer(connection)
    result_of(answer)


_FOLDER = "GRIDMILL_ROOT"
_SECRET = "GRIDMILL_STORE"  # compared but never shown, because its URL may hold a password


def differences(settings: Settings, hello: Hello, *, stays: bool) -> tuple[str, ...]:
    """Returns one line for each difference between the settings of the client and of the control node. The
    settings of a permanent control node were chosen by the user. Therefore the function compares only the
    settings that are set in the client's environment with the settings of such a control node."""
    ours = as_variables(settings)
    names = hello.chosen if stays else tuple(ours)
    lines = [
        _line(name, hello.settings[name], ours[name])
        for name in names
        if name in ours and name in hello.settings and not _are_same(name, hello.settings[name], ours[name])
    ]
    if hello.version != __version__:
        lines.append(
            f"Gridmill has version {hello.version} here and {__version__} at the running control node"
        )
    if hello.python != sys.prefix:
        lines.append(
            f"Python is {hello.python} here and {sys.prefix} at the control node that is up:"
            " jobs of Gridmill's own kinds use the latter"
        )
    return tuple(lines)


def _are_same(name: str, theirs: str, ours: str) -> bool:
    return theirs == ours or (name == _FOLDER and os.path.realpath(theirs) == os.path.realpath(ours))


def _line(name: str, theirs: str, ours: str) -> str:
    if name == _SECRET:
        return f"{name} here is not that of the running control node, whose value applies until it ends"
    return (
        f"{name} is {theirs or 'not set'} here and {ours or 'not set'} at the running control node,"
        " whose value applies until it ends"
    )
