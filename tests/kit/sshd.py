"""An SSH server of the tests' own: this machine behind a port of its loopback, for one key."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kit.ports import free_port

HOW_TO_GET_IT = "needs root and an SSH server and client: apt-get install openssh-server openssh-client"
_SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def is_installed() -> bool:
    """Whether there is one to start."""
    return os.geteuid() == 0 and Path(_SSHD).exists() and shutil.which("ssh") is not None


@dataclass(frozen=True)
class Sshd:
    """`address` is `ssh://USER@HOST:PORT`; `config` what `ssh -F` needs to get in."""

    address: str
    config: Path


@contextmanager
def ssh_server(environment: Mapping[str, str]) -> Iterator[Sshd]:
    """A running server; `environment` is what its sessions have."""
    with tempfile.TemporaryDirectory(prefix="sshd-") as name:
        folder, port = Path(name), free_port()
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized_keys")
        Path("/run/sshd").mkdir(exist_ok=True)
        host = " ".join((folder / "host.pub").read_text().split()[:2])
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host}\n")
        (folder / "config").write_text(
            f"IdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known_hosts\n"
        )
        settings = {
            "ListenAddress": f"127.0.0.1:{port}",
            "HostKey": f"{folder}/host",
            "AuthorizedKeysFile": f"{folder}/authorized_keys",
            "PidFile": "none",
            "UsePAM": "no",
            "StrictModes": "no",
            "PermitRootLogin": "prohibit-password",
            "Subsystem": "sftp internal-sftp",
            "SetEnv": " ".join(f"{name}={value}" for name, value in environment.items()),
        }
        text = "".join(f"{name} {value}\n" for name, value in settings.items())
        (folder / "sshd_config").write_text(text)
        server = subprocess.Popen(
            [_SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=(folder / "log").open("wb")
        )
        try:
            _wait(server, folder / "log")
            yield Sshd(address=f"ssh://root@127.0.0.1:{port}", config=folder / "config")
        finally:
            server.terminate()
            server.wait()


def _wait(server: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 120
    while "Server listening" not in log.read_text():
        if server.poll() is not None or time.monotonic() > until:
            raise RuntimeError(log.read_text())
        time.sleep(0.02)
