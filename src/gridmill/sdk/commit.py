"""The Git commit that a project's folder has checked out, read from Git's files: Git itself need not be
installed."""

import re
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_LARGEST = 10_000_000


def commit_of(folder: Path) -> str:
    """The full hash; empty for a folder of no repository, or where it cannot be read.

    Files that were edited since are not in it: the hash of the code bundle is of their content.
    """
    try:
        return _commit_of(folder.resolve())
    except (OSError, UnicodeDecodeError):
        return ""


def _commit_of(folder: Path) -> str:
    git = next((one / ".git" for one in (folder, *folder.parents) if (one / ".git").exists()), None)
    if git is None:
        return ""
    if git.is_file():  # a worktree or a submodule names its folder
        git = (git.parent / git.read_text().partition("gitdir:")[2].strip()).resolve()
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return _checked(head)
    reference = head.removeprefix("ref:").strip()
    common = git / "commondir"
    shared = (git / common.read_text().strip()).resolve() if common.is_file() else git
    for place in (git, shared):
        if (place / reference).is_file():
            return _checked((place / reference).read_text().strip())
    packed = shared / "packed-refs"
    if not packed.is_file() or packed.stat().st_size > _LARGEST:
        return ""
    lines = (line.split(" ", 1) for line in packed.read_text().splitlines() if line[:1] not in ("#", "^"))
    return next((_checked(line[0]) for line in lines if line[-1] == reference), "")


def _checked(text: str) -> str:
    return text if _COMMIT.fullmatch(text) else ""
