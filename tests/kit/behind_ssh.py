"""A farm that is reached through SSH alone: the SSH server of its machine, and home's key for that."""

from pathlib import Path

from tests.kit.farmland import Farmland
from tests.kit.machines import Machines


def sshd(land: Machines) -> None:
    """The SSH server of beta, which lets alpha's root in."""
    options = ("PidFile=none", "UsePAM=no", "PasswordAuthentication=no", "UseDNS=no")
    words = [word for option in options for word in ("-o", option)]
    land.start(land.beta, "sshd", "/usr/sbin/sshd", "-D", "-e", *words)
    land.wait(lambda: "listening" in land.said("sshd"), "sshd listens")


def make_keys(land: Machines) -> None:
    """Of beta, which alpha does not know yet, and of alpha's root, whom beta's knows."""
    key = "rm -rf /root/.ssh && mkdir -m 700 /root/.ssh && ssh-keygen -q -t ed25519 -N '' -f"
    land.alpha.run("bash", "-c", f"{key} /root/.ssh/id_ed25519")
    land.beta.run("bash", "-c", f"mkdir -p /run/sshd; rm -f /etc/ssh/ssh_host_*; {key} /root/.ssh/id")
    public = land.alpha.run("cat", "/root/.ssh/id_ed25519.pub")
    (Path(land.shared) / "public").write_text(public)
    land.beta.run("bash", "-c", f"install -m 600 {land.shared}/public /root/.ssh/authorized_keys")
    land.beta.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/etc/ssh/ssh_host_ed25519_key")


def known_host(land: Machines, key: str = "") -> None:
    """From now on alpha believes that this public key is beta's (empty: the one that it is)."""
    key = key or land.beta.run("cat", "/etc/ssh/ssh_host_ed25519_key.pub")
    line = f"{land.beta.address} {' '.join(key.split()[:2])}"
    land.alpha.run("bash", "-c", f"echo '{line}' > /root/.ssh/known_hosts")


def go_behind(land: Farmland) -> None:
    """From now on the farm listens on its machine alone, and home goes through SSH."""
    make_keys(land)
    sshd(land)
    known_host(land)
    land.kill(land.beta, "farm")
    land.listens, land.controller = "127.0.0.1", f"ssh://root@{land.beta.address}"
    land.farm_up()
    land.gridmill("configure", "site", "far", "--address", land.controller)
    land.wait(lambda: "does not answer" not in land.gridmill("status"), "the farm answers through SSH")


def ssh_of_home(land: Farmland) -> list[str]:
    """The processes of it."""
    return land.alpha.run("bash", "-c", "pgrep -x ssh || true").split()
