"""Recovers a home: it restores records that the record store has lost, from the files in the storage root.

Nothing is deleted: a record store that cannot be used is kept beside its replacement.
"""

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from gridmill.bootstrap.home_lock import lock_home, open_store_as_it_is
from gridmill.control.recovery import LOST, numbers, restoration
from gridmill.domain.frozen import dataclass
from gridmill.domain.recovery import RecoveryReport, RootRecords
from gridmill.domain.site import LOCAL, Site
from gridmill.errors import HomeInUseError, InputError, StorageError
from gridmill.plugins import find
from gridmill.ports.store import Noun, Put, Store
from gridmill.settings import Settings, is_farm
from gridmill.storage.recovery import DeclaredCopies, marks_of, read_root, reclaim
from gridmill.stores.salvage import Salvage, salvage

_AT_ONCE = 500
_BESIDE = ("", "-wal", "-shm")
"""The endings in the names of the files that belong to a SQLite database."""
_NOTHING = Salvage(nouns=(), counters={})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """The condition of the record store. `usable` is true if the store is kept, and the missing records are
    added to it. `read` is true if the store's readable records belong to this home. `forgotten` is true if
    the store does not have all numbers that were used for ids."""

    words: str
    usable: bool
    read: bool = True
    forgotten: bool = True


def recover(settings: Settings, *, dry_run: bool) -> RecoveryReport:
    """Restores the records that the record store does not have. Raises HomeInUseError while a control node
    is running, StorageError, and InputError on the machine of a farm."""
    if is_farm(settings.home):
        raise InputError(f"{settings.home} is the home of a farm, which stores no versions")
    try:
        lock = lock_home(settings.home)
    except HomeInUseError as error:
        raise HomeInUseError(error.message, hint="Stop the control node first: `gridmill down`.") from error
    with closing(lock):
        marks = marks_of(settings.root, settings.home)
        condition, mark = _look(settings, marks)
        found = read_root(settings.root, settings.home, mark or max(marks, key=marks.__getitem__, default=""))
        if condition.usable:
            with closing(open_store_as_it_is(settings)) as store:
                return _fill(settings, store, found, condition, _NOTHING, dry_run=dry_run)
        return _replace(settings, found, condition, dry_run=dry_run)


def _look(settings: Settings, marks: Mapping[str, int]) -> tuple[_Condition, str]:
    """Returns the condition of the record store, and the text that identifies the store if the store belongs
    to this home."""
    path = settings.home / "store.db"
    if not settings.store and not path.exists():
        return _Condition(words="the store is missing", usable=False, read=False), ""
    if not settings.store and path.stat().st_size == 0:
        return _Condition(words="the store is empty (0 bytes)", usable=False, read=False), ""
    try:
        with closing(open_store_as_it_is(settings)) as store:
            damaged = [one for one in store.check() if not one.told]
            site = store.get(Site, LOCAL)
            known = any(store.counters())
    except StorageError as error:
        if settings.store or "gridmill recover" not in (error.hint or ""):
            raise
        return _Condition(words=f"the store cannot be used: {error.message}", usable=False), ""
    mark = site.noun.settings.get("store", "") if site and isinstance(site.noun, Site) else ""
    if any(one.noun == "File" for one in damaged):
        return _Condition(words="the structure of the store is damaged", usable=False), mark
    if not mark and not damaged and not known:
        return _Condition(words="the store has no records", usable=True), ""
    if mark and marks and mark not in marks:
        if settings.store:
            raise StorageError(
                "the store belongs to another home, not to this home",
                hint="Set GRIDMILL_STORE to the database of this home, or to an empty one.",
            )
        return _Condition(words="the store belongs to another home", usable=False, read=False), ""
    words = f"the store has {len(damaged)} damaged records" if damaged else "the store can be used"
    return _Condition(words=words, usable=True, forgotten=False), mark


def _replace(
    settings: Settings, found: RootRecords, condition: _Condition, *, dry_run: bool
) -> RecoveryReport:
    """Replaces a record store that cannot be used with a new store. The new store gets all records that can
    be read from the old store."""
    path = settings.home / "store.db"
    with _workplace(settings.home) as folder:
        salvaged = _salvaged(path, folder) if condition.read else _NOTHING
        new = folder / "store.db"
        with closing(find("stores", "sqlite")(new)) as store:
            _put(store, salvaged.nouns)
            store.use_numbers(salvaged.counters)
            report = _fill(settings, store, found, condition, salvaged, dry_run=dry_run)
        if dry_run:
            return report
        kept = _keep_aside(path)
        os.replace(new, path)
    return RecoveryReport(
        dry_run=False,
        found=report.found,
        kept_at=str(kept) if kept else "",
        salvaged=report.salvaged,
        restored=report.restored,
        present=report.present,
        problems=report.problems,
        lost=report.lost,
    )


@contextmanager
def _workplace(home: Path) -> Iterator[Path]:
    """Makes a temporary folder in the home, which is deleted at the end of the `with` block."""
    folder = Path(tempfile.mkdtemp(prefix=".recover-", dir=home))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _salvaged(path: Path, folder: Path) -> Salvage:
    copy = folder / "damaged.db"
    for end in _BESIDE:
        source = path.with_name(path.name + end)
        if source.exists():
            shutil.copyfile(source, copy.with_name(copy.name + end))
    return salvage(copy)


def _keep_aside(path: Path) -> Path | None:
    """Renames the files of the record store. The main file is renamed last, so that it still has its old
    name if the call is interrupted."""
    number = 1
    while any(path.with_name(f"{path.name}.lost-{number}{end}").exists() for end in _BESIDE):
        number += 1
    kept = path.with_name(f"{path.name}.lost-{number}")
    for end in reversed(_BESIDE):
        source = path.with_name(path.name + end)
        if source.exists():
            source.rename(kept.with_name(kept.name + end))
    return kept if kept.exists() else None


def _fill(
    settings: Settings,
    store: Store,
    found: RootRecords,
    condition: _Condition,
    salvaged: Salvage,
    *,
    dry_run: bool,
) -> RecoveryReport:
    """Adds the records that the record store does not have, and then makes this store the owner of the
    home's pipelines."""
    missing = restoration(found, store, time.time())
    if not dry_run:
        _put(store, missing.nouns)
        store.use_numbers(numbers(found, forgotten=condition.forgotten))
        if found.mark:
            reclaim(settings.root, settings.home, found.mark)
            DeclaredCopies(settings.root, found.mark).keep((*missing.nouns, *salvaged.nouns))
    counts = Counter(type(noun).__name__ for noun in salvaged.nouns)
    untold = tuple(
        (one.name, f"the record was damaged: {one.problem}")
        for one in store.damage()
        if not one.told and one.name not in {f"{type(n).__name__} {_key(n)}" for n in missing.nouns}
    )
    if not dry_run:
        store.mark_told()
    return RecoveryReport(
        dry_run=dry_run,
        found=condition.words,
        salvaged=dict(sorted(counts.items())),
        restored=missing.names,
        present=missing.present,
        problems=(*missing.problems, *untold),
        lost=LOST if condition.forgotten else (),
    )


def _key(noun: Noun) -> str:
    return str(getattr(noun, "id", None) or getattr(noun, "name", ""))


def _put(store: Store, nouns: Sequence[Noun]) -> None:
    for first in range(0, len(nouns), _AT_ONCE):
        store.commit([Put(noun=noun, expected=0) for noun in nouns[first : first + _AT_ONCE]])
