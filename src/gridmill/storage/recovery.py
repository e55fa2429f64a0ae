"""Reads the files that a storage root has in addition to the files of versions: claims, manifests, moves of
aliases, and copies of declarations.

With these files, a lost record store can be restored. This module also writes the copies of declarations.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from urllib.parse import quote

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.domain.recovery import DECLARED, Declared, RootRecords, as_declared
from gridmill.domain.storage_uri import below
from gridmill.domain.version_manifest import MANIFESTS, VersionManifest
from gridmill.errors import InputError, StorageError
from gridmill.storage.manifests import read_moves
from gridmill.storage.root import CLAIMS, runs_that_left_files
from gridmill.transfer.contents import write_whole

COPIES = "records"
"""The folder below the storage root for copies of declarations: `records/STORE/CLASS/NAME.json`. Only the
user of the home can read this folder."""
_POD = re.compile(r"(.+)-(\d+)\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim of a record store on a pipeline: the pipeline's folders below the storage root belong to the
    store with this mark, in the home at `home`."""

    pipeline: str
    mark: str
    home: str
    host: str

    def is_of(self, home: Path, root: Path) -> bool:
        """Returns whether the claim belongs to this home. If the storage root is inside the home, all its
        claims belong to this home, whatever the name of the host is."""
        same_host = self.host == gethostname() or root.is_relative_to(home)
        return self.home == str(home) and same_host


def claims(root: Path) -> Iterator[Claim]:
    """Yields all claims, sorted by the names of their pipelines."""
    for path in _children(root / CLAIMS):
        with suppress(OSError, UnicodeDecodeError):
            mark, _, where = (path / "owner").read_text().partition("\n")
            home, _, host = where.strip().rpartition(" on ")
            yield Claim(pipeline=path.name, mark=mark, home=home, host=host)


def marks_of(root: Path, home: Path) -> Mapping[str, int]:
    """Returns the marks of the home's record stores that have pipelines in the storage root, with the number
    of these pipelines."""
    counts: dict[str, int] = {}
    for claim in claims(root):
        if claim.is_of(home, root):
            counts[claim.mark] = counts.get(claim.mark, 0) + 1
    return counts


def reclaim(root: Path, home: Path, mark: str) -> None:
    """Transfers the claims on all pipelines of this home to the record store with this mark. Raises
    StorageError."""
    for claim in claims(root):
        if claim.is_of(home, root) and claim.mark != mark:
            text = f"{mark}\n{claim.home} on {claim.host}\n"
            write_whole(root / CLAIMS / claim.pipeline / "owner", text.encode())


def read_root(root: Path, home: Path, mark: str) -> RootRecords:
    """Returns the data of a home in the storage root. `mark` identifies the present record store of the
    home, or an earlier one. The function reads only names and manifests."""
    problems: list[tuple[str, str]] = []
    pipelines = [claim.pipeline for claim in claims(root) if claim.is_of(home, root) or claim.mark == mark]
    names = [
        f"{pipeline}/{job.name}" for pipeline in pipelines for job in _children(root / MANIFESTS / pipeline)
    ]
    runs = {pipeline: max(runs_that_left_files(root, pipeline), default=0) for pipeline in pipelines}
    return RootRecords(
        mark=mark,
        manifests=tuple(manifest for name in names for manifest in _manifests(root, name, problems)),
        moves=tuple(move for name in names for move in read_moves(root, name)),
        declared=tuple(_copies(root, home, mark, problems)),
        runs={pipeline: number for pipeline, number in runs.items() if number},
        deployments=_deployments(home),
        problems=tuple(problems),
    )


def _manifests(root: Path, name: str, problems: list[tuple[str, str]]) -> Iterator[VersionManifest]:
    """Yields the manifests of versions whose files exist, sorted by version number."""
    folder = root / MANIFESTS / name
    numbers = (file.name.removesuffix(".json") for file in _children(folder, folders=False))
    for number in sorted(int(one) for one in numbers if one.isdecimal()):
        try:
            manifest = decode((folder / f"{number}.json").read_bytes(), VersionManifest)
            version = manifest.version
            if (version.name, version.number) != (name, number):
                raise InputError(f"it belongs to {version.id}")
        except (OSError, InputError) as error:
            problems.append(
                (f"version {name}@{number}", f"the manifest of the version cannot be read: {error}")
            )
            continue
        if version.output.uri and not os.path.lexists(below(root, version.output.uri)):
            problems.append((f"version {version.id}", f"{version.output.uri} is not in the storage root"))
        else:
            yield manifest


def _deployments(home: Path) -> Mapping[str, int]:
    """Returns, for each resource, the highest number among its deployments whose pods left folders."""
    highest: dict[str, int] = {}
    for folder in _children(home / "pods"):
        if match := _POD.fullmatch(folder.name):
            highest[match[1]] = max(int(match[2]), highest.get(match[1], 0))
    return highest


def _children(path: Path, *, folders: bool = True) -> list[Path]:
    try:
        entries = [entry for entry in os.scandir(path) if entry.is_dir() == folders]
    except OSError:
        return []
    return sorted(Path(entry.path) for entry in entries if not entry.name.startswith("."))


def _copies(root: Path, home: Path, mark: str, problems: list[tuple[str, str]]) -> Iterator[Declared]:
    """Yields the copies of declarations: first the copies of the record store with this mark, then the
    copies of earlier stores of the same home."""
    found: dict[tuple[str, str], Declared] = {}
    for owner in (mark, *(one for one in marks_of(root, home) if one != mark)):
        for kind in DECLARED.values():
            for path in _children(root / COPIES / owner / kind.__name__, folders=False):
                try:
                    noun = decode(path.read_bytes(), kind)
                    found.setdefault((kind.__name__, path.name), noun)
                except (OSError, InputError) as error:
                    problems.append(
                        (
                            f"{kind.__name__.lower()} {path.stem}",
                            f"the copy of the record cannot be read: {error}",
                        )
                    )
    yield from found.values()


class DeclaredCopies:
    """The copies of the declarations in the record store with this mark. A copy is as durable as its record:
    it survives the end of the process. After a power failure, `gridmill up` writes missing copies again."""

    def __init__(self, root: Path, mark: str) -> None:
        self._folder = root / COPIES / mark

    @property
    def exist(self) -> bool:
        """Whether any copies exist."""
        return self._folder.is_dir()

    def keep(self, nouns: Iterable[object]) -> None:
        """Writes the declarations that differ from their copies. Raises StorageError."""
        for noun in nouns:
            declared = as_declared(noun)
            if declared is not None:
                path, data = self._path(type(declared).__name__, declared.name), encode(declared)
                if _read(path) != data:
                    self._make_folder()
                    write_whole(path, data, sync=False)

    def drop(self, keys: Iterable[tuple[type[object], str]]) -> None:
        """Deletes the copies of records that were deleted. Raises StorageError."""
        for kind, name in keys:
            if kind.__name__ in DECLARED:
                path = self._path(kind.__name__, name)
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise StorageError(f"cannot be removed: {error.strerror}", place=str(path)) from error

    def _make_folder(self) -> None:
        """Makes a folder that only this user can read, because it contains settings of sites and texts of
        pipelines."""
        with suppress(OSError):
            self._folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _path(self, kind: str, name: str) -> Path:
        return self._folder / kind / f"{quote(name, safe='')}.json"


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
