"""Pages of lists: the form of a page and of its cursor, and how a list is cut into pages.

A cursor has the key of the last item of its page in the order of the list, not a number of items. So items
that are created or deleted between two pages shift nothing: what exists throughout is in exactly one page.
A cursor also has a mark of its list and of the arguments that select items, and is refused for others.
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
"""The most items of a page if the caller gives no limit."""
MOST_ITEMS = 1000
"""The highest limit."""
PAGE_BYTES = 2**20
"""The most bytes of a page's items as JSON. A single item that is larger is a page by itself."""
_MOST_POSITION = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Some items of a list, in its order. `next_cursor` asks for those that follow; None: there are none."""

    items: tuple[T, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest(Generic[K]):
    """At most `limit` items whose keys follow `after` (None: from the first one). `mark` is that of the list
    and its arguments."""

    limit: int
    mark: str
    after: K | None


def page_request(
    kind: type[K], name: str, limit: int, cursor: str | None, *arguments: object
) -> PageRequest[K]:
    """The request for a page of the list `name`, whose keys are of that kind. Raises InputError."""
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
        return key  # type: ignore[return-value]  # of that kind
    raise InputError(
        "the cursor does not belong to this list with these arguments",
        place="cursor",
        hint="Use `next_cursor` of the previous page with the same arguments, or leave out the cursor to"
        " begin.",
    )


def cut_page(request: PageRequest[K], following: Iterable[tuple[K, T]]) -> Page[T]:
    """The page that begins with the first of `following`, which are the items after the cursor, with their
    keys. No more of them are read than the page needs, and one."""
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
    """A page of what is known, in the order of its names."""
    return page_of_views(request, known, names, lambda one: one)


def page_of_views(
    request: PageRequest[Names],
    known: Iterable[S],
    names: Callable[[S], Names],
    view: Callable[[S], T],
) -> Page[T]:
    """A page of views of what is known, in the order of its names. Only views that it needs are made."""
    ordered = sorted(((names(one), one) for one in known), key=itemgetter(0))
    return cut_page(
        request, ((key, view(one)) for key, one in ordered if request.after is None or key > request.after)
    )


def names_of_deployment(one: Deployment) -> Names:
    """By resource, then by the number at the end of the id."""
    return one.resource, f"{len(one.id):04}", one.id
