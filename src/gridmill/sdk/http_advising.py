"""The use cases of advice over HTTP."""

from gridmill.codec import decode
from gridmill.model.advice import Advice
from gridmill.model.view import RunView
from gridmill.sdk.http_versions import Sender, quoted


class HttpAdvising:
    """Implements gridmill.ports.advising for a class that can `_get` and `_send`."""

    def advise(self: Sender, name: str) -> Advice:
        """See Advising."""
        return self._get(f"/advice/{quoted(name)}", Advice)

    def probe(self: Sender, name: str, *, workers: int, share: float) -> RunView:
        """See Advising."""
        asked = {"workers": workers, "share": share}
        return decode(self._send("POST", f"/probes/{quoted(name)}", params=asked), RunView)
