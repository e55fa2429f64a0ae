"""A deployment's files, as the archive in which they go to the cluster."""

import io
import tarfile
import time
from collections.abc import Sequence
from dataclasses import replace

from gridmill.codec import encode
from gridmill.model.message import PodOrder
from gridmill.sites.slurm import script
from gridmill.sites.slurm.script import Batch
from gridmill.sites.slurm.wishes import Wishes


def packed(batch: Batch, wishes: Wishes, orders: Sequence[PodOrder]) -> bytes:
    """A deployment's files, for its user only: orders hold secrets."""
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
