"""Sends the journal to the control node over any link, and receives the control node's messages."""

import selectors
from collections.abc import Callable, Mapping, Sequence

from gridmill.domain.pod_protocol import PROTOCOL, Events, Hello, PodOrder, ToPod, Welcome
from gridmill.domain.states import AttemptState
from gridmill.pod.journal import Journal
from gridmill.pod.network import own_address
from gridmill.ports.link import PodLink
from gridmill.version import __version__

FIRST_BACK_OFF_SECONDS = 0.05
LONGEST_BACK_OFF_SECONDS = 1.0
_POLL_SECONDS = 0.25
_LISTEN_SECONDS = 2.0  # a link keeps itself alive when it is asked what came


class Courier:
    """`welcomed` is true from Welcome to the link's end; `lonely_since` says since when it is not."""

    def __init__(
        self,
        *,
        link: PodLink,
        order: PodOrder,
        journal: Journal,
        selector: selectors.BaseSelector,
        attempts: Callable[[], Mapping[str, AttemptState]],
        now: float,
    ) -> None:
        self.welcomed = False
        self.lonely_since = now
        self._link, self._order, self._journal = link, order, journal
        self._selector, self._attempts = selector, attempts
        self._open = False
        self._watched: int | None = None
        self._sent = 0
        self._back_off = FIRST_BACK_OFF_SECONDS
        self._next_try = now
        self._next_listen = now
        self._readable = False

    def due(self) -> float:
        """When `turn` has something to do next (monotonic seconds)."""
        return self._next_listen if self._open else self._next_try

    def turn(self, now: float) -> Sequence[ToPod]:
        """Connect or listen; what the control node said, but for Welcome."""
        if not self._open:
            if now < self._next_try or not self._connect(now):
                return ()
        elif not self._readable and now < self._next_listen:
            return ()
        self._readable = False
        self._next_listen = now + (_POLL_SECONDS if self._watched is None else _LISTEN_SECONDS)
        received = self._link.receive()
        others = [message for message in received or () if not self._is_welcome(message)]
        if received is None or self._has_closed():
            self._lost(now)
        return others

    def _has_closed(self) -> bool:
        """With its last words, maybe: then its descriptor is another's as soon as these are obeyed."""
        return self._watched is not None and self._link.fileno() is None

    def _connect(self, now: float) -> bool:
        if not self._link.connect() or not self._link.send([self._hello()]):
            self._link.close() if self._open else None
            self._next_try = now + self._back_off
            self._back_off = min(self._back_off * 2, LONGEST_BACK_OFF_SECONDS)
            return False
        self._open = True
        self._watch()
        return True

    def _hello(self) -> Hello:
        return Hello(
            pod_id=self._order.pod_id,
            deployment_id=self._order.deployment_id,
            secret=self._order.secret,
            protocol=PROTOCOL,
            version=__version__,
            attempts=self._attempts(),
            address=own_address(self._order.link),
        )

    def _watch(self) -> None:
        self._watched = self._link.fileno()
        if self._watched is not None:
            self._selector.register(self._watched, selectors.EVENT_READ, self._ready)

    def _ready(self) -> None:
        self._readable = True

    def _is_welcome(self, message: ToPod) -> bool:
        if not isinstance(message, Welcome):
            return False
        self._journal.acknowledge(message.acknowledged)
        self._sent = self._journal.acknowledged
        self.welcomed = True
        self._back_off = FIRST_BACK_OFF_SECONDS
        return True

    def _lost(self, now: float) -> None:
        if self._watched is not None:
            self._selector.unregister(self._watched)
            self._watched = None
        self._link.close()
        if self.welcomed:
            self.lonely_since = now
        self._open = self.welcomed = False
        self._next_try = now + self._back_off
        self._back_off = min(self._back_off * 2, LONGEST_BACK_OFF_SECONDS)

    def deliver(self, now: float) -> None:
        """Send what is journalled and not yet sent, as far as the link takes it."""
        if not self._open:
            return
        if self._link.pending() and not self._link.flush():
            self._lost(now)
        while self.welcomed and not self._link.pending():
            events = self._journal.after(self._sent)
            if not events:
                break
            self._sent = events[-1].number
            if not self._link.send([Events(events=events)]):
                self._lost(now)
        self._mind_writing()

    def _mind_writing(self) -> None:
        """Wake when the link takes more, while it has something to take."""
        if self._watched is None:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._link.pending() else 0)
        if self._selector.get_key(self._watched).events != events:
            self._selector.modify(self._watched, events, self._ready)

    def close(self) -> None:
        """Close the link."""
        self._link.close()
