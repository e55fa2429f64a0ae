"""What is evicted where a disk is short: the oldest first, of that disk alone, and no more than it lacks."""

from gridmill.control.removable import oldest_for
from gridmill.domain.usage import DiskSpace
from gridmill.ports.disk import DiskArea, DiskItem


def item(name: str, area: DiskArea, size_bytes: int, changed: float) -> DiskItem:
    return DiskItem(area=area, name=name, size_bytes=size_bytes, changed=changed)


def space(place: str, free_bytes: int) -> DiskSpace:
    return DiskSpace(place=place, path="/", size_bytes=10_000, free_bytes=free_bytes, reserve_bytes=400)


UNUSED = [
    item("code", DiskArea.CODE, 100, 3.0),
    item("environment", DiskArea.ENVIRONMENT, 100, 1.0),
    item("report", DiskArea.REPORT, 100, 2.0),
    item("output", DiskArea.OUTPUT, 1000, 0.0),
]


def test_the_oldest_goes_first_until_the_reserve_is_free_again() -> None:
    chosen = oldest_for([space("home", 350), space("storage root", 5000)], UNUSED)
    assert [one.name for one in chosen] == ["environment", "report"]


def test_items_of_the_root_go_for_the_root() -> None:
    chosen = oldest_for([space("home", 5000), space("storage root", 100)], UNUSED)
    assert [one.name for one in chosen] == ["output"]


def test_home_and_root_on_one_disk_are_one() -> None:
    assert [one.name for one in oldest_for([space("home", 399)], UNUSED)] == ["output"]


def test_nothing_goes_while_there_is_room() -> None:
    assert oldest_for([space("home", 400)], UNUSED) == []
