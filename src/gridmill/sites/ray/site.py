"""The Ray site: it implements SitePort and uses a bridge, which is the only process that loads Ray and is a
driver of the cluster.

Ray requires the same version of Python and of Ray on all its nodes, starts threads and may end its process.
A control node cannot accept any of these effects of Ray. If a bridge dies or hangs, a new bridge is started.
The new start of a bridge does not affect the pods. `local_address_towards` first checks whether a Ray head
listens at an address, because Ray itself would try to connect for a minute.
"""

import os
import secrets
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.domain.amounts import parse_seconds
from gridmill.domain.naming import read_address
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.serving import Upstream
from gridmill.domain.site import MOST_NODES, Node, NodeUtilization, Site, check_settings
from gridmill.errors import InputError, UnavailableError
from gridmill.ports.site import PodListeners, PodReport, SitePort
from gridmill.settings import Settings
from gridmill.sites.marks import mark_root
from gridmill.sites.ray.protocol import BridgeHello, BridgeRequest, BridgeResponse
from gridmill.sites.service_address import upstream_at

SECONDS = 5.0
_SETTINGS = 4
_EMPTY_SETTINGS = bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _EMPTY_SETTINGS
_TYPE_AT = 3


def local_address_towards(host: str, port: int) -> str:
    """Returns the address of this machine for connections to that host. Raises OSError if the host does not
    answer."""
    with socket.create_connection((host, port), timeout=SECONDS) as opened:
        return str(opened.getsockname()[0])


def answers(host: str, port: int) -> bool:
    """Whether a program answers."""
    with suppress(OSError):
        return bool(local_address_towards(host, port))
    return False


def speaks(host: str, port: int, seconds: float = SECONDS) -> bool:
    """Returns whether the program at this address may be Ray. Ray's servers use gRPC and therefore HTTP/2,
    whose server starts with a SETTINGS frame (RFC 9113, 3.4). If Ray uses TLS, the function cannot recognize
    Ray. Raises OSError if no program listens at the address, or if the program does not answer in time."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return True
    with socket.create_connection((host, port), timeout=seconds) as opened, suppress(ConnectionError):
        opened.sendall(_HELLO)
        head = opened.recv(len(_EMPTY_SETTINGS), socket.MSG_WAITALL)
        return len(head) > _TYPE_AT and head[_TYPE_AT] == _SETTINGS
    return False


SETTINGS = {
    "control": "HOST[:PORT] at which pods reach this machine (default: its address on the way to the "
    "cluster)",
    "home": "the folder of pods on the nodes (default: /tmp/gridmill-MARK)",
    "token_file": "a file with the cluster's token; without it RAY_AUTH_MODE and RAY_AUTH_TOKEN are used",
    MOST_NODES: "the largest number of nodes that the cluster can have; if it is not set, a gang that is "
    "too large waits for more nodes",
    "patience": "the time after which the pods of a lost node count as ended (default: 75s)",
}
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONUNBUFFERED": "1",
}
_BRIDGE = ["-m", "gridmill.sites.ray.bridge"]
_PATIENCE = "75s"
_START_SECONDS = 60.0
_ANSWER_SECONDS = 20.0
_LOG_BYTES = 2**20


class RaySite:
    """Implements SitePort with a Ray cluster. The class is safe to call from several threads, and handles
    one request at a time."""

    def __init__(self, opening: BridgeHello, link: str, environment: Mapping[str, str], log: Path) -> None:
        self._opening = opening
        self._link = link
        self._environment = environment
        self._log = log
        self._lock = threading.Lock()
        self._bridge: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._unread = b""

    def nodes(self) -> tuple[Node, ...]:
        """Returns the cluster's living nodes with the resources that Ray reports for them. Raises
        UnavailableError."""
        return self._ask(BridgeRequest(operation="nodes")).nodes

    def utilization(self) -> Mapping[str, NodeUtilization]:
        """Returns the load that each living node measures."""
        return self._ask(BridgeRequest(operation="looks")).utilization

    def link(self) -> str:
        """Returns the address to which pods connect."""
        return self._link

    def pod_home(self, pod_id: str) -> str:
        """Returns the folder of pods, which has the same path on every node."""
        return self._opening.home

    def prepare(self) -> None:
        """Does nothing, because the survey of the nodes starts the bridge."""

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Requests a placement group for the pods of a deployment. Ray places either all pods or none. The
        function does not wait for the placement."""
        if orders:
            self._ask(BridgeRequest(operation="bring_up", orders=tuple(orders)))

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        """Returns the reports on all these pods, which are read with one request."""
        return (
            self._ask(BridgeRequest(operation="observe", pods=tuple(pod_ids))).pod_reports if pod_ids else {}
        )

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        """Returns the events in the journal on the pod's node, or an empty sequence if the node is lost."""
        return self._ask(BridgeRequest(operation="undelivered_events", pods=(pod_id,))).events

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """Ends the pods and releases their placement groups."""
        if pod_ids:
            self._ask(BridgeRequest(operation="tear_down", pods=tuple(pod_ids)))

    def upstream(self, pod_id: str, attempt_id: str, address: str) -> Upstream | None:
        """See ServingSite. The router connects to the address of the node at which the replicas listen."""
        host, _, port = address.rpartition(":")
        return upstream_at(host, int(port), attempt_id) if host else None

    def close(self) -> None:
        """Ends the bridge. The actors and their pods continue to run. Callers that still wait get an error
        immediately."""
        self._closed = True
        bridge = self._bridge
        if bridge is not None:
            bridge.kill()
        with self._lock:
            self._end()

    # --- the bridge

    def _ask(self, bridge_request: BridgeRequest) -> BridgeResponse:
        with self._lock:
            bridge = self._living()
            answer = self._exchange(bridge, encode(bridge_request), _ANSWER_SECONDS)
        return _checked(answer)

    def _living(self) -> subprocess.Popen[bytes]:
        self._want_open()
        if self._bridge is None or self._bridge.poll() is not None:
            self._end()
            _want_answer(self._opening.address)
            self._bridge = self._start()
            try:
                self._want_open()
                _checked(self._exchange(self._bridge, encode(self._opening), _START_SECONDS))
            except UnavailableError:
                self._end()
                raise
        return self._bridge

    def _want_open(self) -> None:
        """Raises an error if the site is closed. The check is made before and after a bridge is started, so
        that no bridge continues to run after `close`."""
        if self._closed:
            raise UnavailableError("the site is closed because it was removed or changed")

    def _start(self) -> subprocess.Popen[bytes]:
        self._unread = b""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        large = self._log.exists() and self._log.stat().st_size > _LOG_BYTES
        with self._log.open("wb" if large else "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", *_BRIDGE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                cwd="/",
                start_new_session=True,
            )

    def _exchange(self, bridge: subprocess.Popen[bytes], line: bytes, seconds: float) -> BridgeResponse:
        assert bridge.stdin is not None
        try:
            bridge.stdin.write(line + b"\n")
            bridge.stdin.flush()
            answer = self._read_line(bridge, seconds)
        except OSError as error:
            self._end()
            raise UnavailableError(
                f"the process that connects to Ray ended ({error})", hint=self._hint()
            ) from error
        return decode(answer, BridgeResponse)

    def _read_line(self, bridge: subprocess.Popen[bytes], seconds: float) -> bytes:
        assert bridge.stdout is not None
        descriptor = bridge.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([descriptor], [], [], seconds)[0]:
                raise TimeoutError(f"no answer within {seconds:g} s")
            data = os.read(descriptor, 2**16)
            if not data:
                raise BrokenPipeError("it closed its output")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _hint(self) -> str:
        return (
            f"Check that the cluster runs at {self._opening.address}. The log of the process is {self._log}."
        )

    def _end(self) -> None:
        bridge, self._bridge = self._bridge, None
        if bridge is None:
            return
        bridge.kill()
        bridge.wait()
        for stream in (bridge.stdin, bridge.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # raised if the bridge did not read the last request
                    stream.close()


def _want_answer(address: str) -> None:
    """Checks whether the address answers before Ray is used, because Ray itself would try to connect for a
    minute. Raises UnavailableError."""
    try:
        ray = speaks(*read_address(address.removeprefix("ray://")))
    except OSError as error:
        raise UnavailableError(
            f"no Ray cluster answers at {address}: {error.strerror or error}",
            hint="Check that the cluster runs. On a node of the cluster the address is HOST:6379 of the "
            "head, elsewhere ray://HOST:10001.",
        ) from error
    if not ray:
        raise UnavailableError(
            f"the program that listens at {address} is not a Ray cluster",
            hint="Use the port of the head. It is 6379 if the head was started without --port.",
        )


def _checked(answer: BridgeResponse) -> BridgeResponse:
    if answer.error:
        raise UnavailableError(answer.error, hint=answer.hint)
    return answer


def make(settings: Settings, site: Site, doors: PodListeners) -> SitePort:
    """Makes the Ray site. Raises InputError if a setting is invalid, and UnavailableError if Ray is not
    installed."""
    check_site(site)
    folder = settings.home / "sites" / site.name
    mark = _mark(folder)
    opening = BridgeHello(
        address=site.address or "",
        mark=mark,
        notes=str(folder / "pods"),
        home=site.settings.get("home", f"/tmp/gridmill-{mark}"),
        environment=_pod_environment(settings),
        root_mark=str(mark_root(settings.root, mark)),
        patience_seconds=_patience_seconds(site),
    )
    return RaySite(opening, _listener_link(site, doors), _environment(site), folder / "bridge.log")


def check_site(site: Site) -> None:
    """Raises InputError if the address or a setting is invalid, and UnavailableError if Ray is not
    installed."""
    check_settings(site, SETTINGS)
    if find_spec("ray") is None:
        raise UnavailableError("the package `ray` is not installed", hint="pip install 'gridmill[ray]'")
    if not site.address:
        raise InputError(
            f"site {site.name} has no address",
            hint="If this machine is a node of the cluster, use --address HOST:6379 of the head, otherwise "
            "--address ray://HOST:10001.",
            place=f"site {site.name}: address",
        )
    _check_address(site)
    _patience_seconds(site)


def _patience_seconds(site: Site) -> float:
    try:
        return parse_seconds(site.settings.get("patience", _PATIENCE))
    except InputError as error:
        place = f"site {site.name}: settings.patience"
        raise InputError(error.message, hint=error.hint, place=place) from error


def _check_address(site: Site) -> None:
    place = f"site {site.name}: "
    read_address((site.address or "").removeprefix("ray://"), place=place + "address")
    control = site.settings.get("control", "")
    if control:
        read_address(control, port=1, place=place + "settings.control")


def _mark(folder: Path) -> str:
    """Returns the random name that distinguishes the pods of this home from other pods on the same cluster.
    The name is created once."""
    path = folder / "mark"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = folder / f".mark.{os.getpid()}"
        draft.write_text(secrets.token_hex(8))
        draft.rename(path)
    return path.read_text()


def _pod_environment(settings: Settings) -> dict[str, str]:
    return {
        "GRIDMILL_ROOT": str(settings.root),
        "GRIDMILL_GRACE": str(settings.grace_seconds),
        "GRIDMILL_CGROUPS": str(int(settings.cgroups)),
        "GRIDMILL_ZYGOTE": str(int(settings.zygote)),
    }


def _environment(site: Site) -> dict[str, str]:
    """Returns the environment of the bridge. The environment always sets Ray's mode of authentication,
    because otherwise a file in ~/.ray would set the mode."""
    environment = {**os.environ, **RAY_ENVIRONMENT}
    token_file = site.settings.get("token_file")
    if token_file:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(Path(token_file).absolute())}
    environment.setdefault("RAY_AUTH_MODE", "disabled")
    return environment


def _listener_link(site: Site, doors: PodListeners) -> str:
    given = site.settings.get("control", "")
    host, port = read_address(given, port=0) if given else (_facing(site.address or ""), 0)
    return doors.tls(host, port)


def _facing(address: str) -> str:
    """Returns the address of this machine for connections to the cluster. Raises UnavailableError."""
    host, _ = read_address(address.removeprefix("ray://"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # connecting a UDP socket sends nothing, but selects the local address
        except OSError as error:
            raise UnavailableError(
                f"{address!r} cannot be reached: {error.strerror or error}",
                hint="Check that the address is HOST:PORT. `gridmill configure site NAME --set "
                "control=HOST` sets the address at which pods reach this machine.",
            ) from error
        return str(probe.getsockname()[0])
