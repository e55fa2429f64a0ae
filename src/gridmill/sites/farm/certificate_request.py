"""Creates a private key, and a request to sign a certificate for this key (needs the extra `tls`)."""

from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gridmill.errors import InputError


def new_key() -> bytes:
    """A private key (PEM)."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def signing_request(private: bytes, tenant: str) -> str:
    """Returns a signing request (PEM) for a private key (PEM) that `new_key` made. Raises ValueError if the
    key is invalid."""
    key: Any = serialization.load_pem_private_key(private, password=None)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, tenant)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def holds(certificate: bytes) -> tuple[float, float]:
    """Returns the start and the end of the validity of a certificate (PEM), in Unix time. Raises
    InputError."""
    try:
        read = x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise InputError("is not a certificate") from error
    return read.not_valid_before_utc.timestamp(), read.not_valid_after_utc.timestamp()
