"""The pod's end of its zygote: a warm process that forks built-in jobs."""

from typing import Protocol

from gridmill.pod.launch import Launch, Pipes


class Nursery(Protocol):
    """What the starter asks."""

    def request(self, launch: Launch, pipes: Pipes) -> bool:
        """Take the launch and its pipes; False when there is no zygote to be had."""
        ...

    def cancel(self, attempt_id: str) -> bool:
        """Take a launch back; False when it was passed on already."""
        ...
