"""Finds the files that a source names now: paths, globs and `package://NAME/PATH`."""

import glob
import os
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from gridmill.domain.source import Source
from gridmill.errors import InputError, UnsafePathError
from gridmill.ports.storage import FileStat

PACKAGE = "package://"


def describe_source(source: Source, folder: str) -> tuple[FileStat, ...]:
    """This machine's files that the source names, each once, sorted by path; relative to `folder`.

    Raises InputError when a path or glob names nothing, with what is near; UnsafePathError when a
    `package://` path leaves its package.
    """
    names: dict[str, str] = {}
    for one in source.local_paths:
        for path in _files(one, folder):
            names.setdefault(path, _name(one, path, folder))
    return tuple(_stat(path, names[path]) for path in sorted(names))


def _name(written: str, path: str, folder: str) -> str:
    """The path as the source names it: the same wherever the folder of the pipeline or the package lies."""
    if written.startswith(PACKAGE):
        package = written.removeprefix(PACKAGE).partition("/")[0]
        return f"{PACKAGE}{package}/{os.path.relpath(path, _in_package(f'{PACKAGE}{package}/.'))}"
    return path if os.path.isabs(written) else os.path.relpath(path, os.path.abspath(folder))


def _files(written: str, folder: str) -> Iterator[str]:
    path = _absolute(written, folder)
    if os.path.isdir(path):
        raise InputError(
            f"{written!r} is a folder", hint=f"Name the files in it, for example {written}/*.csv."
        )
    if os.path.exists(path):
        if not os.path.isfile(path):
            raise InputError(
                f"{written!r} is no file but a pipe, a socket or a device",
                hint="Write what it gives to a file, and name that.",
            )
        yield path
    elif not glob.has_magic(path):
        raise _missing(written, path)
    else:
        found = [match for match in glob.glob(path, recursive=True) if os.path.isfile(match)]
        if not found:
            raise _missing(written, path)
        yield from _once(found, path)


def _once(matches: Sequence[str], pattern: str) -> Iterator[str]:
    """The files that a glob matches, each once: by its own name, where that is there beside links to it.

    Links above the first `*` lead to all of them, and tell nothing.
    """
    above = next(str(one) for one in Path(pattern).parents if not glob.has_magic(str(one)))
    plain, folders = os.path.realpath(above), dict[str, str]()
    real = {match: _real(match, folders) for match in matches}

    def order(match: str) -> tuple[bool, str]:
        return real[match] != os.path.join(plain, match[len(above) :].lstrip("/")), match

    seen: set[str] = set()
    for match in sorted(matches, key=order):
        if real[match] not in seen:
            seen.add(real[match])
            yield match


def _real(path: str, folders: dict[str, str]) -> str:
    """The path without links; `folders` are those whose is known, as a folder has many files."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return os.path.join(folders[folder], name)


def _absolute(written: str, folder: str) -> str:
    if written.startswith(PACKAGE):
        return _in_package(written)
    if "://" in written:
        scheme = written.partition("://")[0]
        raise InputError(
            f"{written!r}: sources at {scheme}:// cannot be read",
            hint=f"There are file paths, {PACKAGE}, http(s)://, s3:// and gs://; databases are `sql`.",
        )
    if "\0" in written or not written:
        raise InputError(f"{written!r} is not a path")
    return os.path.normpath(os.path.join(os.path.abspath(folder), written))


def _in_package(written: str) -> str:
    name, _, inside = written.removeprefix(PACKAGE).partition("/")
    if not name.isidentifier() or not inside:
        raise InputError(f"{written!r} is not of the form {PACKAGE}NAME/PATH")
    if ".." in PurePosixPath(inside).parts or inside.startswith("/"):
        raise UnsafePathError(f"{written!r} leaves the package", hint="Name a file that the package carries.")
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"there is no Python package {name!r} for {written!r}", hint=f"pip install {name}")
    return os.path.join(next(iter(spec.submodule_search_locations)), inside)


def _missing(written: str, path: str) -> InputError:
    """Says where the path stops to exist, and what is there instead."""
    there = Path(path).parent
    while not there.is_dir():
        there = there.parent
    wanted = Path(path).relative_to(there).parts[0]
    if os.path.islink(path):
        return InputError(
            f"source {written!r} is a link to {os.readlink(path)!r}, which does not exist",
            hint="Link it to a file that is there, or name that file.",
        )
    what = "matches no file" if glob.has_magic(path) else "does not exist"
    return InputError(f"source {written!r} {what}", hint=_near(there, wanted))


def _near(there: Path, wanted: str) -> str:
    try:
        names = sorted(entry.name for entry in there.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        return f"{there} cannot be read: {error.strerror}."
    close = get_close_matches(wanted, names, n=3)
    if close:
        return f"In {there} there is {' and '.join(close)}."
    if not names:
        return f"{there} is empty."
    more = ", ..." * (len(names) > 5)
    return f"In {there} there is no {wanted}, but {', '.join(names[:5])}{more}."


def _stat(path: str, name: str) -> FileStat:
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=path) from error
    return FileStat(
        path=path,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        name=name,
    )
