"""Sources: where raw data comes from."""

from codecs import lookup
from dataclasses import dataclass
from enum import StrEnum

from gridmill.errors import InputError


class Format(StrEnum):
    """File formats of a source."""

    CSV = "csv"
    PARQUET = "parquet"
    JSONL = "jsonl"


class Compression(StrEnum):
    """How a source file is packed."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"
    BZIP2 = "bzip2"
    XZ = "xz"
    ZIP = "zip"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Files: a path, a glob or several. Relative paths start at the pipeline file's folder.

    `package://NAME/PATH` is a file that an installed Python package carries. Format and compression (a ZIP
    file holds exactly one file) follow from the file's name unless given. `delimiter` (default: a comma, a
    tab for `.tsv`), `nulls` (texts that mean "missing") and `encoding` are for CSV.
    `timestamp_format` is a strptime pattern for columns declared `timestamp` or `date`; without it they are
    ISO 8601. Times without a zone are taken as UTC.
    """

    path: str | tuple[str, ...]
    format: Format | None = None
    compression: Compression | None = None
    delimiter: str | None = None
    nulls: tuple[str, ...] = ("", "NA", "NaN", "null")
    encoding: str = "utf-8"
    timestamp_format: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths and globs as written."""
        return (self.path,) if isinstance(self.path, str) else self.path

    def check(self) -> None:
        """Raise InputError for no path, a delimiter of several characters, an unknown encoding."""
        if not self.paths or not all(self.paths):
            raise InputError("a source needs a path", place="source.path")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise InputError(
                f"the delimiter is one character, not {self.delimiter!r}", place="source.delimiter"
            )
        try:
            lookup(self.encoding)
        except LookupError as error:
            raise InputError(
                f"there is no encoding {self.encoding!r}",
                hint="Common ones are utf-8, latin-1, cp1252 and utf-16.",
                place="source.encoding",
            ) from error
