"""A TCP proxy in front of PostgreSQL that cuts connections at commits, before or after"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

_COMMIT = b"COMMIT\x00"  # as drivers send it: a simple query, or the text of a prepared one


class Cut(StrEnum):
    """What becomes of a commit."""

    NONE = "none"
    BEFORE = "before"  # the server never gets it
    AFTER = "after"  # the server has it, and its answer is lost


class CuttingProxy:
    """Listens on `port`; `fate` is asked at each commit."""

    def __init__(self, server_port: int, fate: Callable[[], Cut]) -> None:
        self.fate = fate
        self.cuts = 0
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                threading.Thread(target=self._upstream, args=(client, server), daemon=True).start()
                threading.Thread(target=_pump, args=(server, client), daemon=True).start()

    def _upstream(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                fate = self.fate() if _COMMIT in data else Cut.NONE
                if fate == Cut.NONE:
                    server.sendall(data)
                    continue
                self.cuts += 1
                _end(client)  # before the server can answer
                if fate == Cut.AFTER:
                    server.sendall(data)
                    server.shutdown(socket.SHUT_WR)
                    return  # the other pump reads on, so the server is not disturbed
                break
        _end(client)
        _end(server)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            with suppress(OSError):
                target.sendall(data)
    _end(target)
    _end(source)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting_proxy(server_port: int, fate: Callable[[], Cut] = lambda: Cut.NONE) -> Iterator[CuttingProxy]:
    """A proxy that listens until the block ends."""
    proxy = CuttingProxy(server_port, fate)
    try:
        yield proxy
    finally:
        proxy.close()
