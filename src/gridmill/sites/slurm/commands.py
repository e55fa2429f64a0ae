"""Runs Slurm's commands on this machine, or on a login node over SSH, and packs the files of a deployment.

The files of a deployment are sent to the cluster as an archive.
"""

import io
import os
import tarfile
import time
from collections.abc import Sequence
from dataclasses import replace

from gridmill.codec import encode
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.site import Site
from gridmill.errors import InputError
from gridmill.sites.slurm import script
from gridmill.sites.slurm.script import BatchJob
from gridmill.sites.slurm.settings import SlurmSettings, settings_of
from gridmill.sites.ssh import TIMEOUT_SECONDS, CompletedCommand, Shell, SshShell, run_command

_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "SLURM_CONF")
"""The environment variables that local commands get. Other variables are left out, because sbatch passes its
environment on to the job and Slurm records it."""


class LocalShell:
    """Runs commands on this machine."""

    def run(
        self, script: str, data: bytes | None = None, *, seconds: float = TIMEOUT_SECONDS
    ) -> CompletedCommand:
        """See Shell."""
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        words = ["/bin/sh", "-s"] if data is None else ["/bin/sh", "-c", script]
        return run_command(words, script, data, env=environment, seconds=seconds, what="Slurm's commands")

    def close(self) -> None:
        """Does nothing."""


def shell_of(site: Site) -> Shell:
    """Returns the shell for commands on this machine, or on the login node at `ssh://[USER@]HOST[:PORT]`.
    Raises InputError."""
    if not site.address:
        return LocalShell()
    target = site.address.removeprefix("ssh://").rstrip("/")
    if target == site.address or not target or target.startswith("-") or "/" in target:
        raise InputError(
            f"{site.address!r} is not the address of a login node",
            hint="Write ssh://USER@HOST. If sbatch can run on this machine, remove the address.",
            place=f"site {site.name}: address",
        )
    return SshShell(f"ssh://{target}", settings_of(site).ssh)


def check_site(site: Site) -> None:
    """Raises InputError if the address or a setting is invalid."""
    settings_of(site)
    shell_of(site)


def packed(batch: BatchJob, wishes: SlurmSettings, orders: Sequence[PodOrder]) -> bytes:
    """Returns an archive with the files of a deployment. Only the user can read the files, because orders
    contain secrets."""
    here = f"deployments/{batch.deployment_id}"
    files = {
        f"{here}/script": script.batch_script(batch, wishes).encode(),
        f"{here}/pod.sh": script.pod_script(batch, wishes).encode(),
        f"{here}/pods": "\n".join([*batch.pods, ""]).encode(),
        **{f"pods/{order.pod_id}/order.json": encode(replace(order, home=batch.folder)) for order in orders},
    }
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()
