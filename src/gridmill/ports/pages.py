"""Pages of lists: this module defines a page, its cursor, and the functions that cut a list into pages.

A cursor contains the key of the last item of its page in the order of the list; it does not contain a number
of items. Items that are created or deleted between two requests therefore do not shift other items: an item
that exists during all requests is on exactly one page. A cursor also contains a hash of the list's name and
of the arguments that select items. The cursor is refused if a caller uses it for another list or with other
arguments.
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
"""The largest number of items on a page if the caller sets no limit."""
MOST_ITEMS = 1000
"""The highest `limit` of items on a page that a caller can set."""
PAGE_BYTES = 2**20
"""The largest total size of the items of a page as JSON, in bytes. If a single item is larger than this
limit, its page has only this item."""
_MOST_POSITION = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Some successive items of a list. `next_cursor` is the cursor for the next page of the list, or None on
    the last page."""

    items: tuple[T, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest(Generic[K]):
    """A request for at most `limit` items whose keys follow the key `after` (None: the page begins with the
    first item). `mark` is a hash of the list's name and of the arguments that select items."""

    limit: int
    mark: str
    after: K | None


def page_request(
    kind: type[K], name: str, limit: int, cursor: str | None, *arguments: object
) -> PageRequest[K]:
    """Return the request for a page of the list `name`, whose item keys have the type `kind`. Raises
    InputError."""
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
    """Return the page that begins with the first item of `following`. `following` contains the items after
    the cursor, each with its key. From `following`, the function reads at most one item more than the page
    contains."""
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
    """Return a page of the items in `known`, in the order of their names."""
    return page_of_views(request, known, names, lambda one: one)


def page_of_views(
    request: PageRequest[Names],
    known: Iterable[S],
    names: Callable[[S], Names],
    view: Callable[[S], T],
) -> Page[T]:
    """Return a page of views of the items in `known`, in the order of the items' names. The function makes
    only the views that the page needs."""
    ordered = sorted(((names(one), one) for one in known), key=itemgetter(0))
    return cut_page(
        request, ((key, view(one)) for key, one in ordered if request.after is None or key > request.after)
    )


def names_of_deployment(one: Deployment) -> Names:
    """Return the sort key of a deployment: its resource, then the number at the end of its id."""
    return one.resource, f"{len(one.id):04}", one.id
