"""Filters, tags and pages of lists.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html (values are alternatives,
`*` and `?` are wildcards) and https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html
"""

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from typing import Any, TypeVar

from gridmill.testing.cloud.ec2.records import Tags
from gridmill.testing.cloud.ec2.refusal import RefusalError, not_simulated

T = TypeVar("T")
Attributes = Callable[[Any], Mapping[str, Sequence[str]]]
_MOST_TAGS = 50
_LONGEST_KEY, _LONGEST_VALUE = 128, 256


def select(
    records: Iterable[T],
    filters: Sequence[Mapping[str, Any]],
    attributes: Attributes,
    tags: Callable[[T], Tags],
) -> list[T]:
    """Returns the records that match all filters. `attributes` returns the values of a record by the name of
    a filter. Raises RefusalError for a filter that the simulation does not have."""
    return [one for one in records if all(_matches(one, each, attributes, tags) for each in filters)]


def _matches(record: T, each: Mapping[str, Any], attributes: Attributes, tags: Callable[[T], Tags]) -> bool:
    name, wanted = str(each.get("Name", "")), each.get("Values", ())
    if name.startswith("tag:"):
        found: Sequence[str] = [value for key, value in tags(record) if key == name.removeprefix("tag:")]
    elif name == "tag-key":
        found = [key for key, _ in tags(record)]
    else:
        known = attributes(record)
        if name not in known:
            raise not_simulated(f"the filter {name!r}")
        found = known[name]
    return any(_is_like(value, pattern) for value in found for pattern in wanted)


def _is_like(value: str, pattern: str) -> bool:
    # Brackets are no wildcards in AWS.
    escaped = pattern.replace("[", "[[]")
    return re.fullmatch(translate(escaped), value) is not None


def page(
    records: Sequence[T], parameters: Mapping[str, Any], *, fewest: int, most: int, ids: Sequence[str] = ()
) -> tuple[list[T], str | None]:
    """Returns a page of the records, and the token of the next page or None.

    Raises RefusalError for a number of results or a token that is not valid.
    """
    size, token = parameters.get("MaxResults"), parameters.get("NextToken")
    if size is not None and not fewest <= size <= most:
        raise RefusalError(
            "InvalidParameterValue",
            f"Value ( {size} ) for parameter maxResults is invalid. Expecting a value between {fewest} and "
            f"{most}.",
        )
    if ids and size is not None:
        raise RefusalError(
            "InvalidParameterCombination", "The parameter MaxResults cannot be used with ids of resources"
        )
    start = _start(token) if token else 0
    end = start + (size or most)
    return list(records[start:end]), _token(end) if end < len(records) else None


def _token(start: int) -> str:
    return base64.b64encode(f"page:{start}".encode()).decode()


def _start(token: str) -> int:
    try:
        return int(base64.b64decode(token, validate=True).decode().removeprefix("page:"))
    except ValueError as error:
        raise RefusalError("InvalidPaginationToken", "The pagination token is not valid.") from error


def tags_for(kind: str, specifications: Sequence[Mapping[str, Any]], allowed: Sequence[str]) -> Tags:
    """Returns the tags that TagSpecifications has for a kind of resource. Raises RefusalError if they are for
    a kind that the action does not create."""
    found: dict[str, str] = {}
    for each in specifications:
        if each.get("ResourceType") not in allowed:
            raise RefusalError(
                "InvalidParameterValue",
                f"'{each.get('ResourceType')}' is not a valid taggable resource type for this operation.",
            )
        if each["ResourceType"] == kind:
            found |= checked(each.get("Tags", ()))
    return tuple(found.items())


def checked(tags: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns tags as a mapping. Raises RefusalError for tags that AWS does not allow.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions
    """
    found = {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in tags}
    for key, value in found.items():
        if not 1 <= len(key) <= _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            raise RefusalError("InvalidParameterValue", f"Tag {key[:40]!r} is too long or has no key.")
        if key.startswith("aws:"):
            raise RefusalError(
                "InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use"
            )
    if len(found) > _MOST_TAGS:
        raise RefusalError("TagLimitExceeded", f"More than {_MOST_TAGS} tags for a resource.")
    return found


def tag_set(tags: Tags) -> list[dict[str, str]]:
    """Returns tags as they are in answers."""
    return [{"Key": key, "Value": value} for key, value in tags]
