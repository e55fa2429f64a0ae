"""Makes wheels of the packages with which this control node runs, so that a rented machine without a package
index gets exactly these versions.

A wheel is made from the files that the `RECORD` of the installed package lists (PyPA, "Recording installed
projects" and "Binary distribution format"). Scripts of entry points are left out, because pip makes them
again. The wheels are cached in a folder of the home.
"""

import base64
import csv
import io
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from functools import cache
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from types import MappingProxyType

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from gridmill.domain.frozen import dataclass
from gridmill.errors import StorageError, UnfitMachineError

_DATE = (1980, 1, 1, 0, 0, 0)
_NOT_PACKED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Files of the metadata that the installer writes."""
_BLOCK_BYTES = 1 << 20
_PYTHON_LINE = re.compile(
    rb"\A#!(/bin/sh\n'''exec' [^\n]*python[^\n]* \"\$0\" \"\$@\"\n' '''|[^\n]*python[^\n]*)"
)
"""The first lines of a script that name its Python. pip writes the form with `exec` if the path of the Python
has spaces or is long."""
_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_")
_OLD_GLIBC = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
"""The least glibc of the older platform tags (PEP 600, "Legacy manylinux tags")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePython:
    """A Python, as it describes itself: its implementation, its version (`3.11`), its architecture, the kind
    and version of its C library, and the versions of the packages that its virtual environments see, by
    canonical name. `requires` has the requirements of these packages."""

    implementation: str
    version: str
    architecture: str
    libc: str = ""
    libc_version: str = ""
    packages: Mapping[str, str]
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


DESCRIBE = r"""
import importlib.metadata as m, json, os, platform, re, sys
libc, version = platform.libc_ver()
names, requires = {}, {}
is_venv = sys.prefix != sys.base_prefix
for one in m.distributions():
    name = one.metadata["Name"]
    # an environment that is made by the Python of an environment does not see the packages of the latter
    is_hidden = is_venv and str(one.locate_file("")).startswith(sys.prefix + os.sep)
    if name and one.version and not is_hidden:
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key not in names:
            names[key], requires[key] = one.version, one.requires or []
print(json.dumps(dict(implementation=platform.python_implementation(),
    version="%d.%d" % sys.version_info[:2], architecture=platform.machine(), libc=libc,
    libc_version=version, packages=names, requires=requires)))
"""
"""The program with which a Python describes itself as a `BasePython` in JSON. It needs Python 3.8. The
packages are those that a new virtual environment of this Python sees."""


def this_python() -> BasePython:
    """Returns the description of the Python of this process, without its packages."""
    libc, libc_version = platform.libc_ver()
    return BasePython(
        implementation=platform.python_implementation(),
        version=f"{sys.version_info.major}.{sys.version_info.minor}",
        architecture=platform.machine(),
        libc=libc,
        libc_version=libc_version,
        packages={},
    )


@dataclass(slots=True)
class _Closure:
    """The packages that were found here, and the specifiers of each package so far. The packages in `present`
    are used as they are on the machine, with their requirements there."""

    present: Mapping[str, Iterable[str]]
    found: dict[str, Distribution] = field(default_factory=dict)
    specifiers: dict[str, SpecifierSet] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    seen: set[tuple[str, frozenset[str]]] = field(default_factory=set)


def needed_packages(
    name: str,
    extras: Iterable[str],
    present: Mapping[str, str],
    requires: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> tuple[Distribution, ...]:
    """Returns the installed packages that the package `name` with these extras needs, without itself, in the
    order of their names. Packages that are `present` on the machine in a version that fits are left out, also
    those that only such packages need, which `requires` has. Raises UnfitMachineError if a needed package is
    not installed here."""
    closure = _closure(distribution(name), frozenset(extras), present, requires)
    if closure.missing:
        raise UnfitMachineError(
            f"this control node does not have all packages for the machine: {', '.join(closure.missing)}",
            hint=f"Install them here: pip install {' '.join(map(repr, closure.missing))}. Or remove extras "
            "from the setting `extras` of the site.",
        )
    return tuple(one for _, one in sorted(closure.found.items()))


def _closure(
    package: Distribution,
    extras: frozenset[str],
    present: Mapping[str, str],
    requires: Mapping[str, Iterable[str]],
) -> _Closure:
    replaced: set[str] = set()
    while True:
        used = {name: requires.get(name, ()) for name in present if name not in replaced}
        closure = _Closure(present=used)
        _add_requirements(closure, package.requires or (), extras)
        unfit = {name for name in used if not _fits(present[name], closure.specifiers.get(name))}
        if not unfit:
            return closure
        # the requirements of the package that replaces it may differ
        replaced |= unfit


def _add_requirements(closure: _Closure, texts: Iterable[str], extras: frozenset[str]) -> None:
    for text in texts:
        with suppress(InvalidRequirement):  # an old package of the machine
            one = Requirement(text)
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                _add(closure, one)


def _add(closure: _Closure, wanted: Requirement) -> None:
    name = canonicalize_name(wanted.name)
    closure.specifiers[name] = closure.specifiers.get(name, SpecifierSet()) & wanted.specifier
    key = (name, frozenset(wanted.extras))
    if key in closure.seen:
        return
    closure.seen.add(key)
    texts = closure.present.get(name)
    if texts is None:
        try:
            package = closure.found[name] = distribution(name)
        except PackageNotFoundError:
            closure.missing.append(f"{wanted.name}{wanted.specifier}")
            return
        texts = package.requires or ()
    _add_requirements(closure, texts, frozenset(wanted.extras))


def _fits(version: str, specifier: SpecifierSet | None) -> bool:
    try:
        return specifier is None or specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def pip_package() -> Distribution | None:
    """Returns the installed pip, or None if this Python has none."""
    try:
        return distribution("pip")
    except PackageNotFoundError:
        return None


def misfit(here: BasePython, there: BasePython, wheels: Iterable[str]) -> str:
    """Returns why wheels that were made here cannot be used by the Python of a machine; empty if they can.
    `wheels` are the names of their files."""
    if here.architecture != there.architecture:
        ours, theirs = here.architecture, there.architecture
        return f"the machine has the architecture {theirs}, and the control node has {ours}"
    if (here.implementation, here.version) != (there.implementation, there.version):
        ours, theirs = (f"{one.implementation} {one.version}" for one in (here, there))
        return f"the machine has {theirs}, and the control node runs with {ours}"
    if here.libc != there.libc:
        theirs, ours = (one.libc or "unknown" for one in (there, here))
        return f"the C library of the machine is {theirs}, and that of the control node is {ours}"
    least, wheel = max(((_least_glibc(one), one) for one in wheels), default=((0, 0), ""))
    if there.libc_version and least > _numbers(there.libc_version):
        text = ".".join(map(str, least))
        return f"the machine has glibc {there.libc_version}, and {wheel} needs at least {text}"
    return ""


def _least_glibc(wheel: str) -> tuple[int, ...]:
    """Returns the least glibc that the platform tags of a wheel need; the tags are alternatives."""
    platforms = {tag.platform for tag in parse_wheel_filename(wheel)[3]}
    known = [
        *(tuple(map(int, found.groups())) for one in platforms if (found := _GLIBC.match(one))),
        *(least for one in platforms for old, least in _OLD_GLIBC.items() if one.startswith(f"{old}_")),
    ]
    return min(known, default=(0, 0))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def cpu_builds(packages: Iterable[Distribution]) -> tuple[str, ...]:
    """Returns the packages that are builds without GPU support, by the local part of their versions."""
    return tuple(f"{one.name} {one.version}" for one in packages if one.version.endswith("+cpu"))


def wheel_of(package: Distribution, folder: Path) -> Path:
    """Returns the wheel of an installed package in the folder, and makes it if it is missing. The wheel of an
    unchanged package is never made again. Raises UnfitMachineError for a package that was not installed by
    pip, and StorageError."""
    name = _wheel_name(package)
    path = folder / _key(package) / name
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
            draft = Path(file.name)
        try:
            _write(package, draft)
            draft.replace(path)
            _delete_others(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"the wheel of {package.name} cannot be made: {error.strerror}", place=str(error.filename or path)
        ) from error
    return path


def _delete_others(path: Path) -> None:
    """Deletes the wheels of the same package that were made before, for example of an earlier version, with
    incomplete files that a process left when it was killed."""
    for old in path.parent.parent.glob(f"*/{path.name.partition('-')[0]}-*.whl"):
        if old != path:
            shutil.rmtree(old.parent, ignore_errors=True)


def _wheel_name(package: Distribution) -> str:
    """Returns the file name of the wheel, with the tags of the wheel from which the package was installed."""
    lines = (package.read_text("WHEEL") or "").splitlines()
    values = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]
    tags = [value.split("-") for key, value in values if key == "Tag"]
    if package.read_text("RECORD") is None or not tags:
        raise UnfitMachineError(
            f"the package {package.name} of this control node was not installed by pip, so that no wheel can "
            "be made of it",
            hint="Run the control node in a virtual environment into which pip has installed Gridmill.",
        )
    if _is_editable(package):
        raise UnfitMachineError(
            f"the package {package.name} of this control node is installed from its source folder (pip "
            "install --editable), so that no wheel can be made of it",
            hint=f"Install it without --editable, or let the machine reach a package index that has "
            f"{package.name}.",
        )
    build = "".join(f"-{value}" for key, value in values if key == "Build")
    tag = "-".join(".".join(dict.fromkeys(one[index] for one in tags)) for index in range(3))
    name = re.sub(r"[-_.]+", "_", package.name)
    return f"{name}-{package.version.replace('-', '_')}{build}-{tag}.whl"


def _is_editable(package: Distribution) -> bool:
    """Returns whether the installed files only refer to a source folder (PyPA, "Direct URL")."""
    try:
        origin = json.loads(package.read_text("direct_url.json") or "{}")
    except ValueError:
        return False
    return bool(origin.get("dir_info", {}).get("editable"))


def _key(package: Distribution) -> str:
    """Returns a hash that changes with the files of the package, without reading them, and with this module,
    which may make other wheels of the same files."""
    digest = sha256(f"{_packing_hash()}\n{package.read_text('RECORD') or ''}".encode())
    for name, path in _members(package):
        try:
            state = path.stat()
        except OSError as error:
            raise UnfitMachineError(
                f"the package {package.name} of this control node is not complete: {path}: {error.strerror}",
                hint=f"Install it again: pip install --force-reinstall {package.name}=={package.version}",
            ) from error
        digest.update(f"{name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


@cache
def _packing_hash() -> str:
    return sha256(Path(__file__).read_bytes()).hexdigest()


def _members(package: Distribution) -> Iterator[tuple[str, Path]]:
    """Yields the files of a package: the names in the wheel, and the installed files."""
    root = Path(str(package.locate_file("")))
    generated = {one.name for one in package.entry_points if one.group in ("console_scripts", "gui_scripts")}
    folder = f"{re.sub(r'[-_.]+', '_', package.name)}-{package.version}.data"
    lines = (package.read_text("RECORD") or "").splitlines()
    for row in filter(None, csv.reader(lines)):  # some tools write empty lines
        relative = os.path.normpath(row[0])
        path = Path(os.path.normpath(root / relative))
        if "__pycache__" in path.parts or _is_metadata_of_installer(relative):
            continue
        if not relative.startswith(".."):
            yield relative, path
        elif path.parent.name in ("bin", "Scripts"):
            if path.name not in generated:
                yield f"{folder}/scripts/{path.name}", path
        else:
            prefix = sys.prefix if path.is_relative_to(sys.prefix) else os.path.commonpath((root, path))
            yield f"{folder}/data/{os.path.relpath(path, prefix)}", path


def _is_metadata_of_installer(relative: str) -> bool:
    parent, _, name = relative.rpartition("/")
    return parent.endswith(".dist-info") and name in _NOT_PACKED


def _write(package: Distribution, path: Path) -> None:
    rows = io.StringIO()
    table = csv.writer(rows, lineterminator="\n")
    metadata = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, source in _members(package):
            digest, size = _add_file(archive, name, source)
            table.writerow((name, f"sha256={digest}", size))
            if name.endswith(".dist-info/METADATA"):
                metadata = name.rpartition("/")[0]
        record = f"{metadata}/RECORD"
        table.writerow((record, "", ""))
        archive.writestr(zipfile.ZipInfo(record, _DATE), rows.getvalue())


def _add_file(archive: zipfile.ZipFile, name: str, source: Path) -> tuple[str, int]:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.external_attr = (source.stat().st_mode & 0o777 | 0o100000) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.file_size = source.stat().st_size
    digest, size = sha256(), 0
    with source.open("rb") as file, archive.open(entry, "w") as target:
        while block := file.read(_BLOCK_BYTES):
            block = _with_plain_python(block) if size == 0 and "/scripts/" in name else block
            target.write(block)
            digest.update(block)
            size += len(block)
    return base64.urlsafe_b64encode(digest.digest()).decode().rstrip("="), size


def _with_plain_python(block: bytes) -> bytes:
    """Replaces the path of this Python in the first line of a script, which pip then replaces again."""
    return _PYTHON_LINE.sub(b"#!python", block)
