"""How the containers of a gang's ranks learn each other's addresses."""

from gridmill.domain.gang import Gang, GangMember
from gridmill.sites.batch.ranks import address_towards, with_addresses


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
