"""Connects the containers of a gang's ranks, which are the nodes of one job of the service.

The service gives the address of rank 0 to the containers of all other ranks. These containers write their own
addresses into the bucket, where all ranks read them.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress

from gridmill.domain.frozen import replace
from gridmill.domain.gang import Gang, GangMember
from gridmill.errors import UnavailableError
from gridmill.sites.batch.exchange import Exchange, repeated
from gridmill.sites.batch.manifest import (
    RankAddress,
    address_object,
    manifest_object,
    rank_ended_object,
    ranks_folder,
)

_ANY_PORT = 9
_GATHER_SECONDS = 900.0
"""A gang whose ranks do not all start within this number of seconds ends."""
_FAILED_SECONDS = 600.0
"""After a failure, rank 0 waits at most this number of seconds for the home, which ends the job."""
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 3.0


class Ranks:
    """The ranks of a gang, as the container of one of them sees them."""

    def __init__(
        self,
        exchange: Exchange,
        gang: Gang,
        first_address: str,
        is_terminated: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`first_address` is the address of rank 0, which the container of rank 0 does not need."""
        self._exchange, self._gang, self._first_address = exchange, gang, first_address
        self._is_terminated, self._monotonic, self._sleep = is_terminated, monotonic, sleep

    def announce(self) -> None:
        """Writes the address of this rank. Raises UnavailableError if the service has not given the address
        of rank 0, or if the bucket does not answer."""
        if self._gang.rank == 0:
            return
        if not self._first_address:
            raise UnavailableError("the service has not given the address of rank 0 to this container")
        record = RankAddress(address=address_towards(self._first_address), first=self._first_address)
        name = address_object(self._gang.id, self._gang.rank)
        repeated(lambda: self._exchange.write(name, record), self._sleep)

    def gather(self) -> Gang:
        """Waits for the addresses of all ranks and returns the gang with them. Raises UnavailableError if a
        rank does not start, or if the service ends this container meanwhile."""
        records: dict[int, RankAddress] = {}
        until, pause = self._monotonic() + _GATHER_SECONDS, _PAUSE_SECONDS
        while len(records) < len(self._gang.members) - 1:
            for rank in range(1, len(self._gang.members)):
                with suppress(UnavailableError):
                    found = self._exchange.read(address_object(self._gang.id, rank), RankAddress)
                    records |= {rank: found} if found is not None else {}
            if len(records) == len(self._gang.members) - 1:
                break
            if self._is_terminated():
                raise UnavailableError("the service ended the container while other ranks started")
            if self._monotonic() >= until:
                missing = next(rank for rank in range(1, len(self._gang.members)) if rank not in records)
                raise UnavailableError(f"rank {missing} has not started within {_GATHER_SECONDS:g} s")
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return with_addresses(
            self._gang, [records[1].first, *(records[rank].address for rank in sorted(records))]
        )

    def end(self, *, done: bool) -> None:
        """Records the end of this rank. As rank 0, waits until all other ranks have ended, because the end of
        node 0 ends all nodes. `done` is whether this rank succeeded."""
        if self._gang.rank:
            name = rank_ended_object(self._gang.id, self._gang.rank)
            repeated(lambda: self._exchange.bucket.put(name, b"{}"), self._sleep)
            return
        until = None if done else self._monotonic() + _FAILED_SECONDS
        pause = _PAUSE_SECONDS
        while not self._is_terminated() and (until is None or self._monotonic() < until):
            with suppress(UnavailableError):
                if self._others_ended():
                    return
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _others_ended(self) -> bool:
        """Returns whether all other ranks have ended, or the home has deleted the gang."""
        names = (
            name for page in self._exchange.bucket.names(f"{ranks_folder(self._gang.id)}/") for name in page
        )
        ended = sum(name.endswith(".ended") for name in names)
        return ended >= len(self._gang.members) - 1 or not self._exchange.bucket.has(
            manifest_object(self._gang.id)
        )


def address_towards(address: str) -> str:
    """Returns the address of this machine from which it reaches the other address. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, _ANY_PORT))
        own: str = probe.getsockname()[0]
        return own


def with_addresses(gang: Gang, addresses: list[str]) -> Gang:
    """Returns the gang whose ranks have these addresses, in order. Each rank is alone on its host, and its
    GPUs have the numbers from 0."""
    pairs = zip(gang.members, addresses, strict=True)
    return replace(gang, members=tuple(_alone(member, address) for member, address in pairs))


def _alone(member: GangMember, address: str) -> GangMember:
    gpus = tuple(range(len(member.gpus)))
    return replace(member, host=f"node-{member.rank}", address=address, gpus=gpus)
