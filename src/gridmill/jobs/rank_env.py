"""The environment variables of a rank of a gang, for torchrun, TensorFlow and JAX."""

import json
from collections.abc import Sequence

from gridmill.domain.gang import WORKER, Gang, GangMember

EVALUATOR = "evaluator"


def gang_environment(gang: Gang) -> dict[str, str]:
    """Return all environment variables of a rank. The variables of Slurm (`SLURM_*`) are not changed."""
    return {**_torch(gang), **_jax(gang), "TF_CONFIG": tf_config(gang)}


def _torch(gang: Gang) -> dict[str, str]:
    """Return the variables of torchrun. A "group" of torchrun is a host. Rank 0 serves the store at
    MASTER_ADDR:MASTER_PORT."""
    me, local_members = gang.me, gang.local_members
    hosts = list(dict.fromkeys(member.host for member in gang.members))
    alike = _alike(gang.members, me)
    values = {
        "MASTER_ADDR": gang.members[0].address,
        "MASTER_PORT": gang.members[0].port,
        "WORLD_SIZE": len(gang.members),
        "RANK": gang.rank,
        "LOCAL_WORLD_SIZE": len(local_members),
        "LOCAL_RANK": local_members.index(me),
        "GROUP_WORLD_SIZE": len(hosts),
        "GROUP_RANK": hosts.index(me.host),
        "ROLE_NAME": me.role,
        "ROLE_WORLD_SIZE": len(alike),
        "ROLE_RANK": alike.index(me),
        "TORCHELASTIC_RUN_ID": gang.id,
        "TORCHELASTIC_RESTART_COUNT": gang.restarts,
        "TORCHELASTIC_USE_AGENT_STORE": False,
    }
    return {name: str(value) for name, value in values.items()}


def _jax(gang: Gang) -> dict[str, str]:
    """Return the environment variables of JAX.

    Rank 0 is the coordinator of JAX. `jax.distributed.initialize` reads the address of the coordinator from
    the environment. The program must pass the number of processes and the process id to
    `jax.distributed.initialize` (JAX 0.7 detects them only for a few cluster managers).
    """
    first = gang.members[0]
    return {
        "JAX_COORDINATOR_ADDRESS": _reached(first),
        "JAX_NUM_PROCESSES": str(len(gang.members)),
        "JAX_PROCESS_ID": str(gang.rank),
        **_jax_devices(gang),
    }


def _jax_devices(gang: Gang) -> dict[str, str]:
    """Return the GPUs of this rank, as numbers among the GPUs that the ranks of the host can use."""
    before = gang.local_members[: gang.local_members.index(gang.me)]
    first, count = sum(len(member.gpus) for member in before), len(gang.me.gpus)
    return {"JAX_LOCAL_DEVICE_IDS": ",".join(str(first + k) for k in range(count))} if count else {}


def tf_config(gang: Gang) -> str:
    """Return the environment variable TF_CONFIG of TensorFlow (JSON). Every rank listens on a port of its
    own. A rank with the role of an evaluator does not belong to the cluster in TF_CONFIG."""
    roles = dict.fromkeys(member.role for member in gang.members if member.role != EVALUATOR)
    cluster = {role: [_reached(one) for one in gang.members if one.role == role] for role in roles}
    me = gang.me
    task = {"type": me.role or WORKER, "index": _alike(gang.members, me).index(me)}
    return json.dumps({"cluster": cluster, "task": task})


def _alike(members: Sequence[GangMember], me: GangMember) -> list[GangMember]:
    return [member for member in members if member.role == me.role]


def _reached(member: GangMember) -> str:
    address = f"[{member.address}]" if ":" in member.address else member.address
    return f"{address}:{member.port}"
