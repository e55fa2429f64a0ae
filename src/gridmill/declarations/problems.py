"""Problems in a declaration. Each problem has a file, a line and a field. All problems of a declaration are
reported together."""

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import similar_name
from gridmill.errors import PipelineError, combined

FieldPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem in a declaration. `path` leads from the document to the field, and `line` counts from 1."""

    message: str
    line: int = 1
    path: FieldPath = ()
    hint: str = ""

    def place(self, file: str) -> str:
        """Returns the place of the problem as text, which has the file, the line and the field."""
        field = show_path(self.path)
        return f"{file}:{self.line}: {field}" if field else f"{file}:{self.line}"


def to_error(file: str, problems: Sequence[Problem]) -> PipelineError:
    """Makes one error for all problems, in the order of their lines. If there is only one problem, the error
    has its place and hint."""
    errors = [
        PipelineError(problem.message, place=problem.place(file), hint=problem.hint)
        for problem in sorted(problems, key=lambda problem: problem.line)
    ]
    return combined(errors, file)


def show_path(path: FieldPath) -> str:
    """The path as text: `jobs.lstm.joins[0].table`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def show_value(value: object) -> str:
    """Returns a value in the form that it has in its file, short enough for a message."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return repr(str(value)) if len(value) <= 60 else repr(value[:57] + "...")
        case list() | tuple():
            return _cut(
                "[" + ", ".join(show_value(item) for item in value[:8]) + ", ..." * (len(value) > 8) + "]"
            )
        case dict():
            return _cut("{" + ", ".join(f"{key}: {show_value(item)}" for key, item in value.items()) + "}")
        case _:
            return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


_ALIKE_FILES = 0.7
"""The smallest similarity of file names (without extension) with which a name is suggested."""


def similar_file(name: str, names: Iterable[str]) -> str:
    """Returns the name of the most similar file, or an empty text if no name is similar. The extensions of
    file names are not compared, because many files have the same extension."""
    by_stem = {PurePath(one).stem: one for one in reversed(list(names))}
    return by_stem.get(similar_name(PurePath(name).stem, by_stem, _ALIKE_FILES), "")
