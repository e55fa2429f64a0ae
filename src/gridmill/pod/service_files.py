"""The files through which a pod and the process of a service exchange the order and the report of the
service."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gridmill.codec import decode, encode
from gridmill.domain.frozen import replace
from gridmill.domain.service_features import VIEWS_FILE, ViewOrders
from gridmill.domain.serving import ORDER_FILE, REPORT_FILE, ServedVersion, ServiceOrder
from gridmill.errors import GridmillError

LOOK_SECONDS = 0.25
"""The interval in seconds at which the pod looks for another report."""
MOST_BYTES = 256 * 1024
"""The largest report that is sent to the control node."""
_ALWAYS_NEW = "written_at"
_OFTEN_NEW = "memory_bytes"


class ServiceFiles:
    """The order and the reports of one service. `due` is the monotonic time in seconds of the next look for a
    report."""

    def __init__(self, folder: Path, now: float) -> None:
        self.due = now + LOOK_SECONDS
        self._folder = folder
        self._seen: tuple[int, int] = (0, 0)
        self._sent: object = None

    def write(self, order: ServiceOrder, views: ViewOrders | None) -> None:
        """Writes the desired content of the views, if there are any, and then the order, because the process
        reads the views when it has read an order. An order is not written if the file already has one of
        this generation or a later one. Copies of views are in the folder of the service. Raises OSError."""
        if views is not None:
            here = tuple(replace(one, folder=self._placed(one.folder)) for one in views.views)
            self._replace(self._folder / VIEWS_FILE, encode(replace(views, views=here)))
        path = self._folder / ORDER_FILE
        if self._generation(path) >= order.generation:
            return
        self._replace(path, encode(order.changed(self._with_view)))

    def _with_view(self, version: ServedVersion) -> ServedVersion:
        return replace(version, view=self._placed(version.view)) if version.view else version

    def _placed(self, view: str) -> str:
        """Returns the absolute path of a view, which may be relative to the folder of the service."""
        return str(self._folder / view)

    def _replace(self, path: Path, content: bytes) -> None:
        partial = path.with_name(f".{path.name}.new")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(partial, path)

    def _generation(self, path: Path) -> int:
        try:
            return decode(path.read_bytes(), ServiceOrder).generation
        except (OSError, GridmillError):
            return 0

    def look(self, now: float) -> Mapping[str, Any] | None:
        """Returns the report if it has changed since the last call. Changes of the time of the report and of
        the memory of its replicas are ignored, because they change every few seconds."""
        self.due = now + LOOK_SECONDS
        path = self._folder / REPORT_FILE
        try:
            found = path.stat()
            if self._seen == (found.st_ino, found.st_mtime_ns) or found.st_size > MOST_BYTES:
                return None
            report = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return None
        self._seen = (found.st_ino, found.st_mtime_ns)
        lasting = _lasting(report)
        if not isinstance(report, dict) or lasting == self._sent:
            return None
        self._sent = lasting
        return report


def _lasting(value: Any) -> Any:  # noqa: ANN401  JSON
    if isinstance(value, list):
        return [_lasting(one) for one in value]
    if isinstance(value, dict):
        return {name: _lasting(one) for name, one in value.items() if name not in (_ALWAYS_NEW, _OFTEN_NEW)}
    return value
