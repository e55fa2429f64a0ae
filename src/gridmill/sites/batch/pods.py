"""The pods of a batch site.

A pod of a batch site is a folder in the home and a connection to the control node. The pod costs nothing
while it has no attempt. It transmits the messages of its attempts, which run as jobs of the batch service.
"""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gridmill.codec import decode, encode, from_builtins, to_builtins
from gridmill.domain.pod_protocol import (
    PROTOCOL,
    Ack,
    AttemptOrder,
    AttemptOutcome,
    Events,
    EventType,
    Goodbye,
    Hello,
    PodEvent,
    PodOrder,
    SecretRequest,
    SecretValues,
    Start,
    Stop,
    Welcome,
)
from gridmill.domain.states import AttemptState, Cause
from gridmill.errors import GridmillError, InputError, StorageError
from gridmill.ports.link import PodLink
from gridmill.private_files import write_private
from gridmill.sites.batch.attempt import AttemptDriver
from gridmill.sites.batch.journal import PodJournal
from gridmill.version import __version__

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 0.5
ENDED = "ended"


class BatchPod:
    """One pod. Only the thread of the site's loop calls `turn`."""

    def __init__(
        self,
        order: PodOrder,
        folder: Path,
        dial: Callable[[], PodLink],
        start: Callable[["BatchPod", AttemptOrder], None],
    ) -> None:
        """`start` makes the driver of a new attempt. Raises StorageError."""
        self.order, self.folder = order, folder
        self.drivers: dict[str, AttemptDriver] = {}
        self.journal = PodJournal(folder / "journal.jsonl")
        self.is_leaving = self.has_said_goodbye = False
        self.leave_due = 0.0
        """The time on the monotonic clock of the site at which a pod with a Goodbye is ended."""
        self._dial, self._start = dial, start
        self._link: PodLink | None = None
        self._sent: int | None = None
        self._next_dial = 0.0

    def turn(self) -> None:
        """Connect if there is no connection, then receive and send messages."""
        if self._link is None and not self._connected():
            return
        assert self._link is not None
        messages = self._link.receive()
        if messages is None:
            return self._disconnect()
        try:
            for message in messages:
                self._take(message)
        except GridmillError:
            # after the next Hello, the control node repeats everything that was not processed
            self._disconnect()
            raise
        self._send(self._link)

    def _take(self, message: object) -> None:
        match message:
            case Welcome(acknowledged=number):
                self.journal.acknowledge(number)
                self._sent = number
            case Ack(number=number):
                self.journal.acknowledge(number)
            case Start(order=order):
                if order.attempt_id not in self.drivers and not self.journal.has_ended(order.attempt_id):
                    self._start(self, order)
            case Stop() as stop:
                self._stop(stop)
            case SecretValues() as values:
                self._give_secrets(values)
            case Goodbye():
                self.has_said_goodbye = True
            case _:
                pass

    def _connected(self) -> bool:
        now = time.monotonic()
        if now < self._next_dial:
            return False
        self._next_dial = now + _AGAIN_SECONDS
        link = self._dial()
        if not link.connect():
            link.close()
            return False
        self._link, self._sent = link, None
        for driver in self.drivers.values():
            driver.ask_again()
        states = {**_ended_states(self.journal), **_open_states(self.drivers)}
        hello = Hello(
            pod_id=self.order.pod_id,
            deployment_id=self.order.deployment_id,
            secret=self.order.secret,
            protocol=PROTOCOL,
            version=__version__,
            attempts=states,
        )
        return link.send([hello])

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = self._sent = None

    def _send(self, link: PodLink) -> None:
        if link.pending() and not link.flush():
            return self._disconnect()
        if self._sent is None or link.pending():
            return
        for driver in self.drivers.values():
            request, driver.secret_request = driver.secret_request, None
            if request is not None:
                link.send(
                    [
                        SecretRequest(
                            attempt_id=request.attempt_id, token=request.token, public_key=request.public_key
                        )
                    ]
                )
        events = self.journal.after(self._sent)
        if events:
            if not link.send([Events(events=events)]):
                return self._disconnect()
            self._sent = events[-1].number

    def _stop(self, stop: Stop) -> None:
        driver = self.drivers.get(stop.attempt_id)
        if driver is not None:
            return driver.request_stop(stop.reason)
        if self.journal.has_ended(stop.attempt_id):
            return None
        outcome = AttemptOutcome(state=AttemptState.STOPPED, cause=Cause.STOPPED, message=stop.reason)
        event = PodEvent(
            number=0,
            attempt_id=stop.attempt_id,
            token="",
            time=time.time(),
            type=EventType.ENDED,
            body={"outcome": to_builtins(outcome)},
        )
        return self.journal.append([event], is_own=True)

    def _give_secrets(self, values: SecretValues) -> None:
        driver = self.drivers.get(values.attempt_id)
        if driver is not None:
            driver.secret_values = values
            driver.due = 0.0

    def mark_ended(self) -> None:
        """Record that the pod has ended, so that it never starts again. Raises StorageError."""
        self._disconnect()
        mark_ended(self.folder)

    def close(self) -> None:
        """Close the connection. The pod continues when the site is opened again."""
        self._disconnect()


def _open_states(drivers: Mapping[str, AttemptDriver]) -> Mapping[str, AttemptState]:
    """Returns the state of each attempt that has not ended, for the Hello of its pod."""
    running = (one for one in drivers.values() if not one.journal.has_ended(one.id))
    return {one.id: AttemptState.RUNNING for one in running}


def _ended_states(journal: PodJournal) -> Mapping[str, AttemptState]:
    """Returns the states of attempts whose end the control node has not committed yet."""
    ended = (event for event in journal.waiting() if event.type is EventType.ENDED)
    return {event.attempt_id: from_builtins(event.body["outcome"], AttemptOutcome).state for event in ended}


def write_order(folder: Path, order: PodOrder) -> None:
    """Store the order of a pod. Raises StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(folder / "order.json", encode(order))
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", place=str(folder)) from error


def read_order(folder: Path) -> PodOrder | None:
    """Return the order of a pod that has not ended, or None."""
    if (folder / ENDED).exists():
        return None
    try:
        return decode((folder / "order.json").read_bytes(), PodOrder)
    except FileNotFoundError:
        return None
    except (OSError, InputError) as error:
        _LOG.warning("pod_not_read folder=%s reason=%s", folder, error)
        return None


def mark_ended(folder: Path) -> None:
    """Record that the pod of this folder never starts again. Raises StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / ENDED).touch()
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", place=str(folder)) from error
