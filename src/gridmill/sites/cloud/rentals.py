"""The machines of a cloud site: their requests to the provider, their preparation, and the connections to
machines that are ready."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from gridmill.domain.amounts import show_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.lease import DISK_BYTES, LaunchTry, Lease, LeaseState
from gridmill.domain.machine import Machine
from gridmill.domain.machine_image import MachineImage
from gridmill.domain.site import Site
from gridmill.errors import GridmillError, MachineFaultError, NotFoundError, UnavailableError
from gridmill.plugins import find
from gridmill.ports.cloud import ImageProvider, LaunchRequest, MachineReport
from gridmill.ports.site import SitePort
from gridmill.settings import Settings
from gridmill.sites.cloud.boot import END, NOTICES, WatchSettings, user_data
from gridmill.sites.cloud.bucket_settings import bucket_credentials
from gridmill.sites.cloud.connection import MachineConnection, contact_seconds, in_contact
from gridmill.sites.cloud.facts import Promise
from gridmill.sites.cloud.image_build import ImageBuild, build_image
from gridmill.sites.cloud.keys import KeyFolder, delete_keys, keys_of
from gridmill.sites.cloud.machine import PORT, RentedMachine
from gridmill.sites.cloud.settings import CloudSettings

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
_LEAST_LEASE_SECONDS = 60.0
_FARM = "farm"
_MARGIN_SECONDS = 300.0
"""The machine uploads results and checkpoints this long before its longest time ends."""


def watch_settings(lease: Lease, provider: str, end_command: str = "") -> WatchSettings:
    """Returns the settings of the watcher on the machine of a lease. They depend only on the terms of the
    lease and on the command with which the machine ends itself (empty: a shutdown), so that a repeated
    request has the same user data."""
    terms = lease.terms
    dead_man = max(1, int(terms.dead_man_seconds))
    return WatchSettings(
        dead_man_seconds=dead_man,
        cap_seconds=max(1, int(terms.max_seconds)),
        margin_seconds=int(min(_MARGIN_SECONDS, terms.max_seconds / 10)),
        notice_command=NOTICES.get(provider, "") if terms.spot else "",
        step_seconds=max(1, min(5, dead_man // 20)),
        end_command=end_command or END,
    )


def launch_request(
    lease: Lease,
    launch_try: LaunchTry,
    owner: str,
    keys: KeyFolder,
    site: CloudSettings,
    end_command: str = "",
) -> LaunchRequest:
    """Returns the request for the machine of a try, which ends itself with `end_command` (empty: with a
    shutdown). The keys of the machine are created if they are missing. Raises StorageError,
    UnavailableError."""
    made = keys.make()
    return LaunchRequest(
        token=launch_try.token,
        lease=lease.id,
        owner=owner,
        region=launch_try.region,
        zone=launch_try.zone,
        instance_type=launch_try.instance_type,
        image=lease.terms.image,
        spot=launch_try.spot,
        disk_bytes=lease.terms.disk_bytes or DISK_BYTES,
        ssh_public_key=made.user_public,
        user_data=user_data(watch_settings(lease, site.provider, end_command), made),
        max_seconds=lease.terms.max_seconds,
        allowed_addresses=site.allowed_addresses,
    )


def promise_of(lease: Lease, site: CloudSettings) -> Promise:
    """Returns what the machine of a lease must have."""
    return Promise(
        cpus=lease.needs_cpus,
        memory_bytes=lease.needs_memory_bytes,
        gpus=lease.needs_gpus,
        gpu_memory_bytes=lease.terms.gpu_memory_bytes or 0,
        least_driver=site.least_driver,
        needs_container=lease.needs_container,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Preparing:
    """A machine that is being prepared, and the seconds that each finished phase took."""

    machine: RentedMachine
    seconds: dict[str, float]


class Rentals:
    """The machines of the open leases. This class is safe to call from several threads."""

    def __init__(
        self,
        settings: Settings,
        site: Site,
        parsed: CloudSettings,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        end_command: Callable[[str], str] = lambda _: "",
        exports: object = None,
        resolve: Callable[[str], str] | None = None,
    ) -> None:
        """`end_command` returns the command with which the machine of a token ends itself. `exports` are the
        results that machines export to a bucket. `resolve` returns the value of a secret."""
        self._settings, self._site, self._parsed, self._resolve = settings, site, parsed, resolve
        self._end_command, self._exports = end_command, exports
        self._monotonic, self._now = monotonic, now
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._preparing: dict[str, _Preparing] = {}
        self._prepared: dict[str, RentedMachine] = {}
        """The machines whose open SSH connection is used again by their `MachineConnection`."""
        self._connections: dict[str, MachineConnection] = {}
        self._phases: dict[str, str] = {}
        self._forgetting: dict[str, threading.Lock] = {}
        self._forgotten: set[str] = set()
        """The leases that are being released. Their machines are never used again."""
        self._heartbeat = monotonic()
        self._closed = False

    def heartbeat(self) -> None:
        """See RentingSite.heartbeat."""
        self._heartbeat = self._monotonic()

    def is_needed(self, lease: Lease) -> bool:
        """Returns whether the control node has worked lately, so that it can still end the machine."""
        return self._monotonic() - self._heartbeat < lease.terms.dead_man_seconds / 2

    def keys(self, lease: Lease, number: int) -> KeyFolder:
        """Returns the keys for the machine of a try."""
        return keys_of(self._settings.home, lease.id, number)

    def prepare(self, lease: Lease, machine: Machine, *, is_key_injected: bool) -> MachineReport:
        """See RentingSite.prepare_machine."""
        keys = self._reachable_keys(lease, machine, is_key_injected=is_key_injected)
        work = self._work(lease, keys)
        rented = work.machine
        self._timed(work, "ssh", rented.wait_for_ssh)
        with in_contact(rented, self._contact_seconds(lease), lambda: self.is_needed(lease)):
            facts = self._timed(work, "check", lambda: rented.check(promise_of(lease, self._parsed)))
            installed = self._timed(work, "install", lambda: rented.install(facts))
            if not lease.image_name:  # the machine of a build runs no pod
                self._timed(work, "start", lambda: self._start(rented))
        self._say(lease.id, "")
        with self._lock:
            self._preparing.pop(keys.alias, None)
            self._prepared[keys.alias] = rented
        return MachineReport(
            address=machine.address,
            cpus=facts.cpus,
            memory_bytes=facts.memory_bytes,
            gpus=tuple(gpu.model for gpu in facts.gpus),
            driver=facts.driver,
            installed=installed.how,
            seconds=dict(work.seconds),
        )

    def _reachable_keys(self, lease: Lease, machine: Machine, *, is_key_injected: bool) -> KeyFolder:
        if not machine.address:
            raise UnavailableError(f"the machine {machine.id} has no address yet")
        keys = self.keys(lease, _number(lease))
        try:
            keys.read()
        except NotFoundError as error:
            raise MachineFaultError(error.message, hint=error.hint) from error
        keys.write_config(machine.address, is_key_injected=is_key_injected)
        return keys

    def _work(self, lease: Lease, keys: KeyFolder) -> _Preparing:
        with self._lock:
            work = self._preparing.get(keys.alias)
            if work is None:
                work = self._preparing[keys.alias] = _Preparing(machine=self._rented(lease, keys), seconds={})
            return work

    def _rented(self, lease: Lease, keys: KeyFolder) -> RentedMachine:
        last = lease.last_try
        end_command = "" if last is None else self._end_command(last.token)
        watch = watch_settings(lease, self._parsed.provider, end_command)
        wheels = self._settings.home / "cache" / "wheels"
        say = partial(self._say, lease.id)
        return RentedMachine(keys, self._parsed, watch, say, wheels=wheels)

    def _timed(self, work: _Preparing, phase: str, act: Callable[[], _T]) -> _T:
        began = self._monotonic()
        try:
            return act()
        finally:
            work.seconds[phase] = work.seconds.get(phase, 0.0) + self._monotonic() - began

    def _start(self, rented: RentedMachine) -> None:
        folder = rented.keys.path / _FARM
        joined = (folder / "farm.json").exists()
        line = rented.start(joined=joined)
        if not joined:
            keys = rented.keys
            find("machines", "join")(
                folder,
                self._settings.home,
                port=PORT,
                ssh=keys.alias,
                ssh_options=keys.options,
                line=line,
            )

    def connection(self, lease: Lease) -> MachineConnection:
        """Returns the connection to the machine of a READY lease, and opens it at its first use. Raises
        UnavailableError."""
        with self._connecting:
            known = self._connections.get(lease.id)
            if known is not None:
                return known
            if self._closed or lease.id in self._forgotten:
                raise UnavailableError(f"the machine of lease {lease.id} is not used any more")
            opened = self._connections[lease.id] = self._connect(lease)
        opened.start()
        return opened

    def _connect(self, lease: Lease) -> MachineConnection:
        keys = self.keys(lease, _number(lease))
        launched = lease.last_try.confirmed if lease.last_try is not None else None
        left = lease.terms.max_seconds - (self._now() - (launched or self._now()))
        seconds = max(_LEAST_LEASE_SECONDS, left)
        try:
            farm: SitePort = find("machines", "open")(
                self._settings,
                self._site,
                keys.path / _FARM,
                seconds,
                exports=self._exports,
                lease=lease,
                credentials=bucket_credentials(self._site),
                resolve=self._resolve,
            )
        except GridmillError as error:
            raise UnavailableError(
                f"the machine of lease {lease.id} cannot be used: {error.message}", hint=error.hint
            ) from error
        except OSError as error:
            raise UnavailableError(f"the machine of lease {lease.id} cannot be used: {error}") from error
        with self._lock:
            rented = self._prepared.pop(keys.alias, None)
        return MachineConnection(
            rented or self._rented(lease, keys),
            farm,
            self._contact_seconds(lease),
            lambda: self.is_needed(lease),
            self._monotonic,
        )

    def build(self, lease: Lease, machine: Machine, images: ImageProvider) -> MachineImage:
        """See BuildingSite.build_image."""
        keys = self._reachable_keys(lease, machine, is_key_injected=True)
        with self._lock:
            rented = self._prepared.get(keys.alias)
            if rented is None:
                rented = self._prepared[keys.alias] = self._rented(lease, keys)
        with in_contact(rented, self._contact_seconds(lease), lambda: self.is_needed(lease)):
            return build_image(
                ImageBuild(
                    lease=lease,
                    machine=machine,
                    images=images,
                    rented=rented,
                    say=lambda text: self._say(lease.id, text),
                    is_wanted=lambda: not (self._closed or lease.id in self._forgotten),
                    monotonic=self._monotonic,
                )
            )

    def _contact_seconds(self, lease: Lease) -> float:
        return contact_seconds(lease.terms.dead_man_seconds, is_spot=lease.terms.spot)

    def open_connections(self) -> Mapping[str, MachineConnection]:
        """Returns the connections that are open now, by lease id."""
        with self._connecting:
            return dict(self._connections)

    def connect_soon(self, leases: Sequence[Lease]) -> None:
        """Opens the connections to the machines of READY leases in the background."""
        with self._connecting:
            new = [
                one
                for one in leases
                if one.state is LeaseState.READY and not one.image_name and one.id not in self._connections
            ]
        if new:
            threading.Thread(
                target=self._connect_all, args=(new,), name="gridmill-connect", daemon=True
            ).start()

    def _connect_all(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            try:
                self.connection(lease)
            except UnavailableError as error:
                _LOG.warning("no_connection lease=%s reason=%s", lease.id, error)

    def forget(self, lease: Lease) -> None:
        """See RentingSite.forget_lease."""
        with self._lock:
            forgetting = self._forgetting.setdefault(lease.id, threading.Lock())
        # one call after the other, because an open connection writes into the folder that is deleted
        with forgetting:
            self._disconnect(lease)
            if lease.state is LeaseState.CLOSED:
                delete_keys(self._settings.home, lease.id)

    def _disconnect(self, lease: Lease) -> None:
        with self._connecting:
            if lease.state in (LeaseState.RELEASING, LeaseState.CLOSED):
                self._forgotten.add(lease.id)
            connection = self._connections.pop(lease.id, None)
        with self._lock:
            unused = [
                machine
                for name, machine in self._unconnected().items()
                if name.rpartition("-")[0] == lease.id
            ]
            for machine in unused:
                self._preparing.pop(machine.keys.alias, None)
                self._prepared.pop(machine.keys.alias, None)
            self._phases.pop(lease.id, None)
        if connection is not None:
            connection.close()
        for machine in unused:
            machine.close()

    def _unconnected(self) -> dict[str, RentedMachine]:
        return {name: one.machine for name, one in self._preparing.items()} | self._prepared

    def progress(self, lease: str) -> str:
        """See RentingSite.progress."""
        with self._lock:
            phase = self._phases.get(lease, "")
        connection = self._connections.get(lease)
        if phase or connection is None:
            return phase
        if connection.notice:
            return f"the provider ends the machine: {connection.notice}"
        silent = connection.silent_seconds
        return f"no contact for {show_seconds(silent)}" if silent > _SILENT_SECONDS else ""

    def used_seconds(self, lease: str) -> float | None:
        """See TimedSite.used_seconds."""
        connection = self._connections.get(lease)
        state = None if connection is None else connection.state
        return None if state is None else float(state.used_seconds)

    def _say(self, lease: str, text: str) -> None:
        with self._lock:
            self._phases[lease] = text

    def close(self) -> None:
        """Closes all connections. The machines and their pods continue."""
        with self._connecting:
            self._closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        with self._lock:
            unused = list(self._unconnected().values())
            self._preparing.clear()
            self._prepared.clear()
        for connection in connections:
            with suppress(UnavailableError):
                connection.close()
        for machine in unused:
            machine.close()


_SILENT_SECONDS = 30.0


def _number(lease: Lease) -> int:
    return lease.last_try.number if lease.last_try is not None else 0
