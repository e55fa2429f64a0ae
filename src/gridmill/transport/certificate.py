"""Makes a self-signed certificate for the control node (needs the extra `tls`: the package cryptography)."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gridmill.private_files import write_private

_DAYS = 3650


def make_certificate(folder: Path, now: float) -> tuple[Path, Path]:
    """Returns the paths of the certificate and of its key (mode 0600) in `folder`. Both are PEM files.
    Existing files are reused, because pods have been started with their fingerprint.

    `now` is the Unix time. Pods check the fingerprint of the certificate, and not its dates.
    """
    certfile, keyfile = folder / "control.crt", folder / "control.key"
    if not (certfile.exists() and keyfile.exists()):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        write_private(keyfile, _private_pem(key))
        write_private(certfile, _sign(key, now).public_bytes(serialization.Encoding.PEM))
    return certfile, keyfile


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _sign(key: ec.EllipticCurvePrivateKey, now: float) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gridmill control node")])
    begin = datetime.datetime.fromtimestamp(now, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - datetime.timedelta(days=1))
        .not_valid_after(begin + datetime.timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
