"""The certificate of the farm, and its certificate authority, which signs the certificates of tenants (needs
the extra `tls`)."""

import datetime
import hashlib
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gridmill.errors import InputError
from gridmill.private_files import write_private

_DAYS = 3650
_MARGIN = datetime.timedelta(days=1)
_LEAST_RSA_BITS = 2048


class Authority:
    """A certificate authority whose files are in a folder. They are created once. Tenants pin the
    `fingerprint` of the farm's certificate: its SHA-256 hash (hex).

    The farm's own certificate also signs the certificates of tenants. The farm trusts its own certificate
    for nothing else.
    """

    def __init__(self, folder: Path, now: float) -> None:
        self._certfile, self._keyfile = folder / "control.crt", folder / "control.key"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self._certfile.exists() and self._keyfile.exists()):
            self._make(now)
        self._certificate = x509.load_pem_x509_certificate(self._certfile.read_bytes())
        key = serialization.load_pem_private_key(self._keyfile.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InputError(
                "this key is not an elliptic-curve key, the kind that Gridmill creates",
                place=str(self._keyfile),
            )
        self._key = key

    def _make(self, now: float) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("gridmill farm")
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        made = (
            _dated(now)
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        write_private(self._keyfile, key.private_bytes(serialization.Encoding.PEM, form, plain))
        write_private(self._certfile, made.public_bytes(serialization.Encoding.PEM))

    @property
    def fingerprint(self) -> str:
        """Returns the fingerprint that tenants pin: the SHA-256 hash (hex) of the farm's certificate."""
        return _fingerprint(self._certificate)

    def context(self) -> ssl.SSLContext:
        """Returns the settings for TLS 1.3. A client may present a certificate. If a client presents a
        certificate, this authority must have signed it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # a resumed TLS session would not present the client's certificate again
        context.load_cert_chain(self._certfile, self._keyfile)
        context.load_verify_locations(self._certfile)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def sign(self, tenant: str, request: str, now: float) -> tuple[str, str]:
        """Returns a certificate (PEM) for the key in a signing request (PEM), and the fingerprint of this
        certificate. Only the key is used from the signing request. Raises InputError."""
        key = _requested_key(request)
        made = (
            _dated(now)
            .subject_name(_name(tenant))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM).decode(), _fingerprint(made)


def fingerprint_of_key(request: str) -> str:
    """Returns the SHA-256 hash (hex) of the key in a signing request (PEM). Raises InputError."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(_requested_key(request).public_bytes(serialization.Encoding.DER, form)).hexdigest()


def _requested_key(request: str) -> ec.EllipticCurvePublicKey | rsa.RSAPublicKey:
    wrong = InputError(
        "the text is not a certificate signing request (PEM) with a usable key", place="request"
    )
    try:
        read = x509.load_pem_x509_csr(request.encode(errors="replace"))
        if not read.is_signature_valid:
            raise wrong
        key = read.public_key()
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise wrong from error
    weak = isinstance(key, rsa.RSAPublicKey) and key.key_size < _LEAST_RSA_BITS
    if weak or not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise wrong
    return key


def _fingerprint(certificate: x509.Certificate) -> str:
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _dated(now: float) -> x509.CertificateBuilder:
    begin = datetime.datetime.fromtimestamp(now, datetime.UTC)
    builder = x509.CertificateBuilder().serial_number(x509.random_serial_number())
    return builder.not_valid_before(begin - _MARGIN).not_valid_after(begin + datetime.timedelta(days=_DAYS))
