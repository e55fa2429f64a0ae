"""The use cases of backfills over HTTP."""

from collections.abc import Mapping

from gridmill.codec import decode, encode
from gridmill.model.backfill import Backfill, BackfillView, Chunk
from gridmill.sdk.http_versions import Sender, quoted


class HttpBackfills:
    """Implements gridmill.ports.backfills for a class that can `_get` and `_send`."""

    def backfills(self: Sender) -> tuple[BackfillView, ...]:
        """See Backfills."""
        return self._get("/backfills", tuple[BackfillView, ...])

    def backfill(self: Sender, name: str) -> BackfillView:
        """See Backfills."""
        return self._get(f"/backfills/{quoted(name)}", BackfillView)

    def start_backfill(self: Sender, backfill: Backfill, chunks: tuple[Chunk, ...] = ()) -> BackfillView:
        """See Backfills."""
        body = encode({"backfill": backfill, "chunks": chunks})
        return decode(self._send("POST", "/backfills", body=body), BackfillView)

    def backfill_pipeline(self: Sender, backfill: Backfill, values: Mapping[str, str]) -> BackfillView:
        """See Backfills."""
        body = encode({"backfill": backfill, "values": values})
        path = f"/pipelines/{quoted(backfill.name)}/backfill"
        return decode(self._send("POST", path, body=body), BackfillView)

    def stop_backfill(self: Sender, name: str) -> BackfillView:
        """See Backfills."""
        return decode(self._send("POST", f"/backfills/{quoted(name)}/stop"), BackfillView)
