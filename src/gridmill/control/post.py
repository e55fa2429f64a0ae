"""What is sent to pods: to those whose link is open; the others ask when they greet."""

from gridmill.control.state import Control
from gridmill.model.message import Stop, ToPod


def stop_message(control: Control, attempt_id: str, reason: str) -> Stop:
    """A Stop with the configured grace."""
    return Stop(attempt_id=attempt_id, reason=reason, grace_seconds=control.limits.grace_seconds)


def send_to_pod(control: Control, pod_id: str, message: ToPod) -> None:
    """Send, if the pod's link is open."""
    channel = control.channels.get(pod_id)
    if channel is not None:
        control.links.send(channel, [message])
