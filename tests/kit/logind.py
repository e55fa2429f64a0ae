"""A systemd-logind of the tests' own on a D-Bus of the tests' own: the part that `loginctl` asks.

The interfaces are those of https://www.freedesktop.org/software/systemd/man/org.freedesktop.login1.html, the
messages those of https://dbus.freedesktop.org/doc/dbus-specification.html.
"""

import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HOW_TO_GET_IT = "needs root, dbus-daemon and loginctl: apt-get install dbus systemd"
_LOGINCTL = """#!/bin/sh
exec unshare --mount sh -c 'mount -t tmpfs run /run && mkdir -p /run/systemd/system && exec "$0" "$@"' \\
  {program} "$@"
"""
"""The machine's own, which asks a bus only where systemd runs (sd_booted(3)): it sees the folder by which it
is told."""
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
<allow own="*"/><allow user="*"/></policy></busconfig>"""
_CALL, _RETURN, _ERROR = 1, 2, 3
Value = str | bool | int


def is_installed() -> bool:
    """Whether there is one to start."""
    return os.geteuid() == 0 and None not in map(shutil.which, ("dbus-daemon", "loginctl", "unshare"))


@dataclass
class Logind:
    """`address` is that of the bus, `programs` a folder with `loginctl`, to be first in PATH. `sessions` by
    their names: their properties as D-Bus has them. Change them at any time. While `answers` is False it
    says nothing."""

    address: str
    programs: str
    sessions: dict[str, dict[str, Value]] = field(default_factory=dict)
    answers: bool = True

    def add(self, name: str, *, kind: str = "wayland", idle_since: float | None = None, began: float) -> None:
        """A session of user 1000 that began at that monotonic time; `idle_since` is a Unix time."""
        self.sessions[name] = {
            "Class": "user",
            "Type": kind,
            "State": "active",
            "TTY": "",
            "IdleHint": idle_since is not None,
            "IdleSinceHint": int((idle_since or 0.0) * 1e6),
            "TimestampMonotonic": int(began * 1e6),
        }


@contextmanager
def logind() -> Iterator[Logind]:
    """A running bus with logind on it; `DBUS_SYSTEM_BUS_ADDRESS` names it to `loginctl`."""
    with tempfile.TemporaryDirectory(prefix="dbus-") as name:
        path = Path(name) / "bus"
        (Path(name) / "config").write_text(_CONFIG.format(path=path))
        (Path(name) / "loginctl").write_text(_LOGINCTL.format(program=shutil.which("loginctl")))
        (Path(name) / "loginctl").chmod(0o700)
        words = ["dbus-daemon", f"--config-file={name}/config", "--nofork", "--print-address=1"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as bus:
            try:
                assert bus.stdout is not None
                assert bus.stdout.readline().startswith("unix:")
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(str(path))
                    served = Logind(address=f"unix:path={path}", programs=name)
                    service = _Service(connection, served)
                    thread = threading.Thread(target=service.serve, daemon=True)
                    thread.start()
                    yield served
                    connection.shutdown(socket.SHUT_RDWR)
                    thread.join(10)
            finally:
                bus.terminate()


class _Service:
    """Answers the calls on one connection."""

    def __init__(self, connection: socket.socket, served: Logind) -> None:
        self._connection, self._served, self._serial = connection, served, 0
        self._log_in()

    def _log_in(self) -> None:
        user = str(os.getuid()).encode().hex()
        self._connection.sendall(f"\0AUTH EXTERNAL {user}\r\n".encode())
        assert self._connection.recv(1024).startswith(b"OK ")
        self._connection.sendall(b"BEGIN\r\n")
        self._call("Hello", b"", "")
        self._call("RequestName", _string("org.freedesktop.login1") + struct.pack("<I", 4), "su")

    def _call(self, member: str, body: bytes, signature: str) -> None:
        bus = {1: ("o", "/org/freedesktop/DBus"), 2: ("s", "org.freedesktop.DBus"), 3: ("s", member)}
        self._send(_CALL, bus | {6: ("s", "org.freedesktop.DBus")}, body, signature)
        while (told := self._receive()) is not None and told[0] != _RETURN:
            assert told[0] != _ERROR, told

    def _send(self, kind: int, fields: Mapping[int, tuple[str, Value]], body: bytes, signature: str) -> None:
        self._serial += 1
        whole = dict(fields) | ({8: ("g", signature)} if signature else {})
        array = b""
        for code, (kind_of, value) in whole.items():
            array += b"\0" * (-len(array) % 8) + bytes([code])
            array += _variant(kind_of, value, len(array))
        head = struct.pack("<BBBBIII", ord("l"), kind, 0, 1, len(body), self._serial, len(array)) + array
        self._connection.sendall(head + b"\0" * (-len(head) % 8) + body)

    def _receive(self) -> tuple[int, int, dict[int, Value], bytes] | None:
        """Kind, serial, header fields, body; None at the end."""
        head = self._read(16)
        if head is None:
            return None
        _, kind, _, _, size, serial, length = struct.unpack("<BBBBIII", head)
        array = self._read(length + -length % 8) or b""
        body = (self._read(size) or b"") if size else b""
        return kind, serial, _fields(array[:length]), body

    def _read(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            more = self._connection.recv(size - len(data))
            if not more:
                return None
            data += more
        return data

    def serve(self) -> None:
        """Until the connection ends."""
        while (message := self._receive()) is not None:
            kind, serial, fields, body = message
            if kind == _CALL and self._served.answers:
                signature, answer = self._answer(str(fields[3]), str(fields[1]), body)
                told = {5: ("u", serial), 6: ("s", fields[7])}
                self._send(_RETURN, told, answer, signature)

    def _answer(self, member: str, path: str, body: bytes) -> tuple[str, bytes]:
        sessions = self._served.sessions
        name = path.rpartition("/")[2].removeprefix("_")
        if member == "ListSessions":
            return "a(susso)", _array(_listed(one) for one in sessions)
        if member == "GetSession":
            return "o", _string(f"{_PATH}_{_read_string(body, 0)}", 1)
        if member == "GetAll":
            return "a{sv}", _array(_entry(key, value) for key, value in sessions[name].items())
        assert member == "Get", member
        at = 4 + len(_read_string(body, 0)) + 1
        value = sessions[name].get(_read_string(body, at + -at % 4), "")
        return "v", _variant(_kind(value), value, 0)


_PATH = "/org/freedesktop/login1/session/"


def _string(text: str, align: int = 4) -> bytes:
    """A string or a path; the next value is aligned."""
    data = text.encode()
    whole = struct.pack("<I", len(data)) + data + b"\0"
    return whole + b"\0" * (-len(whole) % align)


def _read_string(data: bytes, at: int) -> str:
    (size,) = struct.unpack_from("<I", data, at)
    return data[at + 4 : at + 4 + size].decode()


def _kind(value: Value) -> str:
    return {bool: "b", int: "t", str: "s"}[type(value)]


def _variant(kind: str, value: Value, at: int) -> bytes:
    """`at` is where it begins, from which its value is aligned."""
    head = bytes([len(kind)]) + kind.encode() + b"\0"
    size = {"t": 8, "g": 1}.get(kind, 4)
    head += b"\0" * (-(at + len(head)) % size)
    if kind == "g":
        return head + bytes([len(str(value))]) + str(value).encode() + b"\0"
    if kind in ("s", "o"):
        data = str(value).encode()
        return head + struct.pack("<I", len(data)) + data + b"\0"
    return head + struct.pack({"t": "<Q"}.get(kind, "<I"), int(value))


def _entry(key: str, value: Value) -> bytes:
    name = key.encode()
    head = struct.pack("<I", len(name)) + name + b"\0"
    return head + _variant(_kind(value), value, len(head))


def _listed(session: str) -> bytes:
    head = _string(session) + struct.pack("<I", 1000)
    return head + _string("owner") + _string("seat0") + _string(f"{_PATH}_{session}", 1)


def _array(parts: Iterator[bytes]) -> bytes:
    """Of structs and entries, which are aligned to 8, in a body that begins with it."""
    whole = b""
    for part in parts:
        whole += b"\0" * (-len(whole) % 8) + part
    return struct.pack("<II", len(whole), 0) + whole


def _fields(array: bytes) -> dict[int, Value]:
    """Header fields: strings, paths, signatures and numbers."""
    found: dict[int, Value] = {}
    at = 0
    while at < len(array):
        code, kind = array[at], chr(array[at + 2])
        at += 4
        if kind == "g":
            size = array[at]
            found[code] = array[at + 1 : at + 1 + size].decode()
            at += size + 2
        elif kind == "u":
            (found[code],) = struct.unpack_from("<I", array, at)
            at += 4
        else:
            found[code] = text = _read_string(array, at)
            at += 4 + len(text.encode()) + 1
        at += -at % 8
    return found
