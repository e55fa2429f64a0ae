"""Compares JSON of an earlier release with what is read and written now: nothing said before may be gone."""

from typing import Any


def lost(old: Any, new: Any, place: str = "") -> list[str]:
    """What was said before and is not any more; new fields are fine."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [gone for key, value in old.items() for gone in lost(value, new.get(key), f"{place}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [gone for a, b in zip(old, new, strict=True) for gone in lost(a, b, f"{place}[]")]
    return [] if old == new else [f"{place}: was {old!r}, is {new!r}"]
