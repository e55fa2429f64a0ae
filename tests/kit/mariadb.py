"""A MariaDB server of the tests' own: private, thrown away at the end, with real databases in it."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pymysql

from tests.kit.ports import free_port

HOW_TO_GET_IT = "needs MariaDB's server: apt-get install mariadb-server"
_DEADLINE_SECONDS = 300.0
_PROGRAMS = ("mariadbd", "mariadb-install-db")
_OPTIONS = (
    "--innodb-buffer-pool-size=16M",
    "--innodb-log-file-size=8M",
    "--innodb-flush-log-at-trx-commit=0",
)
"""Small, and without a flush per transaction: these databases need not outlive the machine."""


def programs() -> tuple[str, str] | None:
    """The server and what makes its data folder; None without them."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))  # Debian keeps the server there
    server, install = (shutil.which(name, path=path) for name in _PROGRAMS)
    return (server, install) if server and install else None


@dataclass
class MariadbServer:
    """A server on 127.0.0.1 with the user `gridmill`, who has no password and may do everything."""

    folder: Path
    server: str
    install: str
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def make(self) -> None:
        """Make the data folder: once, before the first start."""
        where = (f"--datadir={self.folder / 'data'}", f"--user={pwd.getpwuid(os.geteuid()).pw_name}")
        subprocess.run(
            [self.install, "--no-defaults", *where, "--auth-root-authentication-method=normal"],
            check=True,
            capture_output=True,
        )

    def start(self, *options: str) -> None:
        """Start it, and wait until it answers. `options` are further words of its command line."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.server,
                    "--no-defaults",
                    f"--user={pwd.getpwuid(os.geteuid()).pw_name}",
                    f"--datadir={self.folder / 'data'}",
                    f"--socket={self.folder / 'socket'}",
                    f"--pid-file={self.folder / 'pid'}",
                    "--bind-address=127.0.0.1",
                    f"--port={self.port}",
                    *_OPTIONS,
                    *options,
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self.folder / "server.log").read_text()[-2000:])
            time.sleep(0.05)
        self.execute("CREATE USER IF NOT EXISTS gridmill@'127.0.0.1'")
        self.execute("GRANT ALL ON *.* TO gridmill@'127.0.0.1' WITH GRANT OPTION")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it; with SIGKILL nothing of it is written any more."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_DEADLINE_SECONDS)
            self._process = None

    def create_database(self) -> str:
        """The name of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return name

    def url(self, database: str) -> str:
        """How it is reached, as SQLAlchemy takes it."""
        return f"mysql+pymysql://gridmill@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """What the statement returns, run on a connection of its own, outside of any transaction."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def connect(self, database: str | None = None) -> pymysql.Connection:
        """A connection on which each statement is a transaction."""
        return pymysql.connect(
            unix_socket=str(self.folder / "socket"), user="root", database=database, autocommit=True
        )

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except pymysql.OperationalError:
            return False
        return True


@contextmanager
def mariadb_server() -> Iterator[MariadbServer | None]:
    """A server that has just started, gone with its data at the end; None where it is not installed."""
    found = programs()
    if found is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="my-"))  # short: the path of a Unix socket has 107 bytes at most
    server = MariadbServer(folder, *found)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop(signal.SIGKILL)
        shutil.rmtree(folder)
