"""Copies a view to files that are sent to another site, and makes the same view from these files.

At home, the folder of the view has the folder `sent` with one folder for each series, and the file
`sent.json`, which describes the newest series: a snapshot, and the changes after it. A site that has these
files makes its view from the snapshot and applies the changes in their order. If a view cannot continue with
the changes, it is made again from a newer snapshot, and the old view serves until the new one is complete.
"""

import errno
import hashlib
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from gridmill.codec import decode, encode
from gridmill.disk_space import FULL
from gridmill.domain.amounts import show_bytes
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.service_features import SENT_FILE, SENT_FOLDER, SentFile, SentView
from gridmill.errors import DataError, InputError, StorageError, UnavailableError
from gridmill.jobs.parquet import storage_errors
from gridmill.online.build import serve_built
from gridmill.online.plan import OnlinePlan
from gridmill.online.row_codec import DamagedViewError
from gridmill.online.view import (
    BUILDING,
    MissingViewError,
    ViewFile,
    ViewState,
    is_marked_damaged,
    open_view,
    writer_lock,
)

_SNAPSHOT = "snapshot"
_CHANGE = "change.sqlite"
_DAMAGED = "damaged"
_COPY_BYTES = 1 << 20
_LATE = (errno.ENOENT, errno.ESTALE)


class LateFileError(UnavailableError):
    """A file of a sent view is not complete yet. Files of a network file system become visible late on other
    machines."""

    code = "unavailable"
    default_hint = "The file is read again until it is complete."


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingLimits:
    """When a new snapshot is made, and which views are not sent.

    A view of more than `view_bytes` bytes is not sent. A new snapshot replaces the changes when there are
    more than `changes` of them, or when they have more than `changed_share` of the bytes of the snapshot and
    more than `changed_bytes` bytes.
    """

    view_bytes: int = 4 * 2**30
    changes: int = 200
    changed_share: float = 0.25
    changed_bytes: int = 16 * 2**20


def read_sent_files(folder: Path) -> SentView | None:
    """Return the newest description of the files of a view at home; None if there is none that can be
    read."""
    with suppress(OSError, InputError):
        return decode((folder / SENT_FILE).read_bytes(), SentView)
    return None


def write_sent_files(
    folder: Path,
    plan: OnlinePlan,
    held: Mapping[str, str],
    limits: SendingLimits | None = None,
) -> SentView:
    """Copy what has changed in the view to files, and return their description. `held` are the ids of the
    versions that the view holds.

    Raises MissingViewError, DamagedViewError, StorageError.
    """
    limits = limits or SendingLimits()
    with storage_errors(folder), writer_lock(folder):
        view = open_view(folder, plan, writable=True)
        try:
            sent = _files_of(folder, view, limits)
            state = view.state()
        finally:
            view.close()
        sent = replace(sent, held=held, synced_at=state.synced_at)
        draft = folder / f".{SENT_FILE}"
        draft.write_bytes(encode(sent))
        draft.replace(folder / SENT_FILE)
        return sent


def end_sending(folder: Path, plan: OnlinePlan) -> None:
    """Record no more changes of a view that is not sent any more, and delete its files. Raises
    DamagedViewError, StorageError."""
    if not (folder / SENT_FILE).exists():
        return
    with storage_errors(folder), writer_lock(folder):
        view = open_view(folder, plan, writable=True)
        try:
            view.stop_recording()
        finally:
            view.close()
        shutil.rmtree(folder / SENT_FOLDER, ignore_errors=True)
        (folder / SENT_FILE).unlink(missing_ok=True)


def _files_of(folder: Path, view: ViewFile, limits: SendingLimits) -> SentView:
    before, size_bytes = read_sent_files(folder), view.path.stat().st_size
    if size_bytes > limits.view_bytes:
        view.stop_recording()
        return SentView(
            problem=f"the view has {show_bytes(size_bytes)}, and views of more than "
            f"{show_bytes(limits.view_bytes)} are not sent to another site"
        )
    sent = _continued(folder, view, before) if before is not None else None
    if sent is None or _is_long(sent, limits):
        sent = _begun(folder, view, "" if before is None else before.series)
    return sent


def _is_long(sent: SentView, limits: SendingLimits) -> bool:
    snapshot = sent.snapshot
    changed_bytes = sum(one.size_bytes for one in sent.changes)
    most_bytes = limits.changed_share * (snapshot.size_bytes if snapshot is not None else 0)
    return len(sent.changes) > limits.changes or changed_bytes > max(limits.changed_bytes, most_bytes)


def _continued(folder: Path, view: ViewFile, before: SentView) -> SentView | None:
    """Return the series with the changes that are recorded since. The result is None if the view belongs to
    another series, or if a change or a file is missing."""
    place, files = view.place(), folder / SENT_FOLDER / before.series
    if place is None or place.series != before.series or not _are_there(files, before):
        return None
    if place.number < len(before.changes):
        return None
    new = [number for number in view.recorded() if number > len(before.changes)]
    if new != list(range(len(before.changes) + 1, place.number + 1)):
        return None
    if any(number <= len(before.changes) for number in view.recorded()):
        view.forget_changes(len(before.changes))
    return replace(before, changes=(*before.changes, *(_change(view, files, number) for number in new)))


def _are_there(files: Path, sent: SentView) -> bool:
    with suppress(OSError):
        sizes = all((files / one.name).stat().st_size == one.size_bytes for one in sent.files())
        return bool(sent.files()) and sizes and not _is_damaged(files, sent)
    return False


def note_damage(files: Path) -> None:
    """Note in the folder of a series that a file of it is damaged, so that the home reads the files again and
    begins a new series. An error is ignored, because the note is made again."""
    with suppress(OSError):
        (files / _DAMAGED).touch()


def _is_damaged(files: Path, sent: SentView) -> bool:
    """Return whether a file is damaged, if another machine has noted damage, which may be its own."""
    if not (files / _DAMAGED).exists():
        return False
    (files / _DAMAGED).unlink()
    return any(_described(files, one.name) != one for one in sent.files())


def _change(view: ViewFile, files: Path, number: int) -> SentFile:
    name = f"{number:06}.sqlite"
    draft = files / f".{name}"
    draft.unlink(missing_ok=True)
    view.write_change(number, draft)
    draft.replace(files / name)
    return _described(files, name)


def _begun(folder: Path, view: ViewFile, before: str) -> SentView:
    """Begin a new series. The files of the series before are kept, because they may just be read."""
    series, every = uuid4().hex, folder / SENT_FOLDER
    for old in every.glob("*") if every.is_dir() else ():
        if old.name != before:
            shutil.rmtree(old, ignore_errors=True)
    files = every / series
    files.mkdir(parents=True)
    name = f"{_SNAPSHOT}.sqlite"
    view.begin_series(series, files / name)
    return SentView(series=series, snapshot=_described(files, name))


def _described(files: Path, name: str) -> SentFile:
    with (files / name).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return SentFile(name=name, size_bytes=(files / name).stat().st_size, sha256=digest)


def receive_view(
    folder: Path, plan: OnlinePlan, sent: SentView, files: Path, *, ahead_seconds: float = 0.0
) -> ViewState:
    """Bring the view in `folder` to the state that a home has sent, and return its state.

    Changes that the view has are skipped, and a description that is older than the view has no effect.
    `ahead_seconds` is how much the clock of this machine is ahead of the clock of the home. Each file is
    copied to `folder` before SQLite opens it, because `files` can be in a network file system. Raises
    LateFileError if a file is not complete yet, DataError if it is damaged, MissingViewError if the view was
    made for other features, DamagedViewError, StorageError.
    """
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with writer_lock(folder):
            view = _received(folder, plan, sent)
            if view is None:
                _install(folder, plan, sent, files)
                view = open_view(folder, plan, writable=True)
            try:
                return _caught_up(folder, view, sent, files, ahead_seconds)
            finally:
                view.close()


def _received(folder: Path, plan: OnlinePlan, sent: SentView) -> ViewFile | None:
    """Open the view if it belongs to the series that was sent."""
    if is_marked_damaged(folder):
        return None
    view: ViewFile | None = None
    try:
        view = open_view(folder, plan, writable=True)
        place = view.place()
    except (MissingViewError, DamagedViewError):
        place = None
    if place is not None and place.series == sent.series:
        return view
    if view is not None:
        view.close()
    return None


def _caught_up(folder: Path, view: ViewFile, sent: SentView, files: Path, ahead_seconds: float) -> ViewState:
    place = view.place()
    number = place.number if place is not None else 0
    for one in sent.changes[number:]:
        _apply(view, folder, files, one)
    state = view.state()
    if number > len(sent.changes):
        return state
    state = replace(state, synced_at=sent.synced_at, ahead_seconds=ahead_seconds)
    with view.writing():
        view.set_state(state)
    return state


def _apply(view: ViewFile, folder: Path, files: Path, one: SentFile) -> None:
    with _copied(files, one, folder / _CHANGE) as change:
        view.apply_change(change)


def _install(folder: Path, plan: OnlinePlan, sent: SentView, files: Path) -> None:
    """Make the view from the snapshot and all changes, and let it serve when it is complete."""
    assert sent.snapshot is not None
    _remove_building(folder)
    try:
        with _copied(files, sent.snapshot, folder / BUILDING) as copy:
            _complete(copy, plan, sent, files)
            serve_built(folder)
    finally:
        # a copy that cannot be completed, because the disk is full, must not keep the disk full
        _remove_building(folder)


def _remove_building(folder: Path) -> None:
    for left in folder.glob(f"{BUILDING}*"):
        left.unlink()


def _complete(copy: Path, plan: OnlinePlan, sent: SentView, files: Path) -> None:
    try:
        view = ViewFile(copy, writable=True)
    except sqlite3.Error as error:
        raise DamagedViewError(f"the snapshot cannot be opened: {error}") from error
    try:
        view.check(plan)
        view.stop_recording()
        for one in sent.changes:
            _apply(view, copy.parent, files, one)
        view.finish()
    finally:
        view.close()


@contextmanager
def _copied(files: Path, one: SentFile, copy: Path) -> Iterator[Path]:
    """A copy of a file for the `with` block. Raises LateFileError if the file is not complete yet, and
    DataError if it is damaged."""
    copy.unlink(missing_ok=True)
    try:
        _check(files / one.name, one, _copy(files / one.name, one, copy))
        yield copy
    finally:
        copy.unlink(missing_ok=True)


def _copy(path: Path, one: SentFile, copy: Path) -> SentFile:
    """Copy a file, and return the description of what was read."""
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with path.open("rb") as source, copy.open("xb") as target:
            while part := source.read(_COPY_BYTES):
                digest.update(part)
                size_bytes += target.write(part)
    except OSError as error:
        if error.errno in _LATE:
            raise LateFileError(f"the file {path} of a sent view is not there yet") from error
        if error.errno in FULL:
            raise StorageError(
                "the disk is full, so the view is not updated",
                hint="Free some space there. The view is then updated by itself.",
                place=str(copy.parent),
            ) from error
        raise
    return SentFile(name=one.name, size_bytes=size_bytes, sha256=digest.hexdigest())


def _check(path: Path, one: SentFile, found: SentFile) -> None:
    if found.size_bytes < one.size_bytes:
        raise LateFileError(
            f"the file {path} of a sent view has {found.size_bytes} of {one.size_bytes} bytes yet"
        )
    if found != one:
        raise DataError(
            f"the file {path} of a sent view is damaged: it has {found.size_bytes} bytes, and "
            f"{one.size_bytes} bytes with another hash were sent",
            hint="If this remains, stop the service and start it again, so that the view is sent again.",
        )
