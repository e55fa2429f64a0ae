"""A disk that is full while a sink is written: files may grow to 64 KiB only, in a process of its own."""

import resource
import signal
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.kit.sink_case import TABLE, SinkCase

from gridmill.errors import StorageError

pytestmark = pytest.mark.e2e


def _load_on_a_full_disk(folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    try:
        SinkCase(folder).load(attempt="p-1.s.2")
    except StorageError as error:
        sys.exit(0 if "the disk is full" in error.message else 1)
    sys.exit(2)


def test_nothing_half_written_is_visible(tmp_path: Path) -> None:
    case = SinkCase(tmp_path)
    case.write("a.csv", "a,b\n1,x\n")
    case.load()
    case.write("b.csv", "a,b\n" + "".join(f"{n},{n * 7919 % 10007}x{n}\n" for n in range(100_000)))
    process = get_context("spawn").Process(target=_load_on_a_full_disk, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert case.rows() == [{"a": 1, "b": "x"}]
    assert len(list((tmp_path / "root" / TABLE).glob("*.parquet"))) == 1
    assert not list((tmp_path / "root/sinks/p/s").glob("p-1*"))
    assert case.load().rows == 100_001
