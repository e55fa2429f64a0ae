"""The use cases of schedules over HTTP."""

from gridmill.codec import decode
from gridmill.model.view import ScheduleView
from gridmill.sdk.http_versions import Sender, quoted


class HttpSchedules:
    """Implements gridmill.ports.schedules for a class that can `_get` and `_send`."""

    def schedules(self: Sender) -> tuple[ScheduleView, ...]:
        """See Schedules."""
        return self._get("/schedules", tuple[ScheduleView, ...])

    def schedule(self: Sender, name: str) -> ScheduleView:
        """See Schedules."""
        return self._get(f"/schedules/{quoted(name)}", ScheduleView)

    def pause_schedule(self: Sender, name: str) -> ScheduleView:
        """See Schedules."""
        return decode(self._send("POST", f"/schedules/{quoted(name)}/stop"), ScheduleView)

    def start_schedule(self: Sender, name: str) -> ScheduleView:
        """See Schedules."""
        return decode(self._send("POST", f"/schedules/{quoted(name)}/start"), ScheduleView)
