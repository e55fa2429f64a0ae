"""What takes the place of something else does so in one step."""

import os
import threading
from pathlib import Path

import pytest

from gridmill.transfer import durable
from gridmill.transfer.chunk_manifest import scan
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.durable import put
from gridmill.transfer.engine import push
from gridmill.transfer.tree_writer import TreeCheckout


def folder_of(path: Path, content: str) -> Path:
    path.mkdir(parents=True)
    (path / "file").write_text(content)
    return path


@pytest.mark.parametrize("can", [True, False])
def test_what_stood_there_is_the_draft_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: bool
) -> None:
    if not can:
        monkeypatch.setattr(durable, "_RENAMEAT2", None)  # another system
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        put(folder_of(tmp_path / "a", "first"), root, "x")
        assert not (tmp_path / "a").exists()
        put(folder_of(tmp_path / "b", "second"), root, "x")
        with pytest.raises(FileNotFoundError):
            put(tmp_path / "none", root, "x")
    finally:
        os.close(root)
    assert [(tmp_path / name / "file").read_text() for name in "xb"] == ["second", "first"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "x"]


def test_a_tree_that_is_placed_anew_is_always_there(tmp_path: Path) -> None:
    names = [os.fsencode(folder_of(tmp_path / name, "")) for name in "ab"]
    exchange, here = durable._RENAMEAT2, durable._HERE
    if exchange is None or exchange(here, names[0], here, names[1], durable._EXCHANGE):
        pytest.skip(
            "two names cannot be exchanged here: use Linux, and a file system like ext4, XFS or tmpfs"
        )
    store = ChunkStore(tmp_path / "chunks", 2**20)
    placer = TreeCheckout(tmp_path / "root", store)
    manifests = [scan(folder_of(tmp_path / name, name)) for name in ("one", "two")]
    for name, manifest in zip(("one", "two"), manifests, strict=True):
        push(manifest, tmp_path / name, store)
    placer.place("tree", manifests[0], "a", writable=True)
    over, gaps = threading.Event(), list[int]()

    def look() -> None:
        while not over.is_set():
            if not (tmp_path / "root/tree").exists():
                gaps.append(1)

    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(50):
        placer.place("tree", manifests[number % 2], "a", writable=True)
    over.set()
    watcher.join()
    assert gaps == []
