"""This module defines the links between the control node and pods: one protocol with three transports."""

from collections.abc import Sequence
from typing import Protocol

from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import FromPod, ToPod


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message that a link received, with the channel that it came from. Each connection has its own
    channel. If a pod has sent a Hello over several channels, the channel with its newest Hello belongs to
    the pod."""

    channel: int
    message: FromPod | None
    """The message, or None if the channel was closed."""


class LinkServer(Protocol):
    """The object through which the control node uses all its links to pods. A channel is a number, and each
    new connection has a new number."""

    def receive(self) -> Sequence[ReceivedMessage]:
        """Return all received messages; the messages of one channel are in order. Never waits."""

    def send(self, channel: int, messages: Sequence[ToPod]) -> None:
        """Put messages into the queue of the channel. The method never waits for the pod, and raises no
        error if the channel is closed."""

    def drop(self, channel: int) -> None:
        """Send the queued messages and close the channel."""

    def close(self) -> None:
        """Close all channels. After the link is closed, pods try to connect again."""


class PodLink(Protocol):
    """The object through which a pod uses its link to the control node. No method of the link blocks, so
    that a selector loop can use the link."""

    def connect(self) -> bool:
        """Try to connect; return False if the control node does not respond now."""

    def fileno(self) -> int | None:
        """Return the file descriptor that a selector can wait on for reading. Return None if the caller must
        poll the link."""

    def receive(self) -> Sequence[ToPod] | None:
        """Return the received messages, or None if the link is closed."""

    def send(self, messages: Sequence[FromPod]) -> bool:
        """Send messages; return False if the link is closed. Messages may be buffered; The method `pending`
        returns whether bytes are still buffered."""

    def pending(self) -> bool:
        """Return True while buffered bytes wait for the socket to become writable. `flush` sends them."""

    def flush(self) -> bool:
        """Send as many buffered bytes as possible; return False if the link is closed."""

    def close(self) -> None:
        """Close the link. May be repeated."""
