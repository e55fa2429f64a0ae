"""The use cases of sinks over HTTP."""

from gridmill.codec import decode, encode
from gridmill.model.alteration import Alterations, Change
from gridmill.model.task import LoadTask
from gridmill.sdk.http_versions import Sender, quoted


class HttpAlterations:
    """Implements gridmill.ports.alterations for a class that can `_get` and `_send`."""

    def alterations(self: Sender, *, name: str | None = None) -> tuple[Alterations, ...]:
        """See Altering."""
        return self._get("/alterations", tuple[Alterations, ...], name=name)

    def alter_sink(self: Sender, name: str, change: Change) -> Alterations:
        """See Altering."""
        return decode(self._send("POST", f"/alterations/{quoted(name)}", body=encode(change)), Alterations)

    def load_tasks(self: Sender, *, name: str | None = None) -> tuple[LoadTask, ...]:
        """See Altering."""
        return self._get("/tasks", tuple[LoadTask, ...], name=name)
