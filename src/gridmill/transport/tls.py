"""The link over TLS. A pod accepts only the certificate of the control node that has the expected
fingerprint, so no certificate authority is needed."""

import errno
import hashlib
import hmac
import select
import socket
import ssl
import time
from collections.abc import Generator
from pathlib import Path

from gridmill.errors import InputError, UnavailableError
from gridmill.transport.channel import Monotonic, for_tls
from gridmill.transport.pod_side import StreamLink, Waiting
from gridmill.transport.socket import SocketWire, Wire

_BACKLOG = 512


class TlsWire(SocketWire):
    """A SocketWire whose socket uses TLS 1.3. With TLS 1.3, an open connection never needs to write in order
    to read."""

    def _receive(self, limit: int) -> bytes:
        try:
            return super()._receive(limit)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def _transmit(self, data: memoryview) -> int:
        try:
            return super()._transmit(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error


# --- the pod's end


def make(address: str, monotonic: Monotonic = time.monotonic) -> StreamLink:
    """The link to `HOST:PORT#FINGERPRINT`. Raises InputError."""
    host, port, pinned = parse_address(address)

    def dial() -> Generator[Waiting, None, Wire]:
        return _dial(host, port, pinned)

    return StreamLink(dial, new_liveness=for_tls, monotonic=monotonic)


def parse_address(address: str) -> tuple[str, int, str]:
    """Parses an address `HOST:PORT#FINGERPRINT` into the host, the port and the fingerprint (in lower-case
    hex). Raises InputError."""
    place, _, pinned = address.partition("#")
    host, _, port = place.rpartition(":")
    pinned = pinned.replace(":", "").lower()
    if not host or not port.isdigit() or len(pinned) != 64 or not set(pinned) <= set("0123456789abcdef"):
        raise InputError(f"{address!r} is not HOST:PORT#FINGERPRINT with the certificate's SHA-256 in hex")
    return host.strip("[]"), int(port), pinned


def _dial(host: str, port: int, pinned: str) -> Generator[Waiting, None, Wire]:
    sock = yield from _dial_any(host, port)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    secure = _pod_context().wrap_socket(sock, do_handshake_on_connect=False)
    try:
        yield from _shake_hands(secure)
        _check_fingerprint(secure, pinned)
    except BaseException:  # also for GeneratorExit: an abandoned attempt leaves no connection behind
        secure.close()
        raise
    return TlsWire(secure)


def _dial_any(host: str, port: int) -> Generator[Waiting, None, socket.socket]:
    """Connects to the first address of the host that answers. Raises OSError."""
    reason: OSError = ConnectionRefusedError(f"{host} has no address")
    for family, kind, protocol, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            yield from _connect(sock, target)
        except OSError as error:
            sock.close()
            reason = error
        except GeneratorExit:
            sock.close()
            raise
        else:
            return sock
    raise reason


def _connect(sock: socket.socket, target: object) -> Generator[Waiting, None, None]:
    sock.setblocking(False)
    while True:
        try:
            sock.connect(target)  # type: ignore[arg-type]  # what getaddrinfo gave for this family
        except BlockingIOError:
            yield sock.fileno(), select.POLLOUT
        except OSError as error:
            if error.errno != errno.EISCONN:
                raise
            return
        else:
            return


def _shake_hands(secure: ssl.SSLSocket) -> Generator[Waiting, None, None]:
    while True:
        try:
            return secure.do_handshake()
        except ssl.SSLWantReadError:
            yield secure.fileno(), select.POLLIN
        except ssl.SSLWantWriteError:
            yield secure.fileno(), select.POLLOUT


def _check_fingerprint(secure: ssl.SSLSocket, pinned: str) -> None:
    """Checks the certificate of the control node before any secret is sent. Raises PermissionError."""
    shown = hashlib.sha256(secure.getpeercert(binary_form=True) or b"").hexdigest()
    if not hmac.compare_digest(shown, pinned):
        raise PermissionError(f"the control node shows the certificate {shown}, not {pinned}")


def _pod_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # not needed, because the fingerprint proves more than a name and an authority
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


# --- the control node's end


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. If the port is 0, the system selects a port. Raises UnavailableError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UnavailableError(f"cannot listen: {error.strerror or error}", place=f"{host}:{port}") from error
    listener.setblocking(False)
    return listener


def server_context(certfile: Path, keyfile: Path) -> ssl.SSLContext:
    """Returns the TLS 1.3 settings for this certificate. Raises InputError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # no tickets, because pods connect rarely, and a ticket would be another secret to protect
    context.num_tickets = 0
    try:
        context.load_cert_chain(certfile, keyfile)
    except OSError as error:
        raise InputError(f"cannot be used as a certificate: {error}", place=str(certfile)) from error
    return context


def fingerprint_of(certfile: Path) -> str:
    """Returns the SHA-256 hash (hex) of the first certificate in a PEM file. Raises InputError."""
    try:
        pem = certfile.read_text()
        end = pem.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[pem.index(ssl.PEM_HEADER) : end])).hexdigest()
    except (OSError, ValueError) as error:
        raise InputError(f"not a certificate: {error}", place=str(certfile)) from error


def accept(listener: socket.socket, context: ssl.SSLContext) -> Wire:
    """Returns the next connection. The TLS handshake of the connection happens during the first reads.
    Raises OSError."""
    sock, _ = listener.accept()
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return TlsWire(context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False))
