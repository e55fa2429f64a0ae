"""Pages of lists: the form of a page and of its cursor, and the functions that cut a list into pages.

A cursor contains the key of the last item of its page in the order of the list, not a number of items. Items
that are created or deleted between two requests therefore do not shift other items: an item that exists the
whole time is in exactly one page. A cursor also contains a mark of its list and of the arguments that select
items. It is refused for another list or other arguments.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Generic, TypeAlias, TypeVar

from gridmill.codec import decode, encode, fingerprint
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

T = TypeVar("T")
S = TypeVar("S")
Names: TypeAlias = tuple[str, ...]
K = TypeVar("K", int, Names)

PAGE_ITEMS = 100
"""The largest number of items of a page if the caller sets no limit."""
MOST_ITEMS = 1000
"""The highest limit that a caller can set."""
PAGE_BYTES = 2**20
"""The largest size of a page's items as JSON, in bytes. A larger item is a page by itself."""
_MOST_POSITION = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Some items of a list, in its order. `next_cursor` is the cursor for the next page; None on the last
    page."""

    items: tuple[T, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest(Generic[K]):
    """A request for at most `limit` items whose keys follow `after` (None: from the first item). `mark` is
    the mark of the list and its arguments."""

    limit: int
    mark: str
    after: K | None


def page_request(
    kind: type[K], name: str, limit: int, cursor: str | None, *arguments: object
) -> PageRequest[K]:
    """The request for a page of the list `name`, whose keys have the type `kind`. Raises InputError."""
    if not 1 <= limit <= MOST_ITEMS:
        raise InputError(f"{limit} is not between 1 and {MOST_ITEMS}", place="limit")
    mark = fingerprint(name, arguments)[:12]
    return PageRequest(limit=limit, mark=mark, after=None if cursor is None else _read(kind, mark, cursor))


def _read(kind: type[K], mark: str, cursor: str) -> K:
    try:
        raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        found, key = decode(raw, tuple[str, int | tuple[str, ...]])
    except (ValueError, InputError):
        found, key = "", 0
    valid = isinstance(key, tuple) or -_MOST_POSITION < key < _MOST_POSITION
    if found == mark and valid and isinstance(key, int if kind is int else tuple):
        return key  # type: ignore[return-value]  # the type was checked above
    raise InputError(
        "the cursor does not belong to this list with these arguments",
        place="cursor",
        hint="Use `next_cursor` of the previous page with the same arguments, or leave out the cursor to"
        " begin.",
    )


def cut_page(request: PageRequest[K], following: Iterable[tuple[K, T]]) -> Page[T]:
    """The page that begins with the first item of `following`. `following` are the items after the cursor,
    with their keys. At most one item more than the page has is read."""
    items, size, last = list[T](), 0, request.after
    for key, item in following:
        size += len(encode(item))
        if items and (len(items) == request.limit or size > PAGE_BYTES):
            raw = encode((request.mark, last))
            return Page(items=tuple(items), next_cursor=urlsafe_b64encode(raw).decode().rstrip("="))
        items.append(item)
        last = key
    return Page(items=tuple(items))


def page_by_names(request: PageRequest[Names], known: Iterable[T], names: Callable[[T], Names]) -> Page[T]:
    """A page of the items in `known`, in the order of their names."""
    return page_of_views(request, known, names, lambda one: one)


def page_of_views(
    request: PageRequest[Names],
    known: Iterable[S],
    names: Callable[[S], Names],
    view: Callable[[S], T],
) -> Page[T]:
    """A page of views of the items in `known`, in the order of their names. Only the views that the page
    needs are made."""
    ordered = sorted(((names(one), one) for one in known), key=itemgetter(0))
    return cut_page(
        request, ((key, view(one)) for key, one in ordered if request.after is None or key > request.after)
    )


def names_of_deployment(one: Deployment) -> Names:
    """The sort key of a deployment: its resource, then the number at the end of its id."""
    return one.resource, f"{len(one.id):04}", one.id
