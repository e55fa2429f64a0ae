"""Which files of a project folder belong to it: .gitignore and .gridmillignore, as git reads them."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gridmill.errors import InputError
from gridmill.model.noun import dataclass

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

ALWAYS = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", ".gridmill", ".DS_Store"})
BY_DEFAULT = frozenset(
    {"node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".ipynb_checkpoints"}
)
"""Left out unless a rule (`!node_modules`) says that they are wanted; files of secrets (`.env`) as well."""
_NO_SECRETS = (".example", ".sample", ".template", ".dist")
COMPILED = ".pyc"
RULE_FILES = (".gitignore", ".gridmillignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """The rules of one folder; they apply to what lies below it."""

    folder: Path
    spec: "GitIgnoreSpec"

    def ignores(self, path: Path, is_folder: bool) -> bool | None:
        """True or False where a rule speaks of the path, else None."""
        relative = path.relative_to(self.folder).as_posix()
        return self.spec.check_file(relative + "/" * is_folder).include


def project_files(
    folder: Path, leave_out: Sequence[Path] = (), *, secrets: list[Path] | None = None
) -> Iterator[Path]:
    """Every file and symbolic link that belongs to the project, and every folder in which there is none of
    them; sorted, without following links.

    Rules of a deeper folder win, .gridmillignore wins over .gitignore beside it, and a folder that is
    ignored is not entered. Rules of folders above count up to the one that holds `.git`. Virtual
    environments and `leave_out` are never entered. Sockets, pipes and devices are left out. `secrets` takes
    the files of secrets (`.env`) that are left out though no rule speaks of them. Raises InputError for a
    folder or a rule file that cannot be read.
    """
    left_out = frozenset(path.absolute() for path in leave_out)
    yield from _walk(folder, _rules_above(folder), left_out, [] if secrets is None else secrets)


def _walk(
    folder: Path, above: Sequence[_Rules], left_out: frozenset[Path], secrets: list[Path]
) -> Iterator[Path]:
    rules = (*above, *_rules_of(folder))
    for path in _entries(folder):
        link = path.is_symlink()
        enter = path.is_dir() and not link
        if path in left_out or _ignored(path, enter, rules, secrets):
            continue
        if enter:
            if not any((path / mark).exists() for mark in NOT_CODE):
                below = _walk(path, rules, left_out, secrets)
                yield next(below, path)
                yield from below
        elif link or path.is_file():
            yield path


NOT_CODE = ("pyvenv.cfg", "control.lock")
"""Files that tell a virtual environment and a grid's home: neither is part of a project."""


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from error


def _ignored(path: Path, is_folder: bool, rules: Sequence[_Rules], secrets: list[Path]) -> bool:
    if path.name in ALWAYS or path.name.endswith(COMPILED):
        return True
    verdicts = (rule.ignores(path, is_folder) for rule in reversed(rules))
    verdict = next((verdict for verdict in verdicts if verdict is not None), None)
    if verdict is not None:
        return verdict
    if holds_secrets(path.name) and not is_folder:
        secrets.append(path)
        return True
    return path.name in BY_DEFAULT


def holds_secrets(name: str) -> bool:
    """Whether a file of that name holds secrets, as tools for the web have it: `.env`, `.env.production`."""
    return name == ".env" or (name.startswith(".env.") and not name.endswith(_NO_SECRETS))


def _rules_above(folder: Path) -> tuple[_Rules, ...]:
    """The rules of the folders above, from the top of the git work tree down; none outside of one."""
    chain = [folder, *folder.parents]
    top = next((number for number, place in enumerate(chain) if (place / ".git").exists()), 0)
    return tuple(rules for place in reversed(chain[1 : top + 1]) for rules in _rules_of(place))


def _rules_of(folder: Path) -> tuple[_Rules, ...]:
    lines = [line for name in RULE_FILES for line in _lines(folder / name)]
    return (_Rules(folder=folder, spec=_spec(lines, folder)),) if lines else ()


def _spec(lines: Sequence[str], folder: Path) -> "GitIgnoreSpec":
    """Loads the library only where there are rules: most project folders have none of their own."""
    spec: type[GitIgnoreSpec] = import_module("pathspec").GitIgnoreSpec
    try:
        return spec.from_lines(lines)
    except ValueError as error:
        raise InputError(
            f"a rule in {' or '.join(RULE_FILES)} is wrong: {error}", place=str(folder)
        ) from error


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "surrogateescape").splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return []
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> InputError:
    """What to say about a file of the project that cannot be read."""
    reason = error.strerror or str(error)
    return InputError(
        f"cannot read it for the code bundle: {reason}",
        place=str(path),
        hint="Make it readable, or leave it out with a line in .gridmillignore.",
    )
