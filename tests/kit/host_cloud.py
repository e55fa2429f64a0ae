"""A cloud provider whose machines are virtual hosts: each boots with cloud-init and its user data, and has a
real SSH server and a real shutdown."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gridmill.domain.machine import Leftover, Machine, MachineState, Offer, ProviderTraits, SelfEnd
from gridmill.plugins import TABLES
from gridmill.ports.cloud import AccountCheck, LaunchRequest
from gridmill.testing.hosts import Host, Network, why_no_hosts
from tests.kit import sshd

HOW_TO_GET_IT = "needs cloud-init: apt-get install cloud-init"
_SMALL = Offer(
    provider="hosts",
    region="here",
    zones=("here-a",),
    instance_type="host.small",
    cpus=2,
    memory_bytes=2 << 30,
    price_micros=100_000,
    spot_price_micros=30_000,
)
_GPU = replace(_SMALL, instance_type="host.gpu", gpus=2, gpu_model="A10G", gpu_memory_bytes=24 << 30)
_SMI = """#!/bin/sh
for number in NUMBERS; do
    case $* in
        *driver_version*) echo "NVIDIA A10G, 23028, DRIVER" ;;
        *) echo "NVIDIA A10G, 23028, 0, 0" ;;
    esac
done
"""
_CONFIG = """
datasource_list: [NoCloud]
network: {config: disabled}
cloud_init_modules: [bootcmd, write-files, users-groups, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user]
users: []
"""
_STAGES = ("init --local", "init", "modules --mode=config", "modules --mode=final")
_SSHD = ("/usr/sbin/sshd", "-o", "UsePAM=no", "-o", "UseDNS=no")


def why_not() -> str:
    """What this machine lacks; empty if there is nothing."""
    missing = why_no_hosts() or ("" if sshd.is_installed() else sshd.HOW_TO_GET_IT)
    return missing or ("" if shutil.which("cloud-init") else HOW_TO_GET_IT)


@dataclass
class HostMachine:
    """`host` is there once it is powered on."""

    machine: Machine
    request: LaunchRequest
    host: Host | None = None
    booted: threading.Event = field(default_factory=threading.Event)
    error: str = ""


class HostCloud:
    """Implements CloudPort. `image` is run on each host before it boots, and `opens_ssh` says whether its
    SSH server starts."""

    def __init__(self, net: Network, first: int = 20) -> None:
        self.net, self._number = net, first
        self.traits = ProviderTraits(self_end=SelfEnd.SHUTDOWN, list_lag_seconds=0.0)
        self.image: Callable[[Host], None] = prepared_image
        self.opens_ssh = True
        self.every: dict[str, HostMachine] = {}
        self._lock = threading.Lock()

    def account_name(self) -> str:
        return "hosts"

    def check_account(self, region: str) -> AccountCheck:
        return AccountCheck(account="hosts")

    def offers(self, region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        return tuple(
            one
            for one in (_SMALL, _GPU)
            if one.region.startswith(region) and instance_type in ("", one.instance_type)
        )

    def launch(self, request: LaunchRequest) -> Machine:
        with self._lock:
            known = self.every.get(request.token)
            if known is not None:
                assert known.request == request, "a repeated request must be the same"
                return known.machine
            number = self._number
            self._number += 1
            made = Machine(
                id=f"h-{number}",
                provider="hosts",
                region=request.region,
                zone=request.zone,
                instance_type=request.instance_type,
                state=MachineState.PENDING,
                lease=request.lease,
                owner=request.owner,
                token=request.token,
                address=f"{self.net.prefix}.{number}",
                launched=time.time(),
            )
            one = self.every[request.token] = HostMachine(machine=made, request=request)
        threading.Thread(target=self._boot, args=(one, number), daemon=True).start()
        return made

    def _boot(self, one: HostMachine, number: int) -> None:
        try:
            one.host = self.net.host(f"m{number}", number)
            self.image(one.host)
            seed = f"/proc/{one.host.init}/root/var/lib/cloud/seed/nocloud"
            one.host.run("bash", "-c", "rm -rf /var/lib/cloud; mkdir -p /var/lib/cloud/seed/nocloud")
            Path(seed, "user-data").write_text(one.request.user_data)
            Path(seed, "meta-data").write_text(f"instance-id: {one.machine.id}\n")
            Path(f"/proc/{one.host.init}/root/etc/cloud/cloud.cfg").write_text(_CONFIG)
            self.boot(one)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            one.error = str(error)  # it was ended while it booted
        one.booted.set()

    def boot(self, one: HostMachine) -> None:
        """What a machine does at each boot."""
        assert one.host is not None
        for stage in _STAGES:
            one.host.run("bash", "-c", f"cloud-init {stage}", check=False)
        if self.opens_ssh:
            one.host.run("bash", "-c", f"mkdir -p /run/sshd; {' '.join(_SSHD)}")

    def machines(self, owner: str = "") -> tuple[Machine, ...]:
        return tuple(self._seen(one) for one in self.every.values() if owner in ("", one.machine.owner))

    def _seen(self, one: HostMachine) -> Machine:
        if has_ended(one):
            if one.host is not None:
                one.host._process = None  # nothing is left to power off
            return replace(one.machine, state=MachineState.ENDED)
        state = MachineState.RUNNING if one.host is not None else MachineState.PENDING
        return replace(one.machine, state=state)

    def of(self, lease: str) -> HostMachine:
        """The last machine of that lease."""
        return [one for one in self.every.values() if one.request.lease == lease][-1]

    def terminate(self, machine: Machine) -> None:
        for one in self.every.values():
            if one.machine.id == machine.id:
                one.booted.wait(120)
                power_off(one)

    def leftovers(self, owner: str = "") -> tuple[Leftover, ...]:
        return ()

    def delete(self, leftover: Leftover) -> None:
        """There are none."""

    def close(self) -> None:
        """The machines continue."""


def has_ended(one: HostMachine) -> bool:
    """Whether its first process has ended, however it did."""
    process = one.host._process if one.host is not None else None
    return one.booted.is_set() and (process is None or process.poll() is not None)


def power_off(one: HostMachine) -> None:
    """Cut its power; nothing where it has ended."""
    if one.host is None:
        return
    if has_ended(one):
        one.host._process = None
    one.host.power_off()


def prepared_image(host: Host) -> None:
    """An image with Gridmill of this version."""
    host.run("ln", "-sfn", sys.prefix, "/opt/gridmill")


def image_with_gpus(count: int, driver: str = "550.54.15") -> Callable[[Host], None]:
    """An image with so many GPUs, as far as its `nvidia-smi` knows."""
    program = _SMI.replace("NUMBERS", " ".join(map(str, range(count)))).replace("DRIVER", driver)

    def image(host: Host) -> None:
        prepared_image(host)
        path = Path(f"/proc/{host.init}/root/usr/bin/nvidia-smi")
        path.write_text(program)
        path.chmod(0o755)

    return image


def plug_in(cloud: HostCloud) -> None:
    """Make it the provider `hosts` of this process."""
    globals()["_cloud"] = cloud
    TABLES["clouds"]["hosts"] = f"{__name__}:_make"  # type: ignore[index]


def _make(settings: Mapping[str, str], resolve: object) -> HostCloud:
    made = globals()["_cloud"]
    assert isinstance(made, HostCloud)
    return made
