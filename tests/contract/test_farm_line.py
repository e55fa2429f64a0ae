"""What goes over a line to a farm: seen as it moves, kept within a limit, stopped in the middle."""

import http.client
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.kit.farms import farm, open_folder

from gridmill.errors import InterruptedRunError
from gridmill.farm.join import invite
from gridmill.sites.farm.client import FarmClient, RepeatableBody, member, read_chunks
from gridmill.sites.farm.credentials import keeping
from gridmill.sites.farm.join import become_tenant
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.engine import TransferLimits, pull, push
from gridmill.transfer.progress import TransferProgress
from gridmill.transfer.stream import ByteMeter

SIZE_BYTES = 3 << 20
LIMIT = TransferLimits(limit_bytes_per_second=2e6)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[FarmClient]:
    with open_folder() as folder, farm(folder / "farm") as running:
        port = int(running.server.address.rpartition(":")[2])
        secret = invite(running.farm.records, running.farm.now(), "")
        become_tenant(tmp_path, "far", f"127.0.0.1:{port}", f"{running.farm.authority.fingerprint}:{secret}")
        made = member(keeping(tmp_path, "far"))
        yield made
        made.close()


def watched(act: Callable[[], None], progress: TransferProgress) -> set[int]:
    """How much had been carried, whenever it was looked at until `act` was done."""
    seen = set[int]()
    with ThreadPoolExecutor(1) as threads:
        acting = threads.submit(act)
        while not acting.done():
            seen.add(progress.look().transferred_bytes)
            time.sleep(0.02)
    acting.result()
    return seen


def test_a_chunk_is_seen_as_it_moves_either_way(far: FarmClient, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "one").write_bytes(os.urandom(SIZE_BYTES))
    manifest = scan(root)
    assert sum(len(file.chunks) for file in manifest.files) == 1
    near = ChunkStore(tmp_path / "near", 2 * SIZE_BYTES)
    there, back = TransferProgress(), TransferProgress()
    for act, progress in (
        (lambda: push(manifest, root, far, progress=there, terms=LIMIT), there),
        (lambda: pull(manifest, near, far, progress=back, terms=LIMIT), back),
    ):
        began = time.monotonic()
        seen = watched(act, progress)
        assert time.monotonic() - began > 1.0  # the first piece goes at once
        assert len([size for size in seen if 0 < size < SIZE_BYTES]) > 4
        assert progress.look().transferred_bytes == SIZE_BYTES
    assert near.missing([chunk for file in manifest.files for chunk in file.chunks]) == ()


def test_it_is_stopped_in_the_middle_of_a_chunk_and_counts_for_nothing(
    far: FarmClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "one").write_bytes(os.urandom(SIZE_BYTES))
    manifest, progress, stop = scan(root), TransferProgress(), threading.Event()
    seen: list[int] = []

    def stop_soon() -> None:
        while not seen or not seen[-1]:
            seen.append(progress.look().transferred_bytes)
            time.sleep(0.01)
        stop.set()

    stopping = threading.Thread(target=stop_soon, daemon=True)
    stopping.start()
    with pytest.raises(InterruptedRunError):
        push(
            manifest,
            root,
            far,
            progress=progress,
            terms=TransferLimits(limit_bytes_per_second=1e4),
            stop=stop,
        )
    stopping.join(60)
    assert 0 < seen[-1] < SIZE_BYTES
    assert progress.look().transferred_bytes == 0
    push(manifest, root, far, progress=progress)
    assert progress.look().transferred_bytes == SIZE_BYTES
    assert "Traceback" not in caplog.text


def test_what_is_sent_again_on_another_connection_counts_once() -> None:
    told: list[int] = []
    body = RepeatableBody([bytes(5), bytes(3)], ByteMeter(moved=told.append, piece_bytes=2))
    first = iter(body)
    next(first), next(first)
    assert (told, b"".join(body)) == ([2, 2, -4, 2, 2, 1, 2, 1], bytes(8))


class Broken(http.client.HTTPResponse):
    """Gives 3 bytes, and ends."""

    def __init__(self) -> None:
        self.length, self._left = 8, [3, 0]

    def readinto(self, into: Any) -> int:
        return self._left.pop(0)


def test_an_answer_that_breaks_off_counts_for_nothing() -> None:
    told: list[int] = []
    with pytest.raises(http.client.IncompleteRead):
        read_chunks(Broken(), ByteMeter(moved=told.append))
    assert sum(told) == 0
    assert len(told) == 2
