"""The processes that keep the views of a service, as the parent process of the service starts and observes
them."""

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gridmill.codec import decode
from gridmill.domain.frozen import replace
from gridmill.domain.service_features import VIEW_COPIES, VIEWS_FILE, ViewOrders, ViewReport
from gridmill.domain.serving import ServedVersion, ServiceOrder
from gridmill.errors import GridmillError
from gridmill.serving.service_files import view_report_file

_LOG = logging.getLogger(__name__)
RESTART_SECONDS = 1.0
SHOWN_SECONDS = 30.0
"""The times of the last checks are rounded down to this number of seconds in reports, so that a view without
changes does not make a new report at each check."""


class ViewKeepers:
    """The processes that keep views, by the folder of the view."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._start_at: dict[str, float] = {}
        self._orders = ViewOrders()
        self._reports: dict[str, ViewReport] = {}
        self._seen: dict[Path, tuple[int, int]] = {}

    def tick(self, orders: Sequence[ServiceOrder]) -> None:
        """Start the processes for the views that the orders need, end the others, and read their reports. The
        parent process of a router keeps all views that are sent to its replicas."""
        routes = any(one.upstream is not None for one in orders)
        if not (self._processes or routes or any(_definitions(orders))):
            return
        self._read_orders()
        needed = set(_definitions(orders))
        views = {one.folder for one in self._orders.views if routes or one.definition in needed}
        for view, process in list(self._processes.items()):
            if process.poll() is not None:
                _LOG.error("the process of the view %s ended with exit code %s", view, process.returncode)
                del self._processes[view]
                self._start_at[view] = time.monotonic() + RESTART_SECONDS
            elif view not in views:
                process.terminate()
        for view in views - self._processes.keys():
            if time.monotonic() >= self._start_at.get(view, 0.0):
                self._processes[view] = _start(self._folder, view)
        for view in views:
            self._read_report(view)
        self._reports = {view: report for view, report in self._reports.items() if view in views}
        self._remove_copies(orders)

    def _remove_copies(self, orders: Sequence[ServiceOrder]) -> None:
        """Delete the copies of views that no order reads, when their processes have ended."""
        copies = self._folder / VIEW_COPIES
        if not copies.is_dir():
            return
        used = {*self._processes, *(one.view for one in _versions(orders))}
        names = {Path(view).name for view in used}
        for copy in copies.iterdir():
            if copy.name not in names:
                shutil.rmtree(copy, ignore_errors=True)

    def is_complete(self, order: ServiceOrder) -> bool:
        """Return whether all views that the order needs can serve."""
        # replicas do not wait for the view of a shadow
        reports = [self._report_of(one) for one in _definitions([replace(order, shadow=None)])]
        return all(report is not None and report.is_complete for report in reports)

    def why_shadow_waits(self, order: ServiceOrder) -> str:
        """Return why a view that the shadow of the order needs cannot serve; empty if all can. Until then,
        its answers would differ from the served answers, or fail."""
        for one in order.shadow.version.all_versions() if order.shadow is not None else ():
            report = self._report_of(one.features) if one.features else None
            if one.features and (report is None or not report.is_complete):
                why = report.problem if report is not None else ""
                return f"the view of {one.label} is not complete" + (f": {why}" if why else "")
        return ""

    def problem(self, order: ServiceOrder) -> str:
        """Return why a view that the order needs cannot be completed; empty if it can."""
        for one in (part for version in order.versions for part in version.all_versions()):
            report = self._report_of(one.features) if one.features else None
            if report is not None and not report.is_complete and report.problem:
                return f"the view of {one.label} cannot be built: {report.problem}"
        return ""

    def reports(self) -> tuple[ViewReport, ...]:
        """Return the observed states of all views."""
        return tuple(
            replace(one, checked_at=one.checked_at // SHOWN_SECONDS * SHOWN_SECONDS)
            for one in self._reports.values()
        )

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(2.0)
            process.kill()
            process.wait()
        self._processes.clear()

    def _report_of(self, definition: str) -> ViewReport | None:
        view = next((one.folder for one in self._orders.views if one.definition == definition), "")
        return self._reports.get(view)

    def _read_orders(self) -> None:
        path = self._folder / VIEWS_FILE
        if self._is_new(path):
            with suppress(OSError, GridmillError):
                self._orders = decode(path.read_bytes(), ViewOrders)

    def _read_report(self, view: str) -> None:
        path = view_report_file(self._folder, view)
        if self._is_new(path):
            with suppress(OSError, GridmillError):
                self._reports[view] = decode(path.read_bytes(), ViewReport)

    def _is_new(self, path: Path) -> bool:
        with suppress(OSError):
            stat = path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns)
            if self._seen.get(path) != seen:
                self._seen[path] = seen
                return True
        return False


def _versions(orders: Sequence[ServiceOrder]) -> list[ServedVersion]:
    """Return all versions and stages."""
    return [one for order in orders for version in order.loaded for one in version.all_versions()]


def _definitions(orders: Sequence[ServiceOrder]) -> list[str]:
    """Return the folders of the definitions of all versions and stages."""
    return [one.features for one in _versions(orders) if one.features]


def _start(folder: Path, view: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gridmill.serving.view_keeper", str(folder), view, str(os.getpid())],
        stdin=subprocess.DEVNULL,
    )
