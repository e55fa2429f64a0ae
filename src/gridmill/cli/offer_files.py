"""Reads offers of machines from a file, in CSV or JSON.

A CSV file has a header. Its columns are those of `COLUMNS`; `provider`, `region`, `instance_type`, `cpus` and
`memory` are required. A JSON file is a list of objects: either with the same names as the columns of a CSV
file, or as `gridmill offers --json` prints them.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gridmill.codec import from_builtins
from gridmill.domain.amounts import parse_bytes
from gridmill.domain.machine import Offer
from gridmill.domain.rental_terms import parse_micros
from gridmill.errors import InputError

COLUMNS: Mapping[str, str] = {
    "provider": "the kind of the provider, for example aws",
    "region": "the region",
    "zones": "the zones with the type, separated by spaces (default: the region)",
    "instance_type": "the type of machine",
    "cpus": "the number of CPUs",
    "memory": "the memory, for example 16GiB",
    "gpus": "the number of GPUs (default: 0)",
    "gpu_model": "the model of the GPUs",
    "gpu_memory": "the memory of each GPU, for example 24GiB",
    "architecture": "x86_64 (default) or arm64",
    "price": "the price per hour on demand; empty: unknown",
    "spot_price": "the price per hour of a spot machine; empty: unknown",
    "currency": "the currency of the prices (default: USD)",
}
"""The columns of a file with offers, with their descriptions."""
_REQUIRED = ("provider", "region", "instance_type", "cpus", "memory")
_ARCHITECTURES = ("x86_64", "arm64")


def read_offers(path: Path) -> tuple[Offer, ...]:
    """Read the offers of a file. Raises InputError, with the line or the number of the entry and the field,
    for a file that cannot be read or has an invalid value."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"the file cannot be read: {error.strerror}", place=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("the file is not UTF-8 text", place=str(path)) from error
    is_json = path.suffix.lower() == ".json" or text.lstrip().startswith("[")
    rows = _json_rows(text, path) if is_json else _csv_rows(text, path)
    return tuple(_offer(row, place) for row, place in rows)


def _json_rows(text: str, path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise InputError(f"the file is not JSON: {error}", place=str(path)) from error
    if not isinstance(entries, list):
        raise InputError("the file is not a list of offers", place=str(path))
    for number, entry in enumerate(entries, 1):
        place = f"{path}: offer {number}"
        if not isinstance(entry, dict):
            raise InputError(f"{entry!r} is not an object", place=place)
        yield entry, place


def _csv_rows(text: str, path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    reader = csv.DictReader(text.splitlines(), strict=True)
    try:
        for row in reader:
            place = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                raise InputError("the line has another number of fields than the header", place=place)
            yield {name.strip(): value.strip() for name, value in row.items() if value.strip()}, place
    except csv.Error as error:
        raise InputError(f"the line is not CSV: {error}", place=f"{path}:{reader.line_num}") from error


def _offer(row: Mapping[str, Any], place: str) -> Offer:
    if "memory_bytes" in row:
        # the time of a price is printed as a text
        known = {name: value for name, value in row.items() if name != "read"}
        try:
            return from_builtins(known, Offer)
        except InputError as error:
            raise InputError(error.message, place=place) from error
    _check_names(row, place)
    return Offer(
        provider=_text(row, "provider"),
        region=_text(row, "region"),
        zones=tuple(_text(row, "zones").split()) or (_text(row, "region"),),
        instance_type=_text(row, "instance_type"),
        cpus=_count(row, "cpus", place),
        memory_bytes=_size(row, "memory", place),
        gpus=_count(row, "gpus", place),
        gpu_model=_text(row, "gpu_model"),
        gpu_memory_bytes=_size(row, "gpu_memory", place),
        architecture=_architecture(row, place),
        price_micros=_price(row, "price", place),
        spot_price_micros=_price(row, "spot_price", place),
        currency=_text(row, "currency") or "USD",
    )


def _check_names(row: Mapping[str, Any], place: str) -> None:
    for name in row:
        if name not in COLUMNS:
            raise InputError(
                f"{name!r} is not a field of an offer", place=place, hint=f"Fields are {', '.join(COLUMNS)}."
            )
    for name in _REQUIRED:
        if row.get(name) in (None, ""):
            raise InputError("the field is missing", place=f"{place}: {name}", hint=COLUMNS[name])


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return "" if value is None else str(value)


def _count(row: Mapping[str, Any], name: str, place: str) -> int:
    text = _text(row, name) or "0"
    if not text.isdecimal():
        raise InputError(f"{text!r} is not a whole number", place=f"{place}: {name}")
    return int(text)


def _size(row: Mapping[str, Any], name: str, place: str) -> int:
    try:
        return parse_bytes(_text(row, name) or "0")
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place=f"{place}: {name}") from error


def _price(row: Mapping[str, Any], name: str, place: str) -> int | None:
    text = _text(row, name)
    if not text:
        return None
    try:
        return parse_micros(text) or None
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place=f"{place}: {name}") from error


def _architecture(row: Mapping[str, Any], place: str) -> str:
    text = _text(row, "architecture") or _ARCHITECTURES[0]
    if text not in _ARCHITECTURES:
        raise InputError(f"{text!r} is neither x86_64 nor arm64", place=f"{place}: architecture")
    return text
