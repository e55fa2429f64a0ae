"""A connection to a farm, and what its end does to who uses it."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gridmill.farm.certificates import Authority
from gridmill.sites.farm.client import PinnedConnection
from gridmill.sites.farm.credentials import FarmCredentials
from gridmill.sites.farm.errors import FarmStorageError, refusal


def test_one_that_is_cut_is_read_no_further_and_never_without_tls(tmp_path: Path) -> None:
    near, far = socket.socketpair()
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(Authority(tmp_path, 1e9).context().wrap_socket, far, server_side=True)
        at = FarmCredentials(host="farm", port=1, fingerprint="", token="")
        connection = PinnedConnection(at, plain, 60.0, None)
        connection.sock = plain.wrap_socket(near)
        farm = taken.result()
    farm.sendall(b"what was said")
    connection.cut()
    assert connection.sock.recv(1000) in (b"what was said", b"")
    with pytest.raises((BrokenPipeError, ssl.SSLError)):
        connection.sock.sendall(b"a token")
    for end in (farm, connection.sock):
        end.close()


def test_a_full_disk_there_is_told_as_one_there() -> None:
    body = b'{"code":"storage","message":"cannot be kept: No space left on device","place":"/root"}'
    assert isinstance(refusal(507, body), FarmStorageError)
    assert str(refusal(507, body)) == "at the farm /root: cannot be kept: No space left on device"
    own = b'{"code":"storage","message":"the records cannot be used: database or disk is full"}'
    assert str(refusal(507, own)) == "at the farm the records cannot be used: database or disk is full"
    assert str(refusal(502, b"<html>")) == "the farm answers with HTTP status 502"
