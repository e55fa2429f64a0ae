"""Links between control node and pods: three transports, one protocol."""

from collections.abc import Sequence
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import FromPod, ToPod


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message and the channel it came by (one per connection; a pod's newest Hello owns its channel)."""

    channel: int
    message: FromPod | None  # None: the channel closed


class LinkServer(Protocol):
    """The control node's end of all its links. Channels are numbers, new for each connection."""

    def receive(self) -> Sequence[ReceivedMessage]:
        """All received messages, in order per channel; never waits."""

    def send(self, channel: int, messages: Sequence[ToPod]) -> None:
        """Queue messages; never waits, and never raises for a closed channel."""

    def drop(self, channel: int) -> None:
        """Send the queued messages and close the channel."""

    def close(self) -> None:
        """Close all channels. Pods will try to connect again."""


class PodLink(Protocol):
    """The pod's end. Non-blocking, for a selector loop."""

    def connect(self) -> bool:
        """Try to connect; False if the control node does not answer now."""

    def fileno(self) -> int | None:
        """The file descriptor to select on for reading (None: poll)."""

    def receive(self) -> Sequence[ToPod] | None:
        """The received messages; None if the link is closed."""

    def send(self, messages: Sequence[FromPod]) -> bool:
        """Send; False when the link is closed. May buffer; `pending` says whether it did."""

    def pending(self) -> bool:
        """True while buffered bytes wait for the socket to become writable; `flush` sends them."""

    def flush(self) -> bool:
        """Send as many buffered bytes as possible; False if the link is closed."""

    def close(self) -> None:
        """Close; may be repeated."""
