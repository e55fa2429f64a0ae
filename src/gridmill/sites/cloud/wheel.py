"""Builds a wheel of the running installation of Gridmill, so that a rented machine gets exactly this
version."""

import base64
import hashlib
import io
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import gridmill
from gridmill.domain.frozen import dataclass
from gridmill.errors import UnavailableError
from gridmill.version import __version__

_TAG = "py3-none-any"
_DATE = (1980, 1, 1, 0, 0, 0)
"""The time of each file in the wheel, so that equal files give an equal wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel: its file name, its content, and the hash of the installed files, which identifies it."""

    name: str
    content: bytes
    hash: str


def installed_hash(package: Path | None = None) -> str:
    """Returns a hash of the files of the installation. It takes some milliseconds. Raises UnavailableError
    if the files cannot be read."""
    digest = hashlib.sha256(_metadata().encode())
    for name, content in _files(package or _package()):
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def build_wheel(package: Path | None = None) -> Wheel:
    """Returns the wheel of the running installation. Raises UnavailableError if the installation has no
    metadata, or its files cannot be read, for example because it is being upgraded."""
    folder = f"gridmill-{__version__}.dist-info"
    head = f"Wheel-Version: 1.0\nGenerator: gridmill\nRoot-Is-Purelib: true\nTag: {_TAG}\n"
    files = {
        **dict(_files(package or _package())),
        f"{folder}/METADATA": _metadata().encode(),
        f"{folder}/WHEEL": head.encode(),
        f"{folder}/entry_points.txt": b"[console_scripts]\ngridmill = gridmill.__main__:program\n",
    }
    rows = [f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items()]
    files[f"{folder}/RECORD"] = "".join([*rows, f"{folder}/RECORD,,\n"]).encode()
    name = f"gridmill-{__version__}-{_TAG}.whl"
    return Wheel(name=name, content=_zipped(files), hash=installed_hash(package))


def _package() -> Path:
    return Path(gridmill.__file__).parent


def _files(package: Path) -> list[tuple[str, bytes]]:
    try:
        paths = [
            path for path in sorted(package.rglob("*")) if path.is_file() and "__pycache__" not in path.parts
        ]
        return [(f"gridmill/{path.relative_to(package)}", path.read_bytes()) for path in paths]
    except OSError as error:
        raise UnavailableError(
            f"the installation of Gridmill cannot be read: {error.filename}: {error.strerror}",
            hint="If Gridmill is being upgraded here, start the control node again afterwards.",
        ) from error


def _metadata() -> str:
    try:
        text = distribution("gridmill").read_text("METADATA")
    except (PackageNotFoundError, OSError):
        text = None
    if text is None:
        raise UnavailableError(
            "Gridmill cannot be installed on a rented machine, because this installation has no metadata",
            hint="Install Gridmill with pip, or use an image that contains Gridmill (setting `python`).",
        )
    return text


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def _zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return buffer.getvalue()
