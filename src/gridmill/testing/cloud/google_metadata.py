"""The metadata server of simulated Google Compute Engine machines.

Source: https://cloud.google.com/compute/docs/metadata/querying-metadata (paths, the header, folders, and the
parameter `recursive`)
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

FLAVOR = "Metadata-Flavor"
_ROOT = "/computeMetadata/v1/"


def answer(items: Mapping[str, str] | None, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Returns the status and the body of the answer to a request of a machine."""
    parts = urlsplit(path)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if headers.get(FLAVOR) != "Google" or headers.get("X-Forwarded-For") is not None:
        return 403, b"Missing Metadata-Flavor:Google header."
    if items is None or not parts.path.startswith(_ROOT):
        return 404, b""
    name = parts.path.removeprefix(_ROOT).rstrip("/")
    if name in items:
        return 200, items[name].encode()
    prefix = f"{name}/" if name else ""
    below = {key.removeprefix(prefix): value for key, value in items.items() if key.startswith(prefix)}
    if not below:
        return 404, b""
    if query.get("recursive", "").lower() == "true":
        return 200, json.dumps(_tree(below)).encode()
    folders = {head + ("/" if slash else "") for head, slash, _ in (one.partition("/") for one in below)}
    return 200, "".join(f"{one}\n" for one in sorted(folders)).encode()


def _tree(items: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in items.items():
        *folders, last = path.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(_camel(folder), {})
        place[_camel(last) if "attributes" not in folders else last] = value
    return tree


def _camel(name: str) -> str:
    head, *rest = name.split("-")
    return head + "".join(one.capitalize() for one in rest)
