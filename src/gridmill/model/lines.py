"""Where in a pipeline file the fields of a job are written, for errors that are found after it was read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field

from gridmill.errors import InputError
from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """`at` has the line (from 1) of a field by its path, such as `jobs.features.dataset.label`. A field that
    is not in it is written in the line of the field that it belongs to."""

    file: str
    at: Mapping[str, int] = field(default_factory=dict)

    def place(self, path: str) -> str:
        """`FILE:LINE: PATH`, or the path alone where no part of it is written in the file."""
        line = self.line(path)
        return path if line is None else f"{self.file}:{line}: {path}"

    def line(self, path: str) -> int | None:
        """The line of the field, or of the nearest field around it; None for another job."""
        while path and path not in self.at:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.at.get(path)

    def of_job(self, name: str) -> "Lines":
        """Those of one job."""
        begin = f"jobs.{name}"
        own = {
            path: line
            for path, line in self.at.items()
            if path.startswith(begin) and path[len(begin) : len(begin) + 1] in ("", ".")
        }
        return Lines(file=self.file, at=own)


def place_message(message: str, kind: str, job: str, lines: Lines | None) -> str:
    """A job's message that begins with a field of its kind (`dataset.sql: ...`), with file and line."""
    path, sign, rest = message.partition(": ")
    if lines is None or not sign or path.partition(".")[0] != kind or " " in path:
        return message
    return f"{lines.place(f'jobs.{job}.{path}')}: {rest}"


@contextmanager
def with_lines(lines: Lines | None, pipeline: str) -> Iterator[None]:
    """An error about a field of a job, raised within, also has the file and the line."""
    try:
        yield
    except InputError as error:
        path = error.place.removeprefix(f"{pipeline}: ")
        if lines is not None and path.startswith("jobs."):
            error.place = lines.place(path)
        raise
