"""Farms for tests: a controller in this process, and a tenant that speaks to it by the standard library."""

import http.client
import json
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gridmill.codec import decode, encode
from gridmill.domain.farm_protocol import JoinRequest, JoinResponse
from gridmill.domain.site import Site, SiteKind
from gridmill.farm.disk import TenantLimits
from gridmill.farm.join import invite
from gridmill.farm.main import RunningFarm, start
from gridmill.settings import Settings
from gridmill.version import __version__

LOCAL = Site(name="farm", kind=SiteKind.LOCAL)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that everybody may pass: else root's farms could not have Unix users of their own."""
    with tempfile.TemporaryDirectory(prefix="gridmill-farm-") as made:
        Path(made).chmod(0o711)
        yield Path(made)


@contextmanager
def farm(
    home: Path,
    port: int = 0,
    place: Site = LOCAL,
    retain_seconds: float = 3600.0,
    quota_bytes: int = 2**30,
    limits: TenantLimits | None = None,
) -> Iterator[RunningFarm]:
    settings = Settings(
        home=home,
        root=home / "storage",
        cpus=4.0,
        memory_bytes=2**32,
        zygote=False,
        bucket_hosts=("127.0.0.1",),
    )
    home.mkdir(parents=True, exist_ok=True)
    running = start(
        settings,
        place,
        ("127.0.0.1", port),
        quota_bytes=quota_bytes,
        retain_seconds=retain_seconds,
        limits=limits,
    )
    try:
        yield running
    finally:
        running.stop()


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    @property
    def told(self) -> Any:
        return json.loads(self.body)


@dataclass
class Visitor:
    """Whoever talks to a controller; a tenant once it has joined."""

    port: int
    folder: Path
    token: str = ""
    certified: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.certified:
            context.load_cert_chain(self.folder / "crt", self.folder / "key")
        return context

    def dial(self, seconds: float = 60.0) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self.host, self.port, timeout=seconds, context=self.context())

    def ask(self, method: str, path: str, body: object = b"", **headers: str) -> Answer:
        connection = self.dial()
        content = body if isinstance(body, bytes) else encode(body)
        told = {"Content-Type": "application/json", **self.headers, **headers}
        if self.token:
            told = {"Authorization": f"Bearer {self.token}", **told}
        connection.request(method, path, content, told)
        answer = connection.getresponse()
        found = Answer(answer.status, answer.read())
        connection.close()
        return found

    def request(self, name: str) -> str:
        """A signing request; its key is kept."""
        key = ec.generate_private_key(ec.SECP256R1())
        plain = serialization.NoEncryption()
        pem = serialization.Encoding.PEM
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
        return signed.public_bytes(pem).decode()

    def join(self, secret: str, name: str = "home", version: str = __version__) -> Answer:
        wanted = JoinRequest(tenant=name, secret=secret, request=self.request(name), version=version)
        answer = self.ask("POST", "/v1/join", wanted)
        if answer.status == 200:
            joined = decode(answer.body, JoinResponse)
            (self.folder / "crt").write_text(joined.certificate)
            self.token, self.certified = joined.token, True
        return answer


def visitor(running: RunningFarm, folder: Path) -> Visitor:
    return Visitor(int(running.server.address.rpartition(":")[2]), folder)


def member(running: RunningFarm, folder: Path, name: str = "home") -> Visitor:
    """A tenant that has joined."""
    one = visitor(running, folder)
    answer = one.join(invite(running.farm.records, running.farm.now()), name)
    assert answer.status == 200, answer.body
    return one


class Listener:
    """Reads a relay session's lines in a thread of its own."""

    def __init__(self, tenant: Visitor) -> None:
        self.name: str = tenant.ask("POST", "/v1/relay").told["session"]
        self._connection = tenant.dial()
        self._connection.request(
            "GET", f"/v1/relay/{self.name}", headers={"Authorization": f"Bearer {tenant.token}"}
        )
        self.answer = self._connection.getresponse()
        self._lines: list[bytes] = []
        self._ready = threading.Condition()
        self.over = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            while line := self.answer.readline():
                if line.strip():
                    with self._ready:
                        self._lines.append(line)
                        self._ready.notify_all()
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            pass  # cut
        with self._ready:
            self.over = True
            self._ready.notify_all()

    def next(self, seconds: float = 120.0) -> bytes | None:
        """The next line; None at the end."""
        with self._ready:
            assert self._ready.wait_for(lambda: self._lines or self.over, seconds), "nothing came"
            return self._lines.pop(0) if self._lines else None

    def wait_until_over(self, seconds: float = 120.0) -> bool:
        with self._ready:
            return self._ready.wait_for(lambda: self.over, seconds)
