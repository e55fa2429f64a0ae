"""The certificate of a service: files that are missing are an error, and renewed files are used."""

from pathlib import Path

import pytest

from gridmill.domain.serving import ServiceOrder
from gridmill.errors import InputError
from gridmill.serving.tls import TlsContext
from gridmill.transport.certificate import make_certificate


def order(certificate: Path, key: Path) -> ServiceOrder:
    return ServiceOrder(name="rain", versions=(), certificate_file=str(certificate), key_file=str(key))


def test_files_that_were_removed_are_an_error_that_names_them(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, 1e9)
    tls = TlsContext(order(certificate, key))
    before = tls.context
    key.unlink()
    tls.reload()  # a replica that runs keeps its certificate
    assert tls.context is before
    with pytest.raises(InputError) as caught:
        TlsContext(order(certificate, key))
    assert str(key) in caught.value.message
    assert "No such file" in caught.value.message


def test_a_file_that_is_no_certificate_is_an_error(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, 1e9)
    certificate.write_text("not a certificate")
    with pytest.raises(InputError, match="cannot be read"):
        TlsContext(order(certificate, key))
