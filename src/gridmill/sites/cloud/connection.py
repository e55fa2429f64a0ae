"""The connection to a prepared machine: the site of its light server, and a thread that shows the machine
that the control node is in contact with it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from gridmill.errors import GridmillError, UnavailableError
from gridmill.ports.site import SitePort
from gridmill.sites.cloud.machine import RentedMachine, WatchState

_LOG = logging.getLogger(__name__)
_RESTART_SECONDS = 20.0
"""If the machine answers over SSH but its light server has not answered for this time, the server is started
again."""
_CLOSE_SECONDS = 5.0
_LONGEST_SECONDS, _NOTICE_SECONDS = 15.0, 3.0
_SHARE = 10
_WATCH_SECONDS = 60.0
"""If the watcher's time does not advance for this time, the watcher has stopped. It looks every 5 s."""


def contact_seconds(dead_man_seconds: float, *, is_spot: bool) -> float:
    """Returns the time between two contacts: a tenth of the dead-man time, but at most 15 s. On a spot
    machine, it is at most 3 s, because a contact also reads the provider's notice."""
    most = _NOTICE_SECONDS if is_spot else _LONGEST_SECONDS
    return max(0.2, min(most, dead_man_seconds / _SHARE))


@contextmanager
def in_contact(machine: RentedMachine, every_seconds: float, is_needed: Callable[[], bool]) -> Iterator[None]:
    """Shows the machine during the `with` block that the control node is in contact with it, because an
    installation can take longer than the dead-man time. While `is_needed` returns False, there is no
    contact."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_seconds):
            try:
                if is_needed():
                    machine.contact()
            except GridmillError as error:
                _LOG.debug("no_contact machine=%s reason=%s", machine.keys.alias, error)
            except Exception:  # noqa: BLE001  the outermost loop: the next contact may succeed
                _LOG.exception("no_contact machine=%s", machine.keys.alias)

    thread = threading.Thread(target=run, name=f"gridmill-contact-{machine.keys.alias}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_CLOSE_SECONDS)


class WatchProgress:
    """Finds out whether the watcher of a machine still runs, because a watcher that has stopped cannot end
    the machine."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._used_seconds = -1
        self._since = monotonic()

    def has_stopped(self, state: WatchState) -> bool:
        """Returns whether the time of the watcher has not advanced for a minute. The next result is True
        after a further minute."""
        now = self._monotonic()
        has_stopped = state.used_seconds == self._used_seconds and now - self._since >= _WATCH_SECONDS
        if has_stopped or state.used_seconds != self._used_seconds:
            self._used_seconds, self._since = state.used_seconds, now
        return has_stopped


class MachineConnection:
    """The connection to one machine. This class is safe to call from several threads. While `is_needed`
    returns False, because the control node works no more, the connection makes no contact, and the machine
    ends itself after its dead-man time."""

    def __init__(
        self,
        machine: RentedMachine,
        site: SitePort,
        every_seconds: float,
        is_needed: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.machine, self.site = machine, site
        self._every_seconds, self._monotonic = every_seconds, monotonic
        self._is_needed = is_needed
        self._watch = WatchProgress(monotonic=monotonic)
        self.state: WatchState | None = None
        self._last_contact = monotonic()
        self._server_silent_since: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gridmill-{machine.keys.alias}", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def notice(self) -> str:
        """Returns the provider's notice that it will end the machine; empty if there is none."""
        return self.state.notice if self.state is not None else ""

    @property
    def silent_seconds(self) -> float:
        """Returns the seconds since the machine last answered over SSH."""
        return self._monotonic() - self._last_contact

    def server_answered(self, answered: bool) -> None:
        """Notes whether the light server of the machine has answered a request."""
        if answered:
            self._server_silent_since = None
        elif self._server_silent_since is None:
            self._server_silent_since = self._monotonic()

    def tick(self) -> None:
        """Makes one contact, and starts the watcher and the light server again if they have ended. Raises
        UnavailableError, also if the watcher has stopped."""
        if not self._is_needed():
            return
        self.state = self.machine.contact()
        if self._watch.has_stopped(self.state):
            self.machine.arm()
            raise UnavailableError("the watcher of the machine had stopped, and was started again")
        self._last_contact = self._monotonic()
        since = self._server_silent_since
        if since is not None and self._monotonic() - since >= _RESTART_SECONDS:
            self._server_silent_since = self._monotonic()
            self.machine.start_again()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.tick()
            except GridmillError as error:
                _LOG.debug("no_contact machine=%s reason=%s", self.machine.keys.alias, error)
            except Exception:  # noqa: BLE001  the outermost loop: the next contact may succeed
                _LOG.exception("no_contact machine=%s", self.machine.keys.alias)
            self._over.wait(self._every_seconds)

    def close(self) -> None:
        """Closes the connection. The machine and its pods continue. May be repeated."""
        self._over.set()
        with suppress(UnavailableError):
            self.site.close()
        self.machine.close()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
