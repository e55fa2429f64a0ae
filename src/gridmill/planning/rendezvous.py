"""Where the ranks of a gang meet: a port for each, and what all of them know of each other."""

import hashlib
from collections.abc import Collection, Mapping, Sequence

from gridmill.model.gang import Gang, Member, roles_in_order
from gridmill.model.run import Attempt

FIRST_PORT, PORTS = 20_000, 12_000
"""Below what systems give to outgoing connections, and above what most services listen on."""


def choose_ports(tokens: Sequence[str], taken: Collection[int]) -> tuple[int, ...]:
    """A port for each rank, by its attempt's token, other than those taken and than each other's. The pod
    that serves it looks whether it is free; the next attempt has other tokens, and so other ports."""
    used = set(taken)
    ports: list[int] = []
    for token in tokens:
        start = int.from_bytes(hashlib.sha256(token.encode()).digest()[:8], "big")
        ports.append(_first_free(start, used))
        used.add(ports[-1])
    return tuple(ports)


def _first_free(start: int, used: Collection[int]) -> int:
    places = (FIRST_PORT + (start + step) % PORTS for step in range(PORTS))
    return next((port for port in places if port not in used), FIRST_PORT)


def gang_of(
    members: Sequence[Attempt], rank: int, roles: Mapping[str, int], *, by_pod: bool, restarts: int
) -> Gang:
    """The gang of these attempts (by rank) as one of them sees it.

    Hosts are told apart by their addresses. `by_pod`: each pod counts as a host of its own, because its
    ranks see no devices but its own.
    """
    named = zip(members, roles_in_order(len(members), roles), strict=True)
    return Gang(
        id=members[0].id,
        rank=rank,
        restarts=restarts,
        members=tuple(
            Member(
                rank=one.rank,
                host=one.pod_id if by_pod else one.address,
                address=one.address,
                port=one.port,
                role=role,
                gpus=one.gpu_indices,
            )
            for one, role in named
        ),
    )
