"""The machines of the simulated EC2 are real: they boot, answer by SSH, shut down, and leave nothing "
"behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from gridmill.testing.cloud.ec2.records import Instance, State
from gridmill.testing.cloud.ec2.simulation import EC2Simulation, simulated_ec2
from gridmill.testing.cloud.namespace_machines import NamespaceMachines, why_no_machines
from tests.e2e.conftest import eventually
from tests.kit.ec2 import client, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_machines()), reason=why_no_machines()),
]
OPTIONS = (
    *("-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"),
    *("-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=5"),
)
ENDS_ITSELF = {"InstanceInitiatedShutdownBehavior": "terminate"}


class Machines:
    """A simulated EC2 with real machines, and a key for them."""

    def __init__(self, simulation: EC2Simulation, host: NamespaceMachines, key: Path) -> None:
        self.simulation, self.host, self.key = simulation, host, key
        self.ec2 = client(simulation)
        self.ec2.import_key_pair(KeyName="key", PublicKeyMaterial=key.with_suffix(".pub").read_bytes())
        self.group = self.ec2.create_security_group(GroupName="ssh", Description="SSH")["GroupId"]
        self.open(self.group, f"{host.address}/32")

    def open(self, group: str, network: str) -> None:
        """Opens port 22 for a network."""
        rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": network}]}
        self.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])

    def launch(self, **parameters: Any) -> Instance:
        """Launches a machine; as soon as it runs."""
        made = run(self.ec2, **{"KeyName": "key", "SecurityGroupIds": [self.group], **parameters})
        assert eventually(lambda: self.of(made).state == State.RUNNING)
        return self.of(made)

    def of(self, instance_id: str) -> Instance:
        """The machine now."""
        return next(one for one in self.simulation.machines() if one.id == instance_id)

    def ssh(
        self, machine: Instance, command: str, user: str = "ubuntu"
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command on a machine."""
        words = ["ssh", "-i", str(self.key), *OPTIONS, f"{user}@{machine.public_address}", command]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)

    def booted(self, **parameters: Any) -> Instance:
        """Launches a machine; as soon as SSH answers and its user data has run."""
        machine = self.launch(**parameters)
        assert eventually(lambda: self.ssh(machine, "cloud-init status").stdout == "status: done\n")
        return machine

    def inside(self, machine: Instance, *words: str) -> str:
        """What a command prints that is run without SSH."""
        command = self.host.command(machine.id, *words)
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    key = new_key(tmp_path)
    host = NamespaceMachines()
    with simulated_ec2(host=host) as simulation:
        yield Machines(simulation, host, key)


def new_key(folder: Path) -> Path:
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key


def test_a_machine_boots_with_its_user_data_and_has_its_own_disk_and_metadata(machines: Machines):
    user_data = """#cloud-config
write_files:
  - {path: /etc/lease, content: "lease 7\\n", permissions: "0600"}
runcmd:
  - [sh, -c, "cat /etc/lease > /root/ran"]
"""
    one = machines.booted(UserData=user_data)
    other = machines.booted()
    done = machines.ssh(
        one, "hostname; sudo -n cat /root/ran; sudo -n stat -c %a /etc/lease; ls /tmp /opt /home"
    )
    assert done.stdout.split("\n")[:4] == [f"ip-{one.address.replace('.', '-')}", "lease 7", "600", "/home:"]
    assert "No such file" in machines.ssh(other, "cat /etc/lease").stderr
    assert not Path("/etc/lease").exists()
    assert metadata(machines, one, "instance-id") == one.id
    assert metadata(machines, other, "placement/availability-zone") == other.zone
    assert metadata(machines, one, "spot/instance-action") == "404"
    assert "SSH HOST KEY" in machines.ec2.get_console_output(InstanceId=one.id)["Output"]


def metadata(machines: Machines, machine: Instance, path: str) -> str:
    """An item of the metadata, or the status of the error."""
    script = """
import sys, urllib.error, urllib.request
base = "http://169.254.169.254/latest/"
token = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
try:
    put = urllib.request.Request(base + "api/token", headers=token, method="PUT")
    got = {"X-aws-ec2-metadata-token": urllib.request.urlopen(put).read().decode()}
    get = urllib.request.Request(base + "meta-data/" + sys.argv[1], headers=got)
    print(urllib.request.urlopen(get).read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""
    return machines.inside(machine, "/usr/bin/python3", "-c", script, path).strip()


@pytest.mark.skipif(shutil.which("cloud-init") is None, reason="apt-get install cloud-init")
def test_the_user_data_can_be_carried_out_by_the_real_cloud_init(tmp_path: Path):
    user_data = """#cloud-config
write_files: [{path: /etc/lease, content: "lease 7"}]
timezone: Europe/Paris
runcmd: [[sh, -c, "cat /etc/lease > /var/ran"]]
"""
    key = new_key(tmp_path)
    host = NamespaceMachines(real_cloud_init=True)
    with simulated_ec2(host=host) as simulation:
        machines = Machines(simulation, host, key)
        machine = machines.launch(UserData=user_data)
        assert eventually(lambda: machines.ssh(machine, "cat /var/ran").stdout == "lease 7"), host.console(
            machine.id
        )
        assert 'Please login as the user \\"ubuntu' in machines.inside(
            machine, "cat", "/root/.ssh/authorized_keys"
        )
        assert machines.inside(machine, "hostname").strip() == f"ip-{machine.address.replace('.', '-')}"


def test_root_is_told_to_log_in_as_the_user_of_the_image(machines: Machines):
    refused = machines.ssh(machines.booted(), "id", user="root")
    assert refused.returncode == 142
    assert 'Please login as the user "ubuntu"' in refused.stdout


def test_a_host_key_of_the_user_data_is_the_machines(machines: Machines, tmp_path: Path):
    path = tmp_path / "host"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    keys = {"ed25519_private": path.read_text(), "ed25519_public": path.with_suffix(".pub").read_text()}
    machine = machines.booted(UserData=f"#cloud-config\n{json.dumps({'ssh_keys': keys})}")
    scanned = subprocess.run(
        ["ssh-keyscan", "-t", "ed25519", machine.public_address], capture_output=True, text=True, check=True
    )
    assert scanned.stdout.split()[1:3] == keys["ed25519_public"].split()[:2]


@pytest.mark.parametrize(("behavior", "state"), [("terminate", State.TERMINATED), ("stop", State.STOPPED)])
def test_a_shutdown_inside_the_machine_ends_the_instance(machines: Machines, behavior: str, state: State):
    machine = machines.booted(InstanceInitiatedShutdownBehavior=behavior)
    machines.ssh(machine, "sudo shutdown -h now")
    assert eventually(lambda: machines.of(machine.id).state == state)
    assert machines.of(machine.id).reason_code == "Client.InstanceInitiatedShutdown"


def test_a_machine_that_should_end_itself_only_stops_if_the_fault_says_so(machines: Machines):
    machines.simulation.faults.shutdown_terminates = False
    machine = machines.booted(**ENDS_ITSELF)
    machines.ssh(machine, "sudo poweroff")  # which may end with the machine, before it has an exit code
    assert eventually(lambda: machines.of(machine.id).state == State.STOPPED)


def test_a_planned_shutdown_can_be_cancelled(machines: Machines):
    machine = machines.booted(**ENDS_ITSELF)
    machines.inside(machine, "shutdown", "-h", "+1")
    assert "sleep 60" in machines.inside(machine, "ps", "-e", "-o", "args")
    machines.inside(machine, "shutdown", "-c")
    assert eventually(lambda: "sleep 60; exec" not in machines.inside(machine, "ps", "-e", "-o", "args"))


def test_terminate_ends_all_processes_of_the_machine(machines: Machines):
    machine = machines.booted()
    machines.inside(machine, "sh", "-c", "setsid sleep 87654 < /dev/null > /dev/null 2>&1 &")
    assert processes("sleep 87654")
    machines.ec2.terminate_instances(InstanceIds=[machine.id])
    assert eventually(lambda: not processes("sleep 87654"))
    assert machines.ssh(machine, "true").returncode == 255


def test_a_spot_machine_sees_its_notice_and_is_terminated(machines: Machines):
    machine = machines.booted(InstanceMarketOptions={"MarketType": "spot"})
    machines.simulation.faults.notice_seconds = 3600.0
    machines.simulation.interrupt(machine.id)
    notice = json.loads(metadata(machines, machine, "spot/instance-action"))
    assert notice["action"] == "terminate"
    machines.simulation.faults.notice_seconds = 0.0
    machines.simulation.interrupt(machine.id)
    assert eventually(lambda: machines.of(machine.id).state == State.TERMINATED)
    assert machines.of(machine.id).reason_code == "Server.SpotInstanceTermination"


def test_a_machine_that_never_boots_runs_and_does_not_answer(machines: Machines):
    machines.simulation.faults.never_boot_next = 1
    machine, other = machines.launch(), machines.booted()
    with socket.socket() as connection:
        connection.settimeout(10)
        with pytest.raises(ConnectionRefusedError):
            connection.connect((machine.public_address, 22))
    assert machines.of(machine.id).state == machines.of(other.id).state == State.RUNNING


def test_a_port_is_closed_until_a_security_group_opens_it(machines: Machines):
    group = machines.ec2.create_security_group(GroupName="closed", Description="closed")["GroupId"]
    machine = machines.launch(SecurityGroupIds=[group])
    assert eventually(lambda: b"END SSH HOST KEY" in machines.host.console(machine.id))
    with socket.socket() as connection:
        connection.settimeout(2)
        with pytest.raises(TimeoutError):
            connection.connect((machine.public_address, 22))
    machines.open(group, "0.0.0.0/0")
    assert eventually(lambda: machines.ssh(machine, "true").returncode == 0)


def test_what_a_machine_sends_is_on_the_bill(machines: Machines):
    machine = machines.booted()
    assert len(machines.ssh(machine, "head -c 3000000 /dev/zero").stdout) == 3_000_000
    machines.ec2.terminate_instances(InstanceIds=[machine.id])
    [egress] = [one for one in machines.simulation.bill().of(machine.id).items if one.charge == "egress"]
    assert int(egress.detail.split()[0]) > 3_000_000
    assert egress.amount_micros >= 3_000_000 * 90_000 // 2**30


def processes(words: str) -> list[str]:
    """The command lines with these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in line:
            found.append(line)
    return found


def devices(pid: int) -> list[str]:
    """The network devices of a process that simulates machines."""
    return [name for name in os.listdir("/sys/class/net") if name.startswith(f"gm{pid:x}")]


def test_nothing_is_left_when_the_server_is_killed(tmp_path: Path):
    server = subprocess.Popen(
        [sys.executable, "-m", "gridmill.testing.cloud.ec2", "--machines", "namespaces"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert server.stdout is not None
    told = json.loads(server.stdout.readline())
    ec2 = boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=told["endpoint_url"],
        aws_access_key_id=told["access_key"],
        aws_secret_access_key=told["secret_key"],
    )
    made = run(ec2, UserData="#!/bin/sh\nsetsid sleep 76543 &\n")
    assert eventually(lambda: processes("sleep 76543") != [])
    assert len(devices(server.pid)) == 1
    assert processes(str(tmp_path)), made
    server.send_signal(signal.SIGKILL)
    server.wait()
    server.stdout.close()
    assert eventually(lambda: not processes("sleep 76543") and not processes(str(tmp_path)))
    assert eventually(lambda: not devices(server.pid) and os.listdir(tmp_path) == [])
