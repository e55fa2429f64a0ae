"""Lists: filters, pages, and lists of all zones or regions.

Source: https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList (`filter`,
`maxResults`, `pageToken`, `returnPartialSuccess`) and
https://cloud.google.com/compute/docs/samples/compute-instances-list-all
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from gridmill.testing.cloud.gce.refusal import GoogleRefusalError, invalid, not_simulated

T = TypeVar("T")
Shape = dict[str, Any]
_LARGEST_PAGE = 500
_TERM = re.compile(
    r"""\s*\(?\s*(?P<name>[A-Za-z][\w.\-]*)\s*(?P<how>!=|=|:|\beq\b|\bne\b)\s*"""
    r"""(?:"(?P<quoted>[^"]*)"|(?P<plain>[^\s()"]+))\s*\)?\s*"""
)


def select(shapes: Sequence[Shape], query: Mapping[str, str]) -> list[Shape]:
    """Returns the resources that the parameter `filter` matches. The operators `=`, `!=`, `:`, `eq` and `ne`
    are implemented, combined by AND or by nothing.

    Raises GoogleRefusalError for other expressions."""
    text = query.get("filter", "")
    tests = _tests(text)
    return [one for one in shapes if all(test(one) for test in tests)]


def _tests(text: str) -> list[Callable[[Shape], bool]]:
    found: list[Callable[[Shape], bool]] = []
    place = 0
    while text[place:].strip():
        match = _TERM.match(text, place)
        if match is None:
            raise not_simulated(f"the filter {text!r}")
        value = match["quoted"] if match["quoted"] is not None else match["plain"]
        found.append(_test(match["name"], match["how"], value))
        place = match.end()
        rest = re.compile(r"AND\b").match(text, place)
        place = rest.end() if rest else place
        if re.compile(r"(OR|NOT)\b").match(text, place):
            raise not_simulated(f"the filter {text!r}")
    return found


def _test(name: str, how: str, value: str) -> Callable[[Shape], bool]:
    def test(shape: Shape) -> bool:
        found = _field(shape, name)
        match how:
            case ":":
                has = found is not None
                return has and (value == "*" or fnmatchcase(str(found), value) or value in str(found))
            case "eq" | "ne":
                is_match = found is not None and re.fullmatch(value, str(found)) is not None
                return is_match == (how == "eq")
            case _:
                is_match = found is not None and fnmatchcase(_text(found), value)
                return is_match == (how == "=")

    return test


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _field(shape: Shape, name: str) -> object:
    place: object = shape
    for part in name.split("."):
        place = place.get(part) if isinstance(place, dict) else None
    return place


def page_size(query: Mapping[str, str]) -> int:
    """Returns the largest number of results in a page."""
    text = query.get("maxResults", str(_LARGEST_PAGE))
    if not text.isdecimal() or int(text) > _LARGEST_PAGE:
        raise invalid("maxResults", text, "Values must be within the range: [0, 500]")
    return int(text) or _LARGEST_PAGE


def page(items: Sequence[T], query: Mapping[str, str]) -> tuple[list[T], str]:
    """Returns a page, and the token of the next page, which is empty after the last one."""
    token = query.get("pageToken", "")
    if token and not token.isdecimal():
        raise invalid("pageToken", token, "Invalid page token")
    start, size = int(token or 0), page_size(query)
    end = start + size
    return list(items[start:end]), str(end) if end < len(items) else ""


def listing(kind: str, shapes: Sequence[Shape], query: Mapping[str, str]) -> Shape:
    """Returns the answer to a list of one zone, one region or the project."""
    found, token = page(select(_ordered(shapes), query), query)
    answer: Shape = {"kind": f"compute#{kind}List", "id": f"simulated/{kind}", "items": found}
    if not found:
        del answer["items"]
    return answer | ({"nextPageToken": token} if token else {})


def _ordered(shapes: Sequence[Shape]) -> list[Shape]:
    return sorted(shapes, key=lambda one: str(one["name"]))


def aggregated(
    kind: str,
    field: str,
    by_scope: Mapping[str, Sequence[Shape]],
    query: Mapping[str, str],
    unreachable: Sequence[str] = (),
) -> Shape:
    """Returns the answer to a list of all scopes, such as `zones/us-central1-a`. Each page has all scopes,
    with a warning instead of results if it has none of them. A scope of a region that is down is an error,
    or, with `returnPartialSuccess`, a warning."""
    if unreachable and query.get("returnPartialSuccess", "").lower() != "true":
        text = f"The following scopes are unreachable: {', '.join(unreachable)}"
        raise GoogleRefusalError("backendError", text, 503)
    rows = [
        (scope, shape)
        for scope, shapes in by_scope.items()
        for shape in select(_ordered(shapes), query)
        if scope not in unreachable
    ]
    found, token = page(rows, query)
    items: dict[str, Shape] = {}
    for scope in by_scope:
        shapes = [shape for one, shape in found if one == scope]
        items[scope] = {field: shapes} if shapes else {"warning": _warning(scope, scope in unreachable)}
    answer: Shape = {"kind": f"compute#{kind}AggregatedList", "id": f"simulated/{kind}", "items": items}
    if unreachable:
        answer["unreachables"] = list(unreachable)
    return answer | ({"nextPageToken": token} if token else {})


def _warning(scope: str, is_unreachable: bool) -> Shape:
    code = "UNREACHABLE" if is_unreachable else "NO_RESULTS_ON_PAGE"
    state = "is unreachable" if is_unreachable else "has no results on this page"
    return {
        "code": code,
        "message": f"The scope '{scope}' {state}.",
        "data": [{"key": "scope", "value": scope}],
    }
