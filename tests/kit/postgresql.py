"""A PostgreSQL server of the tests' own: private, thrown away at the end, with real databases in it."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg

from tests.kit.ports import free_port

HOW_TO_GET_IT = "needs PostgreSQL's server: apt-get install postgresql"
USER = "gridmill"
_DEADLINE_SECONDS = 300.0
_HELD = "is still in use"
"""What the server says of shared memory that another's processes have."""
_OPTIONS = {
    "fsync": "off",  # these databases need not outlive the machine
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "log_min_messages": "warning",
}


def binaries() -> Path | None:
    """The folder of `initdb` and `postgres`, the newest where there are several; None without them."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    versions = Path("/usr/lib/postgresql").glob("*/bin")  # Debian keeps them out of PATH
    folders += sorted(versions, key=lambda folder: float(folder.parent.name), reverse=True)
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


def _user() -> str | None:
    """Whom the server runs as: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    return "postgres" if any(entry.pw_name == "postgres" for entry in pwd.getpwall()) else "nobody"


@dataclass
class PostgresqlServer:
    """A server on 127.0.0.1 (password asked) and on a Unix socket (none asked), in `folder`."""

    folder: Path
    binaries: Path
    port: int = field(default_factory=free_port)
    password: str = field(default_factory=lambda: secrets.token_hex(8))
    _process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def make(self) -> None:
        """Its data folder: once, before the first start."""
        (self.folder / "password").write_text(self.password)
        self._run(
            "initdb",
            *("--pgdata", self.folder / "data", "--username", USER, "--pwfile", self.folder / "password"),
            *("--auth-local", "trust", "--auth-host", "scram-sha-256"),
            *("--no-sync", "--encoding", "UTF8", "--locale", "C"),
        )

    def start(self, **options: str) -> None:
        """Start it, and wait until it answers. `options` are settings of the server.

        Processes of one that was killed may hold its memory for a moment: then it is started again.
        """
        deadline = time.monotonic() + _DEADLINE_SECONDS
        self._launch(options)
        while not self._answers():
            ended = self._process is None or self._process.poll() is not None
            said = (self.folder / "server.log").read_text()[-2000:]
            if time.monotonic() > deadline or (ended and _HELD not in said):
                raise RuntimeError(said)
            time.sleep(0.02)
            if ended:
                self._launch(options)

    def _launch(self, options: Mapping[str, str]) -> None:
        settings = {**_OPTIONS, **options}
        words = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "server.log").open("ab") as log:
            where = ["-h", "127.0.0.1", "-p", str(self.port), "-k", self.folder]
            self._process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.folder / "data", *where, *words],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                **_identity(),
            )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT cuts every connection, SIGQUIT is a crash (the next start recovers).

        After SIGKILL the server's other processes find out for themselves.
        """
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_DEADLINE_SECONDS)
            self._process = None

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop and start."""
        self.stop(how)
        self.start()

    def crash_and_recover(self) -> None:
        """Stop without a word and start again: it recovers from its log."""
        self.restart(signal.SIGQUIT)

    def create_database(self, tablespace: str = "pg_default") -> str:
        """The name of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TABLESPACE {tablespace}")
        return name

    @contextmanager
    def small_disk(self, megabytes: int) -> Iterator[str | None]:
        """A tablespace on a disk of its own, as small as that; None where none can be mounted."""
        folder = self.folder / "small"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            yield None
            return
        try:
            shutil.chown(folder, _user())
            self.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
            yield "small"
            self.execute("DROP TABLESPACE small")
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)

    def url(self, database: str, *, password: bool = True, port: int | None = None) -> str:
        """How it is reached over TCP, as SQLAlchemy and `GRIDMILL_STORE` take it."""
        who = f"{USER}:{self.password}" if password else USER
        return f"postgresql://{who}@127.0.0.1:{port or self.port}/{database}"

    def socket_url(self, database: str) -> str:
        """The same over the Unix socket, which asks for no password."""
        return f"postgresql://{USER}@/{database}?host={self.folder}&port={self.port}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """What the statement returns, run on a connection of its own, outside of any transaction."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def cut(self, database: str) -> int:
        """End every connection to the database, as an administrator would; how many there were."""
        ended = self.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
        )
        return len(ended)

    def connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        """A connection on which each statement is a transaction."""
        return psycopg.connect(
            host=str(self.folder), port=self.port, user=USER, dbname=database, autocommit=True
        )

    def _answers(self) -> bool:
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *words: object) -> None:
        subprocess.run(
            [self.binaries / program, *map(str, words)],
            cwd=self.folder,
            check=True,
            capture_output=True,
            **_identity(),
        )


def _identity() -> dict[str, object]:
    """As which user a program is started (arguments of subprocess)."""
    user = _user()
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


@contextmanager
def postgresql_server() -> Iterator[PostgresqlServer | None]:
    """A server that has just started, gone with its data at the end; None where it is not installed."""
    programs = binaries()
    if programs is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: the path of a Unix socket has 107 bytes at most
    if user := _user():
        shutil.chown(folder, user)
    server = PostgresqlServer(folder, programs)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        shutil.rmtree(folder)
