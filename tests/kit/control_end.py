"""A tiny control node's end for tests of pods: takes everything, acknowledges when told, keeps all
events."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from gridmill.codec import from_builtins
from gridmill.domain.amounts import MIB, Amounts
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.job_log import text_of
from gridmill.domain.pod_protocol import (
    Ack,
    AttemptOrder,
    AttemptOutcome,
    Events,
    EventType,
    Hello,
    PodEvent,
    PodOrder,
    Start,
    ToPod,
    Welcome,
)
from gridmill.settings import Settings
from gridmill.sites.local import make
from gridmill.transport.certificate import make_certificate
from gridmill.transport.server import PodLinkServer

DEADLINE_SECONDS = 300.0


class ControlEnd:
    """Speaks for a control node at HOME/links.sock."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.acknowledging = True
        self.hellos: list[Hello] = []
        self.events: list[PodEvent] = []
        self._channel: int | None = None
        self._came = threading.Event()
        self._doors: dict[str, str] = {}
        self._links = PodLinkServer(self._came.set)
        self._links.listen_unix(home / "links.sock")

    def listen_elsewhere(self, scheme: str) -> str:
        """Another way to this control node: PodOrder.link for `tls` or `spool`."""
        if scheme == "spool":
            self._links.watch_spool(self.home / "spool")
            return f"spool:{self.home / 'spool'}"
        certificate, key = make_certificate(self.home, time.time())
        port, fingerprint = self._links.listen_tls("127.0.0.1", 0, certificate, key)
        return f"tls:127.0.0.1:{port}#{fingerprint}"

    def tls(self, host: str, port: int = 0) -> str:
        """A door for pods of other machines (ports.site.PodListeners)."""
        if "tls" not in self._doors:
            certificate, key = make_certificate(self.home, time.time())
            number, fingerprint = self._links.listen_tls("127.0.0.1", port, certificate, key)
            self._doors["tls"] = f"tls:{host}:{number}#{fingerprint}"
        return self._doors["tls"]

    def spool(self, folder: Path) -> str:
        """A door for pods that share a folder (ports.site.PodListeners)."""
        link = f"spool:{folder}"
        if link not in self._doors.values():
            self._links.watch_spool(folder)
            self._doors[str(folder)] = link
        return link

    def turn(self) -> None:
        """Take what has come."""
        self._came.clear()
        for received in self._links.receive():
            match received.message:
                case None:
                    self._channel = None if self._channel == received.channel else self._channel
                case Hello() as hello:
                    self.hellos.append(hello)
                    self._channel = received.channel
                    self._links.send(received.channel, [Welcome(acknowledged=self.last)])
                case Events(events=events):
                    self.events += [event for event in events if event.number > self.last]
                    if self.acknowledging:
                        self.send(Ack(number=self.last))

    @property
    def last(self) -> int:
        return self.events[-1].number if self.events else 0

    def wait(self, condition: Callable[[], object], seconds: float = DEADLINE_SECONDS) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise AssertionError(f"not within {seconds} s; events: {self.events[-20:]}")
            self._came.wait(0.02)
            self.turn()

    def send(self, message: ToPod) -> None:
        self.wait(lambda: self._channel is not None)
        self._links.send(self._channel or 0, [message])

    def outcome(self, attempt_id: str, seconds: float = DEADLINE_SECONDS) -> AttemptOutcome:
        """The attempt's outcome, once it has ended."""
        self.wait(lambda: self.of(attempt_id, EventType.ENDED), seconds)
        return from_builtins(self.of(attempt_id, EventType.ENDED)[0].body["outcome"], AttemptOutcome)

    def of(self, attempt_id: str, kind: EventType) -> list[PodEvent]:
        return [event for event in self.events if event.attempt_id == attempt_id and event.type == kind]

    def log(self, attempt_id: str, stream: str = "out") -> str:
        logs = self.of(attempt_id, EventType.LOG)
        return "".join(text_of(event.body) for event in logs if event.body["stream"] == stream)

    def run(self, order: AttemptOrder) -> AttemptOutcome:
        self.send(Start(order=order))
        return self.outcome(order.attempt_id)

    def close(self) -> None:
        self._links.close()


class Grid:
    """A home, a site, one pod, and the control end it dials."""

    def __init__(self, home: Path, **settings: object) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.settings = Settings(home=home, root=home / "storage", grace_seconds=0.5, **settings)  # type: ignore[arg-type]
        self.site = make(self.settings)
        self.control = ControlEnd(home)

    def pod_order(self, pod_id: str = "r-1.0", **changes: object) -> PodOrder:
        fields: dict[str, object] = {
            "pod_id": pod_id,
            "deployment_id": "r-1",
            "type": "command",
            "secret": "secret",
            "home": str(self.home),
            "link": self.site.link(),
            "capacity": Amounts(cpus=1, memory_bytes=512 * MIB),
            "keep_seconds": 300.0,
        }
        return PodOrder(**{**fields, **changes})  # type: ignore[arg-type]

    def command(self, attempt_id: str, run: str | tuple[str, ...], **changes: object) -> AttemptOrder:
        """An order for a command; `changes` are fields of Order, Job or CommandSpec."""
        spec = {
            name: changes.pop(name)
            for name in ("env", "folder", "environment", "shell", "outputs")
            if name in changes
        }
        job_fields = {name: changes.pop(name) for name in ("timeout_seconds", "cpus") if name in changes}
        fields: dict[str, object] = {
            "token": f"token of {attempt_id}",
            "run_id": "p-1",
            "pipeline": "p",
            "given": Amounts(cpus=1, memory_bytes=256 * MIB),
            "root": str(self.home / "storage"),
            "output_uri": f"filess/p/j/{attempt_id}",
        }
        job = Job(name="my-job", command=CommandSpec(run=run, **spec), **job_fields)  # type: ignore[arg-type]
        return AttemptOrder(attempt_id=attempt_id, job=job, **{**fields, **changes})  # type: ignore[arg-type]

    def close(self) -> None:
        pods = [path.name for path in (self.home / "pods").glob("*")]
        self.site.tear_down(pods)
        self.site.close()
        self.control.close()
