"""Many threads that read share a few connections, and none of them is opened again."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from gridmill.stores.dialect import Connection, Connections
from gridmill.stores.sqlite import in_file

THREADS, READS = 40, 10


def test_readers_wait_for_a_few_connections(tmp_path: Path):
    dialect, opened = in_file(str(tmp_path / "store.db")), list[Connection]()

    def opens() -> Connection:
        opened.append(dialect.open())
        return opened[-1]

    connections = Connections(replace(dialect, open=opens))
    together = threading.Barrier(THREADS)

    def reads(number: int) -> list[object]:
        together.wait()
        return [connections.rows("SELECT :number", {"number": number})[0][0] for _ in range(READS)]

    with ThreadPoolExecutor(THREADS) as pool:
        assert [*pool.map(reads, range(THREADS))] == [[number] * READS for number in range(THREADS)]
    connections.close()
    assert len(opened) <= 7  # the writer and six readers
