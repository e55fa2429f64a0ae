"""A connection to a farm: HTTPS by the standard library, the farm's certificate pinned."""

import hashlib
import hmac
import http.client
import socket
import ssl
from pathlib import Path
from typing import Any

from gridmill.errors import InputError
from gridmill.http.alive import keep_alive, little_unsent
from gridmill.sites.cluster.credentials import Credentials


class Connection(http.client.HTTPSConnection):
    """To a farm that shows the pinned certificate, or none."""

    def __init__(
        self, credentials: Credentials, context: ssl.SSLContext, seconds: float, way: Path | None
    ) -> None:
        super().__init__(credentials.host, credentials.port, timeout=seconds, context=context)
        self._pinned, self._secured, self._way = credentials.fingerprint, context, way

    def connect(self) -> None:
        """Nothing secret is said before the certificate is known. Raises OSError, InputError."""
        if self._way is None:
            super().connect()
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(self.sock, reads=True)
            little_unsent(self.sock)
        else:
            plain = socket.socket(socket.AF_UNIX)
            plain.settimeout(self.timeout)
            plain.connect(str(self._way))
            self.sock = self._secured.wrap_socket(plain)
        sock: Any = self.sock
        sock.suppress_ragged_eofs = False  # what is cut off is an error, also within a header
        shown = hashlib.sha256(self._secure.getpeercert(binary_form=True) or b"").hexdigest()
        if not hmac.compare_digest(shown, self._pinned):
            raise InputError(
                f"{self.host}:{self.port} shows the certificate {shown[:16]}…, not {self._pinned[:16]}…",
                hint="Either the farm was set up anew (join it again with its new line), or somebody is "
                "between you and it.",
            )

    @property
    def _secure(self) -> ssl.SSLSocket:
        sock: Any = self.sock
        secure: ssl.SSLSocket = sock
        return secure

    def patience(self, seconds: float) -> None:
        """How long an answer may take."""
        if self.sock is not None:
            self.sock.settimeout(seconds)

    def cut(self) -> None:
        """End it from another thread. Not as TLS ends it: what uses it now would go on without."""
        if self.sock is not None:
            try:
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
            except OSError:
                return
