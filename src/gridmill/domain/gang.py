"""This module describes a gang: one program in several ranks that start together, know each other's
addresses and end together."""

from collections.abc import Iterator, Mapping

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

CHIEF, WORKER, SERVER = "chief", "worker", "ps"
ROLES = (CHIEF, WORKER, SERVER, "evaluator")
"""The roles that a rank can have, for frameworks that distinguish ranks (with the names of TensorFlow)."""
MOST_RANKS = 10_000
RANK_VARIABLES = frozenset(
    (
        *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK"),
        *("GROUP_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "ROLE_RANK"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"),
        *("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS"),
        "TF_CONFIG",
    )
)
"""All environment variables that a rank may receive from Gridmill. Gridmill removes these variables from the
environment in which it was started, because a single job with these variables would wait forever for other
ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """One rank of a gang, and the host on which it runs. Ranks with the same `host` have the local ranks 0,
    1, ... on that host.

    `address` is the address by which other hosts connect to the rank. `port` is a TCP port of the host that
    is reserved for this attempt. `gpus` are the numbers of the GPUs on the host that the rank has received.
    """

    rank: int
    host: str
    address: str
    port: int
    role: str = WORKER
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """The description of a gang that one of its ranks receives. `members` has all ranks in order, `rank` is
    the number of this rank, and `restarts` is the number of earlier attempts."""

    id: str
    rank: int
    members: tuple[GangMember, ...]
    restarts: int = 0

    @property
    def me(self) -> GangMember:
        """The member of the gang that has the number `rank`."""
        return self.members[self.rank]

    @property
    def local_members(self) -> tuple[GangMember, ...]:
        """The members on the host of this rank, including this rank, in the order of their local ranks."""
        return tuple(member for member in self.members if member.host == self.me.host)


def member_id(gang: str, rank: int) -> str:
    """Return the attempt id of a rank. Rank 0 has the same id as the gang."""
    return f"{gang}.{rank}" if rank else gang


def roles_in_order(workers: int, roles: Mapping[str, int]) -> tuple[str, ...]:
    """Return the role of each rank: each role has as many ranks as declared, in the order of the
    declaration."""
    return tuple(_each(roles)) if roles else (WORKER,) * workers


def _each(roles: Mapping[str, int]) -> Iterator[str]:
    for role, count in roles.items():
        yield from (role for _ in range(count))


def count_workers(workers: int | None, roles: Mapping[str, int]) -> int:
    """Return the declared number of ranks; 0 if the job is not a gang."""
    if workers is not None:
        return workers
    return sum(roles.values()) if roles else 0


def check_gang(workers: int | None, roles: Mapping[str, int], place: str) -> None:
    """Raise InputError for counts out of range, for unknown roles, and for roles whose counts do not add up
    to `workers`."""
    if workers is not None and not 1 <= workers <= MOST_RANKS:
        raise InputError(f"workers is {workers}; it must be 1 to {MOST_RANKS:,}", place=f"{place}.workers")
    for role, count in roles.items():
        if role not in ROLES:
            raise InputError(
                f"unknown role {role!r}", hint=f"Roles: {', '.join(ROLES)}.", place=f"{place}.roles"
            )
        if count < 1:
            raise InputError(f"{role} is {count}; it must be at least 1", place=f"{place}.roles")
    if roles.get("chief", 0) > 1:
        raise InputError("a gang has only one chief", place=f"{place}.roles")
    total = sum(roles.values())
    if roles and workers is not None and workers != total:
        raise InputError(
            f"the roles have {total} workers, and `workers` is {workers}",
            hint="Leave out `workers`: its value is the sum of the roles.",
            place=f"{place}.workers",
        )
