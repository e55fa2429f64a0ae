"""This module checks the certificate of a service before its processes read it."""

import ssl

from gridmill.domain.service_settings import ServiceSettings
from gridmill.errors import InputError


def check_certificate(settings: ServiceSettings) -> None:
    """Raise InputError if a service could not use TLS with its certificate and key. The files are on this
    machine, because services with TLS run at the site `local`."""
    if not settings.has_tls:
        return
    certificate, key = settings.certificate_file or "", settings.key_file or ""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # an encrypted key is refused: nobody could type its password when a replica starts
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
        raise InputError(
            f"TLS cannot use the certificate {certificate} with the key {key}: {reason or error}",
            hint="Both files must exist, be in PEM format and belong together, and the key must have no "
            "password.",
            place="certificate",
        ) from error


def _no_password() -> str:
    raise ValueError("the key has a password")
