"""How the containers of a gang's ranks learn each other's addresses."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.kit.batch_memory import Bucket

from gridmill.domain.gang import Gang, GangMember
from gridmill.errors import UnavailableError
from gridmill.sites.batch.exchange import Exchange
from gridmill.sites.batch.manifest import manifest_object
from gridmill.sites.batch.ranks import Ranks, address_towards, with_addresses


def test_each_rank_is_alone_on_its_host_with_its_own_gpus() -> None:
    members = tuple(
        GangMember(rank=rank, host="here", address="here", port=20_000 + rank, gpus=(2 * rank, 2 * rank + 1))
        for rank in range(2)
    )
    gang = with_addresses(Gang(id="g", rank=1, members=members), ["10.0.0.1", "10.0.0.2"])
    assert [one.address for one in gang.members] == ["10.0.0.1", "10.0.0.2"]
    assert gang.local_members == (gang.me,)
    assert gang.me.gpus == (0, 1)
    assert gang.me.port == 20_001


def test_the_own_address_is_that_of_the_way_to_rank_0() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"


class Gathered:
    """Rank 0 of a gang of three with a bucket in a folder and a clock that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.time, self.bucket = 0.0, Bucket(f"file://{folder}")
        self.exchange = Exchange(self.bucket)
        self.exchange.write(manifest_object("g"), {})
        self.ranks = [self._rank(number) for number in range(3)]

    def _rank(self, number: int) -> Ranks:
        members = tuple(GangMember(rank=rank, host="h", address="a", port=20_000 + rank) for rank in range(3))
        gang = Gang(id="g", rank=number, members=members)
        return Ranks(self.exchange, gang, "127.0.0.1", lambda: False, lambda: self.time, self.wait)

    def wait(self, seconds: float) -> None:
        self.time += seconds
        self.ranks[0].turn()

    def pass_time(self, minutes: int, living: Sequence[int]) -> None:
        for _ in range(2 * minutes):
            for rank in living:
                self.ranks[rank].turn()
            self.wait(30.0)


def test_rank_0_does_not_wait_for_a_rank_that_gives_no_sign_of_life(tmp_path: Path) -> None:
    gang = Gathered(tmp_path)
    gang.ranks[1].end(done=True)
    gang.pass_time(60, [2])
    assert gang.ranks[0].silent_rank is None  # rank 1 has ended, and rank 2 runs
    gang.pass_time(9, [])
    assert gang.ranks[0].silent_rank is None
    gang.ranks[0].end(done=True)  # the home is away, and nobody else ends the job
    assert gang.ranks[0].silent_rank == 2
    assert gang.time < 3600 + 660


def test_no_rank_is_silent_only_because_the_bucket_does_not_answer(tmp_path: Path) -> None:
    gang = Gathered(tmp_path)
    gang.pass_time(1, [1, 2])
    gang.bucket.error = UnavailableError("the bucket does not answer")
    for _ in range(100):
        gang.time += 60.0
        with pytest.raises(UnavailableError):
            gang.ranks[0].turn()
    gang.bucket.error = None
    gang.pass_time(9, [])
    assert gang.ranks[0].silent_rank is None
    gang.pass_time(60, [1, 2])
    assert gang.ranks[0].silent_rank is None


def test_a_rank_records_no_end_of_a_gang_that_the_home_has_deleted(tmp_path: Path) -> None:
    gang = Gathered(tmp_path)
    gang.exchange.delete_attempt("g")
    gang.ranks[1].end(done=False)
    assert not [name for page in gang.bucket.names("") for name in page]
