"""A URI names something below a storage root: never the root itself, never a place outside."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.storage_uri import below, path_below
from gridmill.errors import UnsafePathError
from gridmill.jobs.inspect_versions import files_of, preview

SOURCE = Path(__file__).resolve().parents[3] / "src" / "gridmill"


@pytest.mark.parametrize("uri", ["", ".", "./", "/", "/etc", "..", "a/..", "a/../../b", "x\0y"])
def test_what_is_not_below_the_root_is_refused(uri: str):
    with pytest.raises(UnsafePathError):
        below("/root-of-storage", uri)
    with pytest.raises(UnsafePathError):
        path_below("/root-of-storage", uri)


def test_what_is_below_the_root_is_joined():
    assert below("/root-of-storage", "files/p/j/1") == Path("/root-of-storage/files/p/j/1")
    assert below(Path("r"), "./a//b/") == Path("r/a/b") == Path(path_below("r", "./a//b/"))


def test_a_version_without_files_shows_none(tmp_path: Path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files/of-others").write_text("theirs")
    nothing = Output(kind=ArtifactKind.FILES, uri="")
    version = Artifact(id="p/a@1", name="p/a", number=1, output=nothing, fingerprint="")
    assert files_of(tmp_path, nothing) == ()
    assert preview(tmp_path, version, 10).total == 0


def test_every_uri_is_joined_with_its_root_by_below():
    paths = set(SOURCE.rglob("*.py")) - {SOURCE / "domain" / "storage_uri.py"}
    assert [f"{path.relative_to(SOURCE)}:{line}" for path in paths for line in _joins(path)] == []


def _joins(path: Path) -> list[int]:
    """The lines with `... / uri` or `f"{root}/..."`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Div)
            and _last_name(node.right).endswith("uri")
        ):
            found.append(node.lineno)
        if isinstance(node, ast.JoinedStr) and _joins_root(node.values):
            found.append(node.lineno)
    return found


def _joins_root(parts: list[ast.expr]) -> bool:
    return any(
        isinstance(first, ast.FormattedValue)
        and _last_name(first.value).strip("_") == "root"
        and isinstance(second, ast.Constant)
        and str(second.value).startswith("/")
        for first, second in pairwise(parts)
    )


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
