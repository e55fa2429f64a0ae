"""Partial answers: the parameter `fields`.

Source: https://cloud.google.com/compute/docs/api/how-tos/performance#partial-response
"""

import re
from typing import Any

from gridmill.testing.cloud.gce.refusal import bad_request

_NAME = re.compile(r"[\w*\-]+")
Mask = dict[str, "Mask"]


def masked(value: Any, fields: str) -> Any:  # noqa: ANN401  JSON
    """Returns the parts of an answer that `fields` selects, such as `items/*/instances(name,status)`. An
    empty text selects everything. Raises GoogleRefusalError for a text of another form."""
    if not fields:
        return value
    mask, rest = _read(fields)
    if rest:
        raise bad_request(f"Invalid field selection {fields}")
    return _apply(value, mask)


def _read(text: str) -> tuple[Mask, str]:
    mask: Mask = {}
    while True:
        name = _NAME.match(text)
        if name is None:
            raise bad_request(f"Invalid field selection {text}")
        text = text[name.end() :]
        place = mask.setdefault(name[0], {})
        while text.startswith("/"):
            name = _NAME.match(text, 1)
            if name is None:
                raise bad_request(f"Invalid field selection {text}")
            text = text[name.end() :]
            place = place.setdefault(name[0], {})
        if text.startswith("("):
            below, text = _read(text[1:])
            if not text.startswith(")"):
                raise bad_request("Invalid field selection: a parenthesis is missing")
            place.update(below)
            text = text[1:]
        if not text.startswith(","):
            return mask, text
        text = text[1:]


def _apply(value: Any, mask: Mask) -> Any:  # noqa: ANN401  JSON
    if not mask:
        return value
    if isinstance(value, list):
        return [_apply(one, mask) for one in value]
    if not isinstance(value, dict):
        return value
    selected = {name: mask.get(name, mask.get("*")) for name in value}
    return {name: _apply(value[name], below) for name, below in selected.items() if below is not None}
