"""Pages of lists: limits in items and bytes, cursors that are refused, and the sequence that reads them."""

from base64 import urlsafe_b64encode

import pytest

from gridmill.errors import GridmillError, InputError
from gridmill.ports.pages import MOST_ITEMS, PAGE_BYTES, Page, cut_page, page_by_names, page_request
from gridmill.sdk.listing import Listing

LETTERS = tuple("abcdefghij")


def page(limit: int, cursor: str | None, items: tuple[str, ...] = LETTERS) -> Page[str]:
    request = page_request(tuple, "letters", limit, cursor)
    return page_by_names(request, reversed(items), lambda one: (one,))


def test_pages_follow_each_other_in_order() -> None:
    first = page(4, None)
    second = page(4, first.next_cursor)
    third = page(4, second.next_cursor)
    assert first.items + second.items + third.items == LETTERS
    assert third.next_cursor is None
    assert page(10, None) == Page(items=LETTERS), "a last page that is full has no cursor"


def test_a_cursor_stays_valid_when_its_item_is_deleted() -> None:
    cursor = page(4, None).next_cursor
    assert page(4, cursor, tuple("abcefgxyz")).items == tuple("efgx")


@pytest.mark.parametrize("size", [1, 100, PAGE_BYTES // 3, PAGE_BYTES, 3 * PAGE_BYTES])
def test_a_page_is_bounded_in_bytes_and_has_an_item_at_least(size: int) -> None:
    items = tuple(f"{number}" + "x" * size for number in range(4))
    found, cursor = list[str](), None
    while True:
        one = page(1000, cursor, items)
        assert one.items
        assert len(one.items) == 1 or sum(map(len, one.items)) <= PAGE_BYTES
        found += one.items
        cursor = one.next_cursor
        if cursor is None:
            break
    assert tuple(found) == items


def test_no_more_is_read_than_a_page_needs() -> None:
    read = list[int]()

    def following() -> object:
        for number in range(100):
            read.append(number)
            yield number, number

    assert cut_page(page_request(int, "n", 5, None), following()).items == (0, 1, 2, 3, 4)
    assert len(read) == 6


CURSOR = page(4, None).next_cursor or ""
WRONG = {
    "nonsense": "nonsense",
    "empty": "",
    "no base64": "é!",
    "cut": CURSOR[:-3],
    "of another list": cut_page(page_request(int, "n", 1, None), [(1, "a"), (2, "b")]).next_cursor,
    "of no list": urlsafe_b64encode(b'["", ["a"]]').decode(),
    "a huge number": urlsafe_b64encode(b'["", %d]' % 2**70).decode(),
    "deep": urlsafe_b64encode(b"[" * 5000).decode(),
}


@pytest.mark.parametrize("cursor", WRONG.values(), ids=list(WRONG))
def test_a_wrong_cursor_is_one_error(cursor: str) -> None:
    for kind in (tuple, int):
        with pytest.raises(InputError, match="does not belong to this list with these arguments") as raised:
            page_request(kind, "letters", 4, cursor)
        assert "next_cursor" in raised.value.hint
        assert raised.value.place == "cursor"


def test_a_cursor_is_of_one_list_with_its_arguments() -> None:
    request = page_request(int, "runs", 1, None, "weather", ("failed",))
    cursor = cut_page(request, [(7, "a"), (6, "b")]).next_cursor
    assert page_request(int, "runs", 9, cursor, "weather", ("failed",)).after == 7
    for name, arguments in (("jobs", ("weather", ("failed",))), ("runs", ("weather", ())), ("runs", ())):
        with pytest.raises(InputError):
            page_request(int, name, 1, cursor, *arguments)
    with pytest.raises(InputError):
        page_request(tuple, "runs", 1, cursor, "weather", ("failed",))


@pytest.mark.parametrize("limit", [0, -1, MOST_ITEMS + 1])
def test_a_limit_out_of_bounds_is_refused(limit: int) -> None:
    with pytest.raises(InputError, match=f"{limit} is not between 1 and 1000"):
        page(limit, None)


class Reader:
    """Counts the pages of three items that it gives."""

    def __init__(self, count: int) -> None:
        self.items = tuple(f"{number:03}" for number in range(count))
        self.pages = 0

    def __call__(self, *, limit: int, cursor: str | None) -> Page[str]:
        self.pages += 1
        return page(min(limit, 3), cursor, self.items)


def test_a_listing_is_a_sequence_that_reads_pages_when_they_are_used() -> None:
    reader = Reader(8)
    found = Listing(reader)
    assert (found[0], found[2], found[:3], bool(found), reader.pages) == (
        "000",
        "002",
        ("000", "001", "002"),
        True,
        1,
    )
    assert repr(found) == "['000', '001', '002', ...]"
    assert (found[3], reader.pages) == ("003", 2)
    assert tuple(found) == reader.items
    assert (len(found), reader.pages) == (8, 3)
    assert (found[-1], found[-2:], found[::-1]) == ("007", ("006", "007"), reader.items[::-1])
    assert found == reader.items
    assert found == [*reader.items]
    assert found != reader.items[1:]
    assert "005" in found
    with pytest.raises(IndexError):
        found[8]


def test_the_limit_of_a_listing_is_over_all_pages() -> None:
    reader = Reader(8)
    assert tuple(Listing(reader, limit=4)) == reader.items[:4]
    assert reader.pages == 2
    assert tuple(Listing(reader, limit=20)) == reader.items
    assert not Listing(Reader(0))
    with pytest.raises(GridmillError, match="less than 1"):
        Listing(reader, limit=0)
