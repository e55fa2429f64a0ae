"""Links between control node and pods: three transports, one protocol."""

from collections.abc import Sequence
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import FromPod, ToPod


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message and its channel. Each connection has its own channel; the channel with a pod's newest Hello
    belongs to the pod."""

    channel: int
    message: FromPod | None  # None: the channel was closed


class LinkServer(Protocol):
    """The control node's end of all its links. A channel is a number, and each connection has a new
    number."""

    def receive(self) -> Sequence[ReceivedMessage]:
        """All received messages; the messages of a channel are in order. Never waits."""

    def send(self, channel: int, messages: Sequence[ToPod]) -> None:
        """Put messages into the queue of the channel. Never waits, and never raises for a closed channel."""

    def drop(self, channel: int) -> None:
        """Send the queued messages and close the channel."""

    def close(self) -> None:
        """Close all channels. Pods then try to connect again."""


class PodLink(Protocol):
    """The pod's end of a link. No method blocks, so that a selector loop can use it."""

    def connect(self) -> bool:
        """Try to connect; False if the control node does not answer now."""

    def fileno(self) -> int | None:
        """The file descriptor to select on for reading; None if the link must be polled."""

    def receive(self) -> Sequence[ToPod] | None:
        """The received messages; None if the link is closed."""

    def send(self, messages: Sequence[FromPod]) -> bool:
        """Send messages; False if the link is closed. Messages may be buffered; `pending` shows whether they
        are."""

    def pending(self) -> bool:
        """True while buffered bytes wait for the socket to become writable; `flush` sends them."""

    def flush(self) -> bool:
        """Send as many buffered bytes as possible; False if the link is closed."""

    def close(self) -> None:
        """Close the link. May be repeated."""
