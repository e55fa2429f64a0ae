"""Keeps one view of a service complete and fresh. For replicas at another site, a process at home also writes
the files that are sent, and a process at the other site makes the view from these files.

The process `python -m gridmill.serving.view_keeper FOLDER VIEW PARENT` reads the file `views.json` in the
folder of the service when it changes. It builds the view, or applies the changes of the tables, and writes a
report. It ends with the parent process of the service.
"""

import argparse
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import replace
from gridmill.domain.service_features import (
    SENT_FILE,
    SENT_FOLDER,
    VIEWS_FILE,
    SentView,
    TableVersion,
    ViewMode,
    ViewOrder,
    ViewOrders,
    ViewReport,
    ViewStatus,
)
from gridmill.errors import DataError, GridmillError, explained
from gridmill.online.build import ViewLimits, build_view
from gridmill.online.definition import OnlineDefinition, load_definition
from gridmill.online.refresh import refresh_view
from gridmill.online.row_codec import DamagedViewError
from gridmill.online.sent_files import (
    LateFileError,
    end_sending,
    note_damage,
    read_sent_files,
    receive_view,
    write_sent_files,
)
from gridmill.online.view import MissingViewError, has_file, is_marked_damaged, open_view
from gridmill.process_log import BoundedHandler
from gridmill.serving.parent_process import end_with_parent
from gridmill.serving.service_files import replace_file, view_report_file
from gridmill.telemetry import turn_off_telemetry

LOOK_SECONDS = 0.05
SHARED_LOOK_SECONDS = 1.0
"""The interval in seconds between two looks at files of the home in a network file system."""
RETRY_SECONDS = 2.0
LATE_SECONDS = 120.0
"""For this time, a file of the home that is not complete is no problem. NFS keeps what it knows of a folder
for up to 60 s."""
MEMORY_BYTES = 512 * 2**20
_LOG = logging.getLogger(__name__)


class ViewKeeper:
    """Keeps the view in the folder `view` as `views.json` in the folder of the service states."""

    def __init__(self, folder: Path, view: str, clock: Callable[[], float] = time.time) -> None:
        self._orders_file, self._report_file = folder / VIEWS_FILE, view_report_file(folder, view)
        self._view, self._clock = view, clock
        self._seen: tuple[int, int] | None = None
        self._definition: OnlineDefinition | None = None
        self._retry_at = math.inf
        self._late_since: float | None = None
        self._shared = Path()
        self._shared_seen: tuple[int, int] | None = None
        self._shared_look_at = math.inf
        self._received: SentView | None = None
        self.report = ViewReport(folder=view)

    def tick(self) -> bool:
        """Read the orders, and bring the view to the newest versions. Return whether anything was done."""
        try:
            stat = self._orders_file.stat()
        except OSError:
            return False
        seen = (stat.st_ino, stat.st_mtime_ns)
        is_retry = self._clock() >= self._retry_at
        if seen == self._seen and not (is_retry or self._is_lost() or self._is_shared_new()):
            return False
        self._seen, self._retry_at = seen, math.inf
        self._bring()
        return True

    def _is_lost(self) -> bool:
        """Return whether a complete view is damaged or was removed since the last look."""
        view = Path(self._view)
        is_whole = self.report.is_complete and not self.report.problem
        return is_whole and (is_marked_damaged(view) or not has_file(view))

    def _is_shared_new(self) -> bool:
        """Return whether the home has written another description of its files. NFS looks for a newer file
        only if a file is opened."""
        if self._clock() < self._shared_look_at:
            return False
        self._shared_look_at = self._clock() + SHARED_LOOK_SECONDS
        try:
            with (self._shared / SENT_FILE).open("rb") as file:
                stat = os.fstat(file.fileno())
        except OSError:
            return False
        seen, before = (stat.st_ino, stat.st_mtime_ns), self._shared_seen
        self._shared_seen = seen
        return seen != before

    def _bring(self) -> None:
        try:
            orders = decode(self._orders_file.read_bytes(), ViewOrders)
            order = next((one for one in orders.views if one.folder == self._view), None)
            if order is not None:
                self._note_versions(order, orders.checked_at)
                if order.mode is ViewMode.RECEIVED:
                    self._receive(order, orders)
                else:
                    self._apply(order, orders.checked_at)
            self._late_since = None
        except LateFileError as error:
            self._wait(error)
        except (GridmillError, OSError) as error:
            self._fail(error)

    def _wait(self, error: LateFileError) -> None:
        """Read a file that is not complete again later. The view serves what it holds."""
        self._late_since = self._clock() if self._late_since is None else self._late_since
        if self._clock() - self._late_since > LATE_SECONDS:
            self._fail(error)
        self._retry_at = self._clock() + RETRY_SECONDS

    def _fail(self, error: GridmillError | OSError) -> None:
        text = explained(error) if isinstance(error, GridmillError) else str(error)
        if text != self.report.problem:
            _LOG.error("the view %s: %s", self._view, text)
        self._retry_at = self._clock() + RETRY_SECONDS
        self._write(replace(self.report, state=ViewStatus.FAILING, problem=text))

    def _note_versions(self, order: ViewOrder, checked_at: float) -> None:
        wanted = {name: one.artifact for name, one in order.tables.items()}
        if wanted == self.report.held or not self.report.held:
            return
        since = self.report.behind_since or checked_at
        self._write(replace(self.report, state=ViewStatus.BEHIND, behind_since=since))

    def _apply(self, order: ViewOrder, checked_at: float) -> None:
        begin = time.monotonic()
        folder, made = Path(order.folder), self._defined(order)
        artifacts = {name: _artifact(name, one) for name, one in order.tables.items()}
        tables = made.sources(Path(order.root), artifacts)
        limits = ViewLimits(reach_back_seconds=order.reach_back_seconds, memory_bytes=MEMORY_BYTES)
        self._note_complete(folder, made)
        try:
            if is_marked_damaged(folder):
                raise DamagedViewError("a replica has found damage")
            refresh_view(folder, made.plan, tables, now=checked_at, limits=limits)
        except (MissingViewError, DamagedViewError) as error:
            _LOG.warning("the view is built: %s", error)
            build_view(folder, made.plan, tables, now=checked_at, limits=limits)
        held = {name: one.artifact for name, one in order.tables.items()}
        changed = held != self.report.held
        problem = ""
        if order.mode is ViewMode.SENT:
            problem = write_sent_files(folder, made.plan, held).problem
        else:
            end_sending(folder, made.plan)
        self._write(
            ViewReport(
                folder=self._view,
                state=ViewStatus.FRESH,
                is_complete=True,
                held=held,
                checked_at=checked_at,
                spent_seconds=time.monotonic() - begin if changed else self.report.spent_seconds,
                problem=problem,
            )
        )

    def _receive(self, order: ViewOrder, orders: ViewOrders) -> None:
        """Bring the view to the state that the home has sent. The view is behind if the home has not sent the
        newest versions yet."""
        begin, made = time.monotonic(), self._defined(order)
        folder = Path(order.folder)
        self._note_complete(folder, made)
        sent = self._shared_files(Path(order.shared)) if order.shared else order.received
        if sent is None:
            return
        if sent.problem:
            raise DataError(sent.problem, hint="Run the service at the site `local`.")
        # the clocks of the two machines differ; the time between sending and this is part of the difference
        arrived_at = self._orders_file.stat().st_mtime
        ahead = arrived_at - orders.sent_at if orders.sent_at is not None else 0.0
        files = Path(order.shared) / SENT_FOLDER / sent.series if order.shared else Path(order.files)
        try:
            receive_view(folder, made.plan, sent, files, ahead_seconds=ahead)
        except DataError:
            if order.shared:
                note_damage(files)
            raise
        self._received = sent
        changed = sent.held != self.report.held
        is_behind = sent.held != {name: one.artifact for name, one in order.tables.items()}
        self._write(
            replace(
                self.report,
                state=ViewStatus.BEHIND if is_behind else ViewStatus.FRESH,
                is_complete=True,
                held=sent.held,
                checked_at=sent.synced_at,
                behind_since=self.report.behind_since or orders.checked_at if is_behind else None,
                spent_seconds=time.monotonic() - begin if changed else self.report.spent_seconds,
                problem="",
            )
        )

    def _shared_files(self, view: Path) -> SentView | None:
        """Return what the home has written; None if there is nothing yet. A network file system can show an
        earlier description again."""
        self._shared = view
        self._shared_look_at = min(self._shared_look_at, self._clock() + SHARED_LOOK_SECONDS)
        sent, before = read_sent_files(view), self._received
        if sent is None or before is None or sent.series != before.series:
            return sent
        return before if len(sent.changes) < len(before.changes) else sent

    def _note_complete(self, folder: Path, made: OnlineDefinition) -> None:
        """Let a view serve that an earlier process has completed. It may lack the newest versions."""
        if self.report.is_complete:
            return
        with suppress(MissingViewError, DamagedViewError):
            open_view(folder, made.plan).close()
            self._write(replace(self.report, is_complete=True, state=ViewStatus.BEHIND))

    def _defined(self, order: ViewOrder) -> OnlineDefinition:
        if self._definition is None:
            try:
                self._definition = load_definition(Path(order.definition))
            except MissingViewError as error:
                if order.shared:
                    raise LateFileError(error.message) from error
                raise
        return self._definition

    def _write(self, report: ViewReport) -> None:
        self.report = report
        with suppress(OSError):
            replace_file(self._report_file, encode(report))


def _artifact(name: str, version: TableVersion) -> Artifact:
    return Artifact(id=version.artifact, name=name, number=0, output=version.output, fingerprint="")


def main() -> None:
    """Keep a view until the parent process ends."""
    parser = argparse.ArgumentParser(description="Keep one view of a service fresh.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("view")
    parser.add_argument("parent", type=int)
    given = parser.parse_args()
    end_with_parent(given.parent)
    turn_off_telemetry()
    logging.basicConfig(
        level=logging.WARNING,
        handlers=[BoundedHandler()],
        format="%(asctime)s view: %(levelname)s %(message)s",
    )
    # requests come first: new rows may wait for the processor
    os.nice(5)
    keeper = ViewKeeper(given.folder, given.view)
    while True:
        if not keeper.tick():
            time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
