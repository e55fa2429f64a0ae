"""Connects the containers of a gang's ranks, which are the nodes of one job of the service.

The service gives the address of rank 0 to the containers of all other ranks. These containers write their own
addresses into the bucket, where all ranks read them.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from gridmill.domain.frozen import replace
from gridmill.domain.gang import Gang, GangMember
from gridmill.errors import GridmillError, NotFoundError, UnavailableError
from gridmill.sites.batch.exchange import Exchange, repeated, waiting_for_access
from gridmill.sites.batch.manifest import (
    RankAddress,
    address_object,
    beat_object,
    rank_ended_object,
    ranks_folder,
)
from gridmill.transfer.errors import TransferRefusedError

_ANY_PORT = 9
_GATHER_SECONDS = 900.0
"""A gang whose ranks do not all start within this number of seconds ends."""
_FAILED_SECONDS = 600.0
"""After a failure, rank 0 waits at most this number of seconds for the home, which ends the job."""
_BEAT_SECONDS = 30.0
"""The time between two signs of life of a rank."""
_SILENT_SECONDS = 600.0
"""A rank that has not ended and gives no sign of life for this number of seconds does not run any more."""
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
        self.silent_rank: int | None = None
        """As rank 0, the number of a rank that gives no sign of life. While the home is away, rank 0 would
        wait for this rank for ever."""
        self._beats, self._looked = 0, 0.0
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gridmill-ranks", daemon=True)

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
        self._thread.start()

    def _run(self) -> None:
        while True:
            with suppress(GridmillError):
                self.turn()
            if self._closed.wait(_BEAT_SECONDS):
                return

    def turn(self) -> None:
        """Gives a sign of life to rank 0, or, as rank 0, looks for the signs of the other ranks. Raises
        UnavailableError, TransferRefusedError."""
        if self._gang.rank == 0:
            return self._look()
        self._beats += 1
        return self._exchange.bucket.put(beat_object(self._gang.id, self._gang.rank), b"%d" % self._beats)

    def _look(self) -> None:
        # the time in which the bucket does not answer does not count, because no rank can give a sign then
        now = self._monotonic()
        passed, self._looked = min(now - self._looked, 2 * _BEAT_SECONDS), now
        ended = self._ended_ranks()
        for rank in range(1, len(self._gang.members)):
            beat, silent_seconds = self._seen.get(rank, (b"", 0.0))
            found = b"" if rank in ended else self._beat_of(rank)
            silent_seconds = silent_seconds + passed if found == beat and rank not in ended else 0.0
            self._seen[rank] = found, silent_seconds
            if silent_seconds >= _SILENT_SECONDS:
                self.silent_rank = rank

    def _beat_of(self, rank: int) -> bytes:
        try:
            return self._exchange.bucket.get(beat_object(self._gang.id, rank), 100)
        except NotFoundError:
            return b""

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
        if self._gang.rank == 0:
            self._looked = self._monotonic()
            self._thread.start()
        return with_addresses(
            self._gang, [records[1].first, *(records[rank].address for rank in sorted(records))]
        )

    def end(self, *, done: bool) -> None:
        """Records the end of this rank. As rank 0, waits until all other ranks have ended or give no sign of
        life, because the end of node 0 ends all nodes. `done` is whether this rank succeeded."""
        try:
            if self._gang.rank:
                repeated(waiting_for_access(self._record_end), self._sleep)
            else:
                self._wait_for_others(done=done)
        finally:
            self._closed.set()

    def _record_end(self) -> None:
        if not self._exchange.is_deleted(self._gang.id):
            self._exchange.bucket.put(rank_ended_object(self._gang.id, self._gang.rank), b"{}")

    def _wait_for_others(self, *, done: bool) -> None:
        until = None if done else self._monotonic() + _FAILED_SECONDS
        pause = _PAUSE_SECONDS
        while not self._is_terminated() and (until is None or self._monotonic() < until):
            with suppress(UnavailableError, TransferRefusedError):
                if self.silent_rank is not None or self._others_ended():
                    return
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _others_ended(self) -> bool:
        """Returns whether all other ranks have ended, or the home has deleted the gang."""
        count = len(self._gang.members) - 1
        return len(self._ended_ranks()) >= count or self._exchange.is_deleted(self._gang.id)

    def _ended_ranks(self) -> frozenset[int]:
        folder = f"{ranks_folder(self._gang.id)}/"
        names = {name.rpartition("/")[2] for page in self._exchange.bucket.names(folder) for name in page}
        ranks = range(1, len(self._gang.members))
        return frozenset(rank for rank in ranks if f"{rank}.ended" in names)


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
