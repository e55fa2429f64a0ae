"""Code bundles: a project folder is packed as a tar.gz file. The name of the file is a hash of its content.
If the same project is packed again, the file is the same.

The files .gitignore and .gridmillignore select the files of a project, with the rules of Git.
"""

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

from gridmill.domain.amounts import show_bytes
from gridmill.domain.frozen import dataclass
from gridmill.domain.provenance import CodeFile
from gridmill.errors import ConflictError, InputError, StorageError, UnsafePathError
from gridmill.storage.file_hashes import WHOLE, code_file, is_pipeline_file, listing_path, write_listing
from gridmill.storage.unpack import (
    FILE_MODES,
    FOLDER,
    FOLDER_MODE,
    LINK,
    MAX_BYTES,
    MAX_FILES,
    file_kind,
    hash_lines,
    line,
)
from gridmill.transfer.chunk_manifest import HashCache

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

ALWAYS = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", ".gridmill", ".DS_Store"})
BY_DEFAULT = frozenset(
    {"node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".ipynb_checkpoints"}
)
"""Folders that are excluded unless a rule (such as `!node_modules`) includes them. Files with secrets
(`.env`) are also excluded unless a rule includes them."""
_NO_SECRETS = (".example", ".sample", ".template", ".dist")
COMPILED = ".pyc"
RULE_FILES = (".gitignore", ".gridmillignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class _IgnoreRules:
    """The ignore rules of one folder, which apply to the files below the folder."""

    folder: Path
    spec: "GitIgnoreSpec"

    def ignores(self, path: Path, is_folder: bool) -> bool | None:
        """Returns True if the rules exclude the path, and False if they include it. Returns None if no rule
        matches the path."""
        relative = path.relative_to(self.folder).as_posix()
        return self.spec.check_file(relative + "/" * is_folder).include


def project_files(
    folder: Path, leave_out: Sequence[Path] = (), *, secrets: list[Path] | None = None
) -> Iterator[Path]:
    """Yields all files and symbolic links of the project, and all folders that contain no files or links.
    The result is sorted, and links are not followed.

    The rules of a deeper folder take precedence. In the same folder, .gridmillignore takes precedence over
    .gitignore. An ignored folder is not searched. The rules of parent folders apply too, up to the folder
    that contains `.git`. Virtual environments and the paths in `leave_out` are never searched. Sockets,
    pipes and devices are excluded. Files with secrets (`.env`) that are excluded without a rule are added to
    the list `secrets`. Raises InputError if a folder or a file with rules cannot be read.
    """
    left_out = frozenset(path.absolute() for path in leave_out)
    yield from _walk(folder, _rules_above(folder), left_out, [] if secrets is None else secrets)


def _walk(
    folder: Path, above: Sequence[_IgnoreRules], left_out: frozenset[Path], secrets: list[Path]
) -> Iterator[Path]:
    rules = (*above, *_rules_of(folder))
    for path in _entries(folder):
        link = path.is_symlink()
        enter = path.is_dir() and not link
        if path in left_out or _ignored(path, enter, rules, secrets):
            continue
        if enter:
            if not any((path / mark).exists() for mark in NOT_CODE):
                below = _walk(path, rules, left_out, secrets)
                yield next(below, path)
                yield from below
        elif link or path.is_file():
            yield path


NOT_CODE = ("pyvenv.cfg", "control.lock")
"""The files that identify a virtual environment or the home of a grid. Neither a virtual environment nor a
home is part of a project."""


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from error


def _ignored(path: Path, is_folder: bool, rules: Sequence[_IgnoreRules], secrets: list[Path]) -> bool:
    if path.name in ALWAYS or path.name.endswith(COMPILED):
        return True
    verdicts = (rule.ignores(path, is_folder) for rule in reversed(rules))
    verdict = next((verdict for verdict in verdicts if verdict is not None), None)
    if verdict is not None:
        return verdict
    if holds_secrets(path.name) and not is_folder:
        secrets.append(path)
        return True
    return path.name in BY_DEFAULT


def holds_secrets(name: str) -> bool:
    """Returns whether a file with this name usually contains secrets. By the convention of web tools, such
    names are `.env` and `.env.production`."""
    return name == ".env" or (name.startswith(".env.") and not name.endswith(_NO_SECRETS))


def _rules_above(folder: Path) -> tuple[_IgnoreRules, ...]:
    """Returns the rules of the parent folders, starting at the top of the Git work tree. The result is empty
    if the folder is not in a work tree."""
    chain = [folder, *folder.parents]
    top = next((number for number, place in enumerate(chain) if (place / ".git").exists()), 0)
    return tuple(rules for place in reversed(chain[1 : top + 1]) for rules in _rules_of(place))


def _rules_of(folder: Path) -> tuple[_IgnoreRules, ...]:
    lines = [line for name in RULE_FILES for line in _lines(folder / name)]
    return (_IgnoreRules(folder=folder, spec=_spec(lines, folder)),) if lines else ()


def _spec(lines: Sequence[str], folder: Path) -> "GitIgnoreSpec":
    """Returns the compiled rules. The library is loaded only if there are rules, because most project
    folders have none."""
    spec: type[GitIgnoreSpec] = import_module("pathspec").GitIgnoreSpec
    try:
        return spec.from_lines(lines)
    except ValueError as error:
        raise InputError(
            f"a rule in {' or '.join(RULE_FILES)} is not valid: {error}", place=str(folder)
        ) from error


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "surrogateescape").splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return []
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> InputError:
    """Returns the error for a file of the project that cannot be read."""
    reason = error.strerror or str(error)
    return InputError(
        f"cannot read this file for the code bundle: {reason}",
        place=str(path),
        hint="Make the file readable, or exclude it with a line in .gridmillignore.",
    )


_STILL = "Try again, or exclude files that change all the time with lines in .gridmillignore."
_PIPELINE = "pipeline"
_LEAVE_OUT = "Exclude files that jobs do not need with lines in .gridmillignore."


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle with the code of a project. `hash` depends only on the content of the bundle, `size_bytes` is
    its unpacked size, and `path` is the path of the tar.gz file, which is named by the hash. `secrets` are
    files that no rule excludes, but that were excluded because of their names (`.env`)."""

    hash: str
    files: int
    size_bytes: int
    path: Path
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _BundleEntry:
    """A file, an empty folder or a symbolic link (whose target is `link`), with its name in the bundle.
    `kind` is the letter for the type of the file that `storage.unpack.line` uses."""

    name: str
    path: Path
    kind: str
    size: int = 0
    link: str | None = None
    status: os.stat_result | None = None


def make_bundle(
    folder: Path,
    cache: Path,
    *,
    leave_out: Sequence[Path] = (),
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
    hashes: Path | None = None,
) -> Bundle:
    """Packs the project in `folder` as `cache/<hash>.tar.gz`, unless that file exists.

    Ignored files and the paths in `leave_out` are not included. The hash covers for each file its relative
    path, its content, whether it is executable, and whether only its owner can read it. A list of the files
    is stored beside the archive (`storage.file_hashes`). `hashes` is a file that caches the hashes of files,
    so that files whose size and times are unchanged are not read again. Raises InputError if a file cannot
    be read, is too large, or if there are too many files. Raises UnsafePathError if a link points outside
    the project, and StorageError if the cache cannot be written.
    """
    folder = folder.resolve()
    secrets: list[Path] = []
    project = project_files(folder, (*leave_out, cache), secrets=secrets)
    entries = _bundle_entries(folder, project, max_files)
    _check_size(entries, max_bytes)
    contents = _contents(entries, hashes)
    digest = _digest((entry, contents[entry.name][0]) for entry in entries)
    path = cache / f"{digest}.tar.gz"
    if not path.exists():
        try:
            _write_tar(entries, path, digest)
        except ConflictError:  # the hashes are deleted, because the file may also have changed before, unseen
            if hashes is not None:
                hashes.unlink(missing_ok=True)
            raise
    if not listing_path(path).exists():
        write_listing(path, (_listed(entry, *contents[entry.name]) for entry in entries))
    return Bundle(
        hash=digest,
        files=len(entries),
        size_bytes=sum(entry.size for entry in entries),
        path=path,
        secrets=tuple(secret.relative_to(folder).as_posix() for secret in secrets),
    )


def _bundle_entries(folder: Path, paths: Iterable[Path], max_files: int) -> list[_BundleEntry]:
    entries: list[_BundleEntry] = []
    for path in paths:
        if len(entries) == max_files:
            raise InputError(
                f"the project has more than {max_files} files", place=str(folder), hint=_LEAVE_OUT
            )
        entries.append(_entry(folder, path))
    return sorted(entries, key=lambda entry: entry.name)


def _entry(folder: Path, path: Path) -> _BundleEntry:
    name = path.relative_to(folder).as_posix()
    _check_name(name, path)
    if path.is_symlink():
        return _BundleEntry(name=name, path=path, kind=LINK, link=_link_inside(folder, path))
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    if stat.S_ISDIR(status.st_mode):
        return _BundleEntry(name=name, path=path, kind=FOLDER)
    kind = file_kind(status.st_mode)
    return _BundleEntry(name=name, path=path, kind=kind, size=status.st_size, status=status)


def _check_name(name: str, path: Path) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the file name {name!r} is not UTF-8", place=str(path.parent), hint=_LEAVE_OUT
        ) from error


def _link_inside(folder: Path, path: Path) -> str:
    """Returns the target of a link, relative to the link. Raises UnsafePathError if the target is outside
    the folder."""
    try:
        target = path.resolve()
        if target.is_symlink():  # checked here, because Python 3.13 and later raise no error for a loop
            raise RuntimeError("symlink loop")
    except (OSError, RuntimeError) as error:
        raise InputError("this link points to itself", place=str(path), hint=_LEAVE_OUT) from error
    if not target.is_relative_to(folder):
        raise UnsafePathError(
            f"this link points outside the project folder, to {target}",
            place=str(path),
            hint="Copy the file into the project, or exclude the link with a line in .gridmillignore.",
        )
    return os.path.relpath(target, path.parent)


def _check_size(entries: Sequence[_BundleEntry], max_bytes: int) -> None:
    size = sum(entry.size for entry in entries)
    if size <= max_bytes:
        return
    largest = sorted(entries, key=lambda entry: -entry.size)[:5]
    names = ", ".join(f"{entry.name} ({show_bytes(entry.size)})" for entry in largest)
    raise InputError(
        f"the project has {show_bytes(size)}; the limit is {show_bytes(max_bytes)}; largest: {names}",
        hint=_LEAVE_OUT,
    )


def _contents(entries: Sequence[_BundleEntry], hashes: Path | None) -> dict[str, tuple[str, bool]]:
    """Returns for each file name the hash of the content, and whether the file declares a pipeline."""
    cache = HashCache(hashes)
    cache.open(WHOLE)
    result = {entry.name: _content_of(entry, cache) for entry in entries}
    # no error, because without the cache the files are only read again the next time
    with suppress(StorageError):
        cache.save()
    return result


def _content_of(entry: _BundleEntry, cache: HashCache) -> tuple[str, bool]:
    if entry.status is None:
        return hashlib.sha256((entry.link or "").encode()).hexdigest(), False
    cached = cache.look(entry.name, entry.status)
    if cached is not None:
        return cached[0], cached[1:] == (_PIPELINE,)
    content = _content(entry.path)
    digest, pipeline = hashlib.sha256(content).hexdigest(), is_pipeline_file(entry.name, content)
    cache.keep(entry.name, entry.status, (digest, _PIPELINE) if pipeline else (digest,))
    return digest, pipeline


def _listed(entry: _BundleEntry, digest: str, pipeline: bool) -> CodeFile:
    return code_file(entry.name, entry.kind, digest, pipeline=pipeline)


def _digest(contents: Iterable[tuple[_BundleEntry, str]]) -> str:
    return hash_lines(line(entry.name, entry.kind, digest) for entry, digest in contents)


def _write_tar(entries: Sequence[_BundleEntry], path: Path, expected: str) -> None:
    """Writes the archive under a temporary name and renames it at the end. Raises ConflictError if files
    have changed in the meantime, so that the hash differs."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            digest = _fill_tar(entries, file)
            file.flush()
            os.fsync(file.fileno())
        if digest != expected:
            raise ConflictError("files of the project changed while the code bundle was made", hint=_STILL)
        draft.rename(path)
    except OSError as error:
        raise StorageError(f"cannot write the code bundle: {error.strerror}", place=str(path)) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _fill_tar(entries: Sequence[_BundleEntry], file: BinaryIO) -> str:
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=5, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        return _digest((entry, _add(archive, entry)) for entry in entries)


def _add(archive: tarfile.TarFile, entry: _BundleEntry) -> str:
    info = tarfile.TarInfo(entry.name)
    if entry.link is not None:
        info.type, info.linkname, content = tarfile.SYMTYPE, entry.link, entry.link.encode()
        archive.addfile(info)
    elif entry.kind == FOLDER:
        info.type, info.mode, content = tarfile.DIRTYPE, FOLDER_MODE, b""
        archive.addfile(info)
    else:
        content = _content(entry.path)
        info.size, info.mode = len(content), FILE_MODES[entry.kind]
        archive.addfile(info, io.BytesIO(content))
    return hashlib.sha256(content).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
