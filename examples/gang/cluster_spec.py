"""The classic pattern on Slurm: a TensorFlow ClusterSpec from the job's list of nodes, a server per task.

Every task works the same cluster out from what Slurm says, and finds itself in it; several tasks of a node
get one port after the other. With TensorFlow it goes on
`tf.distribute.Server(cluster, job_name=job, task_index=index)`.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping

from hostlist import expand_hostlist

FIRST_PORT = 12_000


def tasks_per_node(text: str) -> Iterator[int]:
    """`2(x3),1` is 2, 2, 2, 1."""
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ValueError(f"{text!r} is no SLURM_TASKS_PER_NODE")
        yield from (int(found[1]) for _ in range(int(found[2] or 1)))


def servers(environment: Mapping[str, str]) -> list[str]:
    """`host:port` of each task, in the order of SLURM_PROCID (tasks laid out in blocks, Slurm's default)."""
    hosts = expand_hostlist(environment["SLURM_JOB_NODELIST"])
    counts = tasks_per_node(environment["SLURM_TASKS_PER_NODE"])
    first = FIRST_PORT + int(environment["SLURM_JOB_ID"]) % 1000 * 16
    return [
        f"{host}:{first + local}" for host, count in zip(hosts, counts, strict=True) for local in range(count)
    ]


def cluster_spec(
    environment: Mapping[str, str], parameter_servers: int = 1
) -> tuple[dict[str, list[str]], str, int]:
    """The cluster, and this task's job and index in it: the first tasks are parameter servers."""
    every, me = servers(environment), int(environment["SLURM_PROCID"])
    cluster = {"ps": every[:parameter_servers], "worker": every[parameter_servers:]}
    if me < parameter_servers:
        return cluster, "ps", me
    return cluster, "worker", me - parameter_servers


if __name__ == "__main__":
    cluster, job, index = cluster_spec(os.environ)
    print(json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}), flush=True)
