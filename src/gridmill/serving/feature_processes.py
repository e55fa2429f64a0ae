"""The processes that compute the features of a large request. Each of them gets pieces of the rows.

All processes read the same state of the view: each begins a transaction, and the request begins when the
states are equal. A process gets the next piece when the parent has the result of its last one, so that the
two never wait for each other. A process ends when its link is closed, also if the parent is killed.
"""

import os
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import pyarrow as pa

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass, replace
from gridmill.errors import GridmillError, JobError, UnavailableError, from_body, to_body
from gridmill.serving.bulk_features import BulkFeatures, BulkOrder, ComputedRows, RefusedRowError
from gridmill.serving.errors import Problem
from gridmill.serving.request_file import Piece

MOST_PROCESSES = 16
AHEAD = 2
"""The number of pieces for each process that are read before the oldest piece has a result."""
TRIES = 50
"""How often the processes try to begin with the same state. A view changes about once per second."""
_LINES, _CELLS, _VALUES, _OPEN = b"L", b"C", b"V", b"O"
_HEAD = struct.Struct("<cI")
"""The beginning of a message with a piece: its kind, and the number of rows of its first group."""

Result = Callable[[], ComputedRows]
"""A function that returns the features of a piece, or raises the error of the piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The first message to a process. `label` names the request in errors."""

    bulk: BulkOrder
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """The content of a RefusedRowError."""

    row: int
    message: str
    hint: str
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """The reply to a message. The tables of a ComputedRows follow in `tables` further messages."""

    state: str = ""
    refusal: _Refusal | None = None
    error: dict[str, Any] | None = None
    not_present: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    tables: int = 0


@dataclass(slots=True)
class _OpenPiece:
    """A piece that is read and not yet yielded, and its result if there is one."""

    piece: Piece
    result: Result | None = None


@dataclass(slots=True)
class _Queue:
    """The pieces between the file and the caller. `open` has all of them in their order, `unsent` those that
    no process has, and `busy` those that a process computes."""

    source: Iterator[Piece | GridmillError]
    idle: list[Connection]
    open: deque[_OpenPiece] = field(default_factory=deque)
    unsent: deque[_OpenPiece] = field(default_factory=deque)
    busy: dict[Connection, _OpenPiece] = field(default_factory=dict)
    is_complete: bool = False

    def read(self) -> None:
        """Read the next piece. An error is a piece whose result is the error."""
        piece = next(self.source, None)
        if piece is None:
            self.is_complete = True
        elif isinstance(piece, GridmillError):
            self.open.append(_OpenPiece(piece, partial(_raise, piece)))
        else:
            self.open.append(_OpenPiece(piece))
            self.unsent.append(self.open[-1])


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def lines_work(lines: Sequence[bytes], group: int) -> bytes:
    """Return lines, none of which is blank, as they are sent to a process. `group` is the number of rows of
    the first group."""
    return _HEAD.pack(_LINES, group) + b"\n".join(lines)


def table_work(batch: pa.RecordBatch, group: int, *, has_cells: bool) -> bytes:
    """Return a batch as it is sent to a process. `group` is the number of rows of the first group."""
    kind = _CELLS if has_cells else _VALUES
    return _HEAD.pack(kind, group) + _packed(pa.Table.from_batches([batch]))


class FeatureProcesses:
    """Processes that compute features as `by_key` does, from the same state of the view.

    Use the object as a context manager: at its end, all processes have ended. Raises UnavailableError if the
    view changes too often, JobError if a process cannot be started or ends early.
    """

    def __init__(self, by_key: BulkFeatures, label: str, processes: int) -> None:
        self._by_key, self._label, self._count = by_key, label, processes
        self._processes: dict[Connection, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "FeatureProcesses":
        """Start the processes, and begin with the same state of the view in all of them."""
        try:
            for _ in range(self._count):
                self._start()
            self._open_all()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes."""
        self._end()

    def in_order(
        self, pieces: Iterator[Piece | GridmillError], work_of: Callable[[Piece], bytes]
    ) -> Iterator[tuple[Piece, Result]]:
        """Yield each piece with its result, in the order of the pieces. An error among the pieces is raised
        by its result, so that errors in earlier pieces are raised first."""
        queue = _Queue(pieces, list(self._processes))
        while True:
            while queue.idle and queue.unsent:
                link, one = queue.idle.pop(), queue.unsent.popleft()
                self._send(link, work_of(one.piece))
                queue.busy[link] = one
            if queue.open and (result := queue.open[0].result) is not None:
                yield queue.open.popleft().piece, result
            elif not queue.is_complete and len(queue.open) < AHEAD * self._count:
                queue.read()
                self._collect(queue, 0.0)
            elif queue.open:
                self._collect(queue, None)
            else:
                return

    def _collect(self, queue: _Queue, seconds: float | None) -> None:
        """Take the results that have arrived. With None, wait until there is one."""
        arrived = {*wait(list(queue.busy), seconds)} if queue.busy else set()
        for link in [one for one in queue.busy if one in arrived]:
            queue.busy.pop(link).result = self._result(link)
            queue.idle.append(link)

    def _start(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "gridmill.serving.feature_processes", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C interrupts only the parent, which ends its processes
                )
            except OSError as error:
                ours.close()
                raise JobError(f"a process that computes features cannot be started: {error}") from error
        self._processes[ours] = process
        order = replace(self._by_key.order, folder=str(Path(self._by_key.order.folder).absolute()))
        self._send(ours, encode(_Order(bulk=order, label=self._label)))

    def _open_all(self) -> None:
        """Begin with the same state of the view in this process and in all others."""
        for _ in range(TRIES):
            for link in self._processes:
                self._send(link, _OPEN)
            states = {self._reply(link).state for link in self._processes}
            if states == {_text_of(self._by_key)}:
                return
            self._by_key.open_again()
        raise UnavailableError(
            f"the view of the features has changed {TRIES} times while {self._count} processes opened it",
            hint="Run the command again.",
        )

    def _send(self, link: Connection, message: bytes) -> None:
        try:
            link.send_bytes(message)
        except OSError as error:
            raise self._died(link) from error

    def _reply(self, link: Connection) -> _Reply:
        """Receive a reply. Raises the GridmillError that the process has raised."""
        reply = self._received(link)
        if reply.error is not None:
            raise from_body(reply.error)
        return reply

    def _received(self, link: Connection) -> _Reply:
        try:
            return decode(link.recv_bytes(), _Reply)
        except (EOFError, OSError) as error:
            raise self._died(link) from error

    def _result(self, link: Connection) -> Result:
        reply = self._received(link)
        if reply.error is not None:
            return partial(_raise, from_body(reply.error))
        if (refusal := reply.refusal) is not None:
            refused = RefusedRowError(
                refusal.row, refusal.message, hint=refusal.hint, problems=refusal.problems
            )
            return partial(_raise, refused)
        try:
            tables = [_unpacked(link.recv_bytes()) for _ in range(reply.tables)]
        except (EOFError, OSError) as error:
            raise self._died(link) from error
        made = ComputedRows(
            features=tables[0], shown=tables[1] if len(tables) > 1 else None, not_present=reply.not_present
        )
        return lambda: made

    def _died(self, link: Connection) -> JobError:
        process = self._processes[link]
        process.kill()
        code = process.wait()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return JobError(
            f"a process that computes features has ended early ({how})",
            hint="If the machine had too little memory, run the command with fewer CPUs: taskset -c 0 "
            "gridmill predict …",
        )

    def _end(self) -> None:
        """End all processes. They hold nothing that must be finished."""
        for link, process in self._processes.items():
            link.close()
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()


def _raise(error: GridmillError) -> ComputedRows:
    raise error


def _text_of(by_key: BulkFeatures) -> str:
    """Return the state of the view that a process reads, as text."""
    return encode(by_key.state).decode()


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.unify_dictionaries())
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpacked(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def main() -> None:
    """Compute the features of the pieces that the parent sends, until it closes the link."""
    pa.set_cpu_count(1)
    link = Connection(int(sys.argv[1]))
    with suppress(EOFError, OSError):
        order = decode(link.recv_bytes(), _Order)
        _serve(link, order)


def _serve(link: Connection, order: _Order) -> None:
    by_key: BulkFeatures | None = None
    while True:
        message = link.recv_bytes()
        tables: list[pa.Table] = []
        try:
            by_key = by_key or BulkFeatures(order.bulk)
            if message == _OPEN:
                by_key.open_again()
                reply = _Reply(state=_text_of(by_key))
            else:
                made = _computed(by_key, order.label, message)
                tables = [made.features, *([made.shown] if made.shown is not None else [])]
                reply = _Reply(not_present=made.not_present, tables=len(tables))
        except RefusedRowError as error:
            refusal = _Refusal(row=error.row, message=error.message, hint=error.hint, problems=error.problems)
            reply = _Reply(refusal=refusal)
        except GridmillError as error:
            reply = _Reply(error=to_body(error))
        link.send_bytes(encode(reply))
        for table in tables:
            link.send_bytes(_packed(table))


def _computed(by_key: BulkFeatures, label: str, message: bytes) -> ComputedRows:
    (kind, group), content = _HEAD.unpack_from(message), message[_HEAD.size :]
    if kind == _LINES:
        return by_key.of_lines(content.split(b"\n"), group)
    (batch,) = _unpacked(content).to_batches()
    return by_key.of_batch(batch, group, label, has_cells=kind == _CELLS)


if __name__ == "__main__":
    main()
