"""TLS of a replica. A certificate that was renewed is used for new connections without a restart."""

import logging
import os
import ssl

from gridmill.domain.serving import ServiceOrder
from gridmill.errors import InputError

_LOG = logging.getLogger(__name__)
_Stamp = tuple[int, ...]


class TlsContext:
    """The certificate and the key of a service. `context` is None if the service does not use TLS."""

    def __init__(self, order: ServiceOrder) -> None:
        """Read the files of the order. Raises InputError."""
        self.context: ssl.SSLContext | None = None
        self._files = (order.certificate_file, order.key_file or order.certificate_file)
        self._seen: _Stamp = ()
        if order.certificate_file:
            self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            try:
                self._seen = self._stamp()
                self.context.load_cert_chain(*self._files)
            except OSError as error:
                raise InputError(
                    f"the certificate {self._files[0]} or its key {self._files[1]} cannot be read: {error}",
                    hint="Write the files again. The service then starts by itself.",
                    place="certificate_file",
                ) from error

    def reload(self) -> None:
        """Read the files again if they changed. If they cannot be used, the earlier certificate stays in
        use."""
        if self.context is None:
            return
        try:
            seen = self._stamp()
            if seen == self._seen:
                return
            self._seen = seen
            # a context of its own first, because a failed load could leave half of the pair in use
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*self._files)
            self.context.load_cert_chain(*self._files)
        except OSError as error:
            _LOG.warning("the certificate %s cannot be read again: %s", self._files[0], error)

    def _stamp(self) -> _Stamp:
        return tuple(os.stat(path).st_mtime_ns for path in self._files)
