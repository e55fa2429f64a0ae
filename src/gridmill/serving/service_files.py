"""The files in the folder of a service: the order, the report, and the lock of the parent process."""

import fcntl
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO

from gridmill.codec import decode, encode
from gridmill.domain.service_features import VIEWS_FILE, ViewOrders
from gridmill.domain.serving import ORDER_FILE, REPORT_FILE, ServiceOrder, ServiceReport
from gridmill.errors import ConflictError, InputError

KEYS_FILE = "api-keys"
"""The file of API keys that the parent process writes."""
_LOCK_FILE = "parent.lock"


class OrderFile:
    """The file with the order of a service, which is read again when it changes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ORDER_FILE
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> ServiceOrder | None:
        """Return the order if the file changed since the last call. Raises InputError if it cannot be
        read."""
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen == self._seen:
                return None
            self._seen = seen
            order = decode(self._path.read_bytes(), ServiceOrder)
        except OSError as error:
            raise InputError(f"the order cannot be read: {self._path}: {error.strerror}") from error
        check_order(order, str(self._path))
        return order


def is_calibration(folder: Path) -> bool:
    """Return whether the order in the folder requests a calibration. Raises InputError."""
    order = OrderFile(folder).changed()
    return order is not None and order.calibrates


def check_order(order: ServiceOrder, place: str) -> None:
    """Raise InputError if an order cannot be executed."""
    if not order.versions and order.upstream is None:
        raise InputError("the order has no versions", place=place)
    labels = [version.label for version in order.versions]
    if len(set(labels)) != len(labels):
        raise InputError("two versions have the same label", place=place)
    least = {"replicas": 0, "threads": 1, "max_batch": 1, "max_concurrent": 1, "queue_limit": 0}
    for name, minimum in least.items():
        if getattr(order, name) < minimum:
            raise InputError(f"{name}: {getattr(order, name)} is less than {minimum}", place=place)
    for name in ("timeout_seconds", "max_body_bytes", "hang_seconds", "start_seconds", "max_failures"):
        if getattr(order, name) <= 0:
            raise InputError(f"{name}: {getattr(order, name)} is not more than 0", place=place)


def write_order(folder: Path, order: ServiceOrder) -> None:
    """Write an order atomically. The parent process of the service reads it within a second."""
    replace_file(folder / ORDER_FILE, encode(order))


def write_api_keys(folder: Path, order: ServiceOrder) -> None:
    """Write the file of API keys if the order has them. Raises InputError if the file cannot be written."""
    if order.api_keys is None:
        return
    path = folder / KEYS_FILE
    try:
        replace_file(path, "".join(f"{line}\n" for line in order.api_keys).encode())
    except OSError as error:
        raise InputError(f"the API keys cannot be written: {path}: {error.strerror}") from error


def api_keys_file(folder: Path, order: ServiceOrder) -> Path | None:
    """Return the file with the hashes of the API keys of a service; None if it needs no key."""
    if order.api_keys is not None:
        return folder / KEYS_FILE
    return Path(order.api_keys_file) if order.api_keys_file else None


def write_report(folder: Path, report: ServiceReport) -> None:
    """Write a report atomically. If the disk is full, the earlier report stays."""
    with suppress(OSError):
        replace_file(folder / REPORT_FILE, encode(report))


def read_report(folder: Path) -> ServiceReport | None:
    """Return the newest report, or None if there is none that can be read."""
    with suppress(OSError, InputError):
        return decode((folder / REPORT_FILE).read_bytes(), ServiceReport)
    return None


def lock_folder(folder: Path) -> IO[bytes]:
    """Return the lock of the parent process, which is held until the file is closed. Raises
    ConflictError."""
    file = (folder / _LOCK_FILE).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConflictError(
            f"another process serves {folder}",
            hint="End it with SIGTERM, or change its order in service.json.",
        ) from error
    return file


def view_report_file(folder: Path, view: str) -> Path:
    """Return the file of the report of a view, in the folder of the service."""
    return folder / f"view-{sha256(view.encode()).hexdigest()[:16]}.json"


def write_views(folder: Path, orders: ViewOrders) -> None:
    """Write the desired content of the views atomically. Their processes read it within a moment."""
    replace_file(folder / VIEWS_FILE, encode(orders))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
