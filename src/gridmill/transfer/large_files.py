"""Assembles large files, which consist of several chunks. The files are assembled while chunks arrive in any
order, so that each chunk is written once."""

import hashlib
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from gridmill import codec
from gridmill.domain.farm_protocol import FileEntry, Manifest
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError
from gridmill.transfer.durable import SEALED_NS, begin_sync, seal, touch, write_at
from gridmill.transfer.stream import Chunk, ChunkStream, Content, damaged, matches


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """The chunks of a large file. `chunk_bytes` is the size in bytes of all chunks except the last chunk."""

    size_bytes: int
    chunk_bytes: int
    chunks: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the file, which is a hash of its layout."""
        message = f"{self.size_bytes} {self.chunk_bytes} {''.join(self.chunks)}"
        return hashlib.sha256(message.encode()).hexdigest()

    def range_of(self, index: int) -> tuple[int, int]:
        """Returns the offset and the size of a chunk in bytes."""
        offset = index * self.chunk_bytes
        return offset, min(self.chunk_bytes, self.size_bytes - offset)


def kept_as(entry: FileEntry, chunk_bytes: int) -> str:
    """Returns the name under which the content of a file is stored. The name is the hash of the file's only
    chunk or of its layout, or an empty text for an empty file."""
    if len(entry.chunks) > 1:
        return layout_of(entry, chunk_bytes).name
    return entry.chunks[0] if entry.chunks else ""


def layout_of(entry: FileEntry, chunk_bytes: int) -> FileLayout:
    """Returns the layout of a file in a manifest with chunks of this size."""
    return FileLayout(size_bytes=entry.size_bytes, chunk_bytes=chunk_bytes, chunks=entry.chunks)


def layouts(manifest: Manifest) -> dict[str, FileLayout]:
    """Returns the layouts of the large files in the manifest, by their names."""
    all_layouts = (
        layout_of(entry, manifest.chunk_bytes) for entry in manifest.files if len(entry.chunks) > 1
    )
    return {layout.name: layout for layout in all_layouts}


class _PartialFile:
    """A large file that is incomplete. `absent` are the positions of chunks that have not arrived. `reused`
    is true if the file existed before a restart, so that it must be read to find the chunks that have not
    arrived."""

    def __init__(self, layout: FileLayout, *, whole: bool = False, found: bool = False) -> None:
        self.layout, self.name, self.whole, self.reused = layout, layout.name, whole, found
        self.places: dict[str, list[int]] = {}
        for index, chunk in enumerate(layout.chunks):
            self.places.setdefault(chunk, []).append(index)
        self.absent = set[int]() if whole else set(range(len(layout.chunks)))
        self.writers, self.gone, self.readers = 0, False, False
        # one writer at a time, because the written content may turn out to be wrong
        self.flowing = set[int]()
        # waits happen at this lock, because waits in the kernel would use the CPU
        self.writing = threading.Lock()

    def fitting(self, chunk: str, size_bytes: int) -> list[int]:
        """Returns the positions at which the chunk can be written: no chunk has arrived there, the size
        matches, and no thread is writing there."""
        free = self.absent - self.flowing
        return [at for at in self.places[chunk] if at in free and self.layout.range_of(at)[1] == size_bytes]

    def claim(self, chunk: str, size_bytes: int) -> int | None:
        """Reserves a position for a chunk that arrives piece by piece.

        Returns None while the existing content of the file is being read, because that content could be
        accepted and then be overwritten.
        """
        free = [] if self.reused or self.readers else self.fitting(chunk, size_bytes)
        if not free:
            return None
        self.flowing.add(free[0])
        self.writers += 1
        return free[0]

    def place(self, chunk: str) -> int | None:
        """Returns a position at which the chunk has arrived, or None."""
        return next((at for at in self.places[chunk] if at not in self.absent), None)


class LargeFiles:
    """The large files of a ChunkStore. An incomplete file is stored as `coming/NAME`, a complete file as
    `large/NAME`, and the layout of a file as `layouts/NAME`.

    This class is safe to call from several threads. If the process is killed, an incomplete file contains
    some of its chunks. When an incomplete file is expected again, the hashes of its content show which
    chunks it contains.
    """

    def __init__(self, folder: Path) -> None:
        """Deletes files that have no layout. Raises OSError."""
        self._large, self._coming = folder / "large", folder / "coming"
        self._layouts = folder / "layouts"
        self._changed = threading.Condition()
        self._files: dict[str, _PartialFile] = {}
        self._holders: dict[str, list[_PartialFile]] = {}
        for made in (self._large, self._coming, self._layouts):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._open()

    def _open(self) -> None:
        whole = {path.name for path in self._large.iterdir()}
        existing = whole | {path.name for path in self._coming.iterdir()}
        for path in tuple(self._layouts.iterdir()):
            with suppress(InputError):
                layout = codec.decode(path.read_bytes(), FileLayout)
                if layout.name == path.name and path.name in existing:
                    self._add(_PartialFile(layout, whole=path.name in whole, found=path.name not in whole))
        for folder in (self._large, self._coming, self._layouts):
            for path in tuple(folder.iterdir()):
                if path.name not in self._files:
                    path.unlink()

    def _add(self, file: _PartialFile) -> None:
        self._files[file.name] = file
        for chunk in file.places:
            self._holders.setdefault(chunk, []).append(file)

    def sizes(self) -> dict[str, int]:
        """Returns the size in bytes of each complete file."""
        return {name: file.layout.size_bytes for name, file in self._files.items()}

    def path(self, name: str) -> Path | None:
        """Returns the path of a file, complete or not, or None if there is no large file with this name."""
        file = self._files.get(name)
        return None if file is None else self._path(file)

    def _path(self, file: _PartialFile) -> Path:
        return (self._large if file.whole else self._coming) / file.name

    def is_coming(self, name: str) -> bool:
        """Returns whether the file is incomplete, or is not synced to the disk yet."""
        file = self._files.get(name)
        return file is not None and not file.whole

    def absent_bytes(self, name: str) -> int:
        """Returns the number of bytes of the file that have not arrived, or 0 if the file is complete or
        unknown."""
        file = self._files.get(name)
        if file is None or file.whole:
            return 0
        return sum(file.layout.range_of(at)[1] for at in tuple(file.absent))

    def touch(self, name: str) -> bool:
        """Returns whether the file is unchanged since it was written. If the file is unchanged, its time of
        use is set to now. Raises OSError."""
        with self._changed:
            file = self._files.get(name)
            return file is not None and touch(self._path(file), sealed=file.whole)

    def holders(self, chunk: str) -> list[str]:
        """Returns the files in which the chunk has arrived."""
        # the usual case is checked without the lock, because for many small chunks each lock costs time
        if chunk not in self._holders:
            return []
        with self._changed:
            return [file.name for file in self._holders_of(chunk) if file.place(chunk) is not None]

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def begin(self, layout: FileLayout) -> None:
        """Expects a file: after this call, chunks that arrive are written to their positions in this file.
        Raises OSError."""
        file = _PartialFile(layout)
        (self._layouts / file.name).write_bytes(codec.encode(layout))
        self._path(file).touch(mode=0o600)
        with self._changed:
            self._add(file)

    def lacking(self, name: str) -> tuple[str, ...]:
        """Returns the chunks of the file that have not arrived, each of them once, or none if the file is
        complete. Raises OSError."""
        file = self._files[name]
        if file.reused:
            self._recognise(file)
        with self._changed:
            self._changed.wait_for(lambda: file.absent or file.whole or file.gone)
            return tuple(dict.fromkeys(file.layout.chunks[at] for at in sorted(file.absent)))

    def _recognise(self, file: _PartialFile) -> None:
        """Finds the chunks that a killed process wrote to the file."""
        with self._changed:
            file.writers += 1
            file.reused, file.readers = False, True
        present = list[int]()
        try:
            present = _whole_chunks(self._path(file), file.layout)
        finally:
            self._wrote(file, present)
            file.readers = False

    def take(self, chunk: Chunk) -> bool:
        """Writes a verified chunk to all positions at which it is expected. Returns whether any large file
        contains the chunk now.

        Raises OSError.
        """
        if chunk.hash not in self._holders:
            return False
        with self._changed:
            files = self._holders_of(chunk.hash)
        written = [self._write(file, chunk) for file in files]
        return any(written)

    def _write(self, file: _PartialFile, chunk: Chunk) -> bool:
        with self._changed:
            places = file.fitting(chunk.hash, len(chunk.data))
            if not places:
                return file.place(chunk.hash) is not None
            file.writers += 1
        done = list[int]()
        try:
            with file.writing:
                _put(self._path(file), file.layout, places, chunk.data)
            done = places
        except FileNotFoundError:  # the file may have been evicted since it was chosen
            return False
        finally:
            self._wrote(file, done)
        return True

    def receive(self, flow: ChunkStream) -> bool:
        """Writes a chunk to its expected position while the chunk arrives. Returns whether the chunk was
        expected.

        If the hash of the arrived chunk is wrong, the chunk still counts as missing. Raises DataError,
        OSError, and the errors of the stream.
        """
        if flow.hash not in self._holders:
            return False
        with self._changed:
            claims = ((file, file.claim(flow.hash, flow.size_bytes)) for file in self._holders_of(flow.hash))
            file, at = next(((file, at) for file, at in claims if at is not None), (None, None))
        if file is None or at is None:
            return False
        done = list[int]()
        try:
            descriptor = os.open(self._path(file), os.O_WRONLY)
        except FileNotFoundError:  # the file may have been evicted since it was chosen
            self._wrote(file, done, flowed=at)
            return False
        try:
            _pour(descriptor, file.layout.range_of(at), flow, file.writing)
            done = [at]
        finally:
            os.close(descriptor)
            self._wrote(file, done, flowed=at)
        self._repeat(flow)
        return True

    def _holders_of(self, chunk: str) -> tuple[_PartialFile, ...]:
        return tuple(self._holders.get(chunk, ()))

    def _repeat(self, flow: ChunkStream) -> None:
        """Copies an arrived chunk to the other files that expect it."""
        with self._changed:
            free = [file for file in self._holders_of(flow.hash) if file.fitting(flow.hash, flow.size_bytes)]
        data = self.read(flow.hash) if free else None
        if data is not None:
            again = Chunk(hash=flow.hash, data=data)
            again.check()
            self.take(again)

    def _wrote(self, file: _PartialFile, done: Sequence[int], flowed: int | None = None) -> None:
        """Completes the file when its last chunk was written. After the last chunk, no thread writes to the
        file."""
        with self._changed:
            file.writers -= 1
            file.flowing.discard(flowed)
            file.absent.difference_update(done)
            if file.absent or file.writers or file.whole or file.gone:
                return
        try:
            seal(self._path(file))
            with self._changed:
                self._path(file).rename(self._large / file.name)
                file.whole = True
        except OSError:
            self.remove(file.name)
            raise
        finally:
            with self._changed:
                self._changed.notify_all()

    def read(self, chunk: str) -> bytes | None:
        """Returns the content of the chunk from one of the large files that contain it. Raises OSError."""
        if chunk not in self._holders:
            return None
        with self._changed:  # the file must not be renamed before it is open
            candidates = [(file, file.place(chunk)) for file in self._holders_of(chunk)]
            file, at = next(((file, at) for file, at in candidates if at is not None), (None, None))
            if file is None or at is None:
                return None
            data = self._path(file).open("rb", buffering=0)
        with data:
            if file.whole and os.fstat(data.fileno()).st_mtime_ns != SEALED_NS:
                return None  # not read, because the time shows that another program changed the file
            offset, size = file.layout.range_of(at)
            return os.pread(data.fileno(), size, offset)

    def remove(self, name: str) -> None:
        """Deletes the file. Other hard links to the content of the file are not deleted. Raises OSError."""
        with self._changed:
            file = self._files.pop(name, None)
            if file is None:
                return
            for chunk in file.places:
                self._holders[chunk].remove(file)
                if not self._holders[chunk]:
                    del self._holders[chunk]
            file.gone = True
            self._changed.notify_all()
            for folder in (self._large, self._coming, self._layouts):
                (folder / name).unlink(missing_ok=True)


def _put(path: Path, layout: FileLayout, places: Sequence[int], data: Content) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for at in places:
            offset, size = layout.range_of(at)
            write_at(descriptor, data, offset)
            begin_sync(descriptor, offset, size)
    finally:
        os.close(descriptor)


def _pour(descriptor: int, place: tuple[int, int], flow: ChunkStream, writing: threading.Lock) -> None:
    offset, size = place
    hashed, end = blake3(), offset + size
    for piece in flow.pieces:
        hashed.update(piece)
        rest = memoryview(piece)[: end - offset]
        with writing:
            write_at(descriptor, rest, offset)
        offset += len(rest)
    if hashed.hexdigest() != flow.hash:
        raise damaged(flow.hash)
    begin_sync(descriptor, place[0], size)


def _whole_chunks(path: Path, layout: FileLayout) -> list[int]:
    result = list[int]()
    with path.open("rb", buffering=0) as data:
        end = os.fstat(data.fileno()).st_size
        for at, chunk in enumerate(layout.chunks):
            offset, size = layout.range_of(at)
            if offset + size <= end and matches(os.pread(data.fileno(), size, offset), chunk):
                result.append(at)
    return result
