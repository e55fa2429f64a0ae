"""What the program imports is among what its users install: not with the developers' tools by chance."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CALLED = {"yaml": "pyyaml", "sklearn": "scikit-learn", "PIL": "pillow", "google": "google-auth"}
CARRIED = {
    "starlette": "fastapi",
    "anyio": "fastapi",
    "httptools": "uvicorn",
    "pydantic_core": "pydantic",
    "markupsafe": "jinja2",
    "joblib": "scikit-learn",
}
"""Packages that another one is made of, and cannot be without."""
_IMPORT = re.compile(r"^\s*(?:from (\w+)[\w.]* import |import (\w+))", re.MULTILINE)


def imported() -> dict[str, str]:
    """Each foreign package that the source imports, and a file that does."""
    own = sys.stdlib_module_names | {"gridmill"}
    files = sorted((ROOT / "src").rglob("*.py"))
    found = {a or b: file.name for file in files for a, b in _IMPORT.findall(file.read_text())}
    return {name: file for name, file in found.items() if name not in own}


def declared() -> set[str]:
    """The distributions that the program's dependencies and its users' extras name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in extras if name != "dev" for line in extras[name])]
    return {re.match(r"[\w-]+", line)[0] for line in lines}


def test_every_package_that_is_imported_is_declared_for_users():
    there = declared()
    wanted = {name: CALLED.get(name, CARRIED.get(name, name)) for name in imported()}
    assert "httpx" in wanted, "the imports are not found any more"
    assert {name for name, package in wanted.items() if package not in there} == set()
