"""The packages with which a version was made, and their differences from the packages that compute its
predictions elsewhere."""

import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version

PYTHON = "python"
"""The name of the version of Python in a list of packages."""
COMPUTING = ("numpy", "onnxruntime")
"""The packages that compute the predictions of a model without code of its own."""


def recorded_packages(libraries: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of Python, of the packages that every model needs, and of `libraries`, by name."""
    names = dict.fromkeys(("gridmill", "onnx", *COMPUTING, *libraries))
    return {PYTHON: platform.python_version(), **{name: version(name) for name in names}}


def package_differences(
    recorded: Mapping[str, str], present: Mapping[str, str], names: Iterable[str]
) -> tuple[str, ...]:
    """Return the packages of these names whose first two version numbers differ. A package that was not
    recorded is not compared."""
    compared = [name for name in names if name in recorded]
    return tuple(
        f"{name} {recorded[name]} made the version, {_shown(present.get(name))} computes it"
        for name in compared
        if _first_two(recorded[name]) != _first_two(present.get(name, ""))
    )


def _first_two(text: str) -> list[str]:
    return text.split("+")[0].split(".")[:2]


def _shown(present: str | None) -> str:
    return present if present is not None else "no such package"
