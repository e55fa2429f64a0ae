"""Prepares a pipeline for submission: reads the pipeline, fills in its parameters, and uploads its code
bundle.

The Git commit that is checked out in the folder of the project is read from the files of Git, so Git itself
need not be installed.
"""

import re
import socket
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from gridmill.domain.amounts import MIB, show_bytes
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import word
from gridmill.domain.pipeline import Pipeline
from gridmill.errors import InputError, NotFoundError, PipelineError
from gridmill.ports.grid import Grid
from gridmill.settings import Settings

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_LARGEST = 10_000_000


def commit_of(folder: Path) -> str:
    """Return the full hash of the commit that is checked out. The result is empty if the folder is in no Git
    repository, or if the repository cannot be read.

    The commit does not show later changes of files, but the hash of the code bundle covers their content.
    """
    try:
        return _commit_of(folder.resolve())
    except (OSError, UnicodeDecodeError):
        return ""


def _commit_of(folder: Path) -> str:
    git = next((one / ".git" for one in (folder, *folder.parents) if (one / ".git").exists()), None)
    if git is None:
        return ""
    if git.is_file():  # in a worktree or a submodule, `.git` is a file with the path of the folder
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


Source = str | Path | Pipeline
"""A pipeline file, the name of a known pipeline, or the record of a pipeline."""


def is_name(source: Source) -> bool:
    """Return True if the argument is the name of a known pipeline, and False if it is a file."""
    if isinstance(source, Pipeline):
        return False
    path = Path(source)
    return path.suffix not in (".yaml", ".yml") and len(path.parts) == 1 and not path.is_file()


def file_of(known: Pipeline) -> Path:
    """Return the path of the file that declares a known pipeline. Raises NotFoundError with the reason if
    the pipeline has no such file."""
    path = known.path
    if path is None:
        raise NotFoundError("the pipeline was not read from a file")
    if known.host not in ("", socket.gethostname()):
        raise NotFoundError(f"{path} is on the machine {known.host}")
    if not path.is_file():
        raise NotFoundError(f"{path} does not exist any more")
    declares = rf"^\s*\{{?\s*[\"']?pipeline[\"']?\s*:\s*[\"']?{re.escape(known.name)}[\"']?\s*(?:[,}}#].*)?$"
    if not re.search(declares, path.read_text(errors="replace"), re.MULTILINE):
        raise NotFoundError(f"{path} does not declare the pipeline any more")
    return path


def kept_again(kept: Pipeline, values: Mapping[str, Any] | None) -> Pipeline:
    """Return a pipeline as it was applied or run last, with the same code. With `values`, the text of the
    pipeline is parsed again.

    Raises PipelineError, InputError.
    """
    if not values and not kept.awaits:
        return kept
    if kept.written is None:
        raise PipelineError(
            f"the text of pipeline {kept.name!r} is not stored, so its parameters cannot be changed",
            hint="Apply the file again (`gridmill apply -f FILE`), or run the file.",
        )
    from gridmill.declarations import read_again as read

    again: Pipeline = read(kept.written, folder=kept.folder, set_values=words(values))
    return replace(again, bundle=kept.bundle, commit=kept.commit, host=kept.host)


def prepare(
    source: Source,
    values: Mapping[str, Any] | None,
    grid: Grid,
    settings: Settings,
    note: Callable[[str], None] | None = None,
) -> Pipeline:
    """Return the pipeline in the form in which the control node accepts it: the file is read, the parameters
    are filled in, and the code bundle is uploaded.

    If `source` is the name of an applied pipeline, the function uses the declaration that was applied last.
    If the pipeline was run but never applied, the function reads its file again. If the file does not declare
    the pipeline any more, the function uses the declaration of the last run and issues a warning. If the
    function `note` is given, it is called with a text that states which declaration is used, and no warning
    is issued. Raises PipelineError, InputError, NotFoundError.
    """
    if is_name(source):
        stored = grid.pipeline(str(source))
        file = _file_to_read(stored, note)
        if file is None:
            return kept_again(stored, values)
        source = file
    if isinstance(source, Pipeline):
        pipeline = _validated(source, values)
    else:
        # imported here, because it loads YAML and Pydantic, which most clients do not need
        from gridmill.declarations import read_pipeline

        pipeline = read_pipeline(Path(source), set_values=words(values))
    code = upload_code(pipeline, grid, settings)
    return replace(pipeline, bundle=code.bundle, commit=code.commit, host=code.host)


def _file_to_read(stored: Pipeline, note: Callable[[str], None] | None) -> Path | None:
    """Return the file from which a known pipeline is read again. The result is None if the stored declaration
    is used, because the pipeline was applied or has no such file."""
    if stored.applied:
        if note is not None:
            note(f"pipeline {stored.name}: as it was applied last")
        return None
    try:
        file = file_of(stored)
    except NotFoundError as reason:
        (note or warnings.warn)(
            f"pipeline {stored.name}: {reason}; the run uses the pipeline as in its last run"
        )
        return None
    if note is not None:
        note(f"pipeline {stored.name}: read from {file}")
    return file


def read_file(path: Path, values: Mapping[str, Any] | None, *, awaiting: bool = False) -> Pipeline:
    """Return the pipeline that a file declares. With `awaiting`, the times that a schedule sets may be
    missing. Raises PipelineError."""
    from gridmill.declarations import read_pipeline

    pipeline: Pipeline = read_pipeline(path, set_values=words(values), awaiting=awaiting)
    return pipeline


def _validated(source: Pipeline, values: Mapping[str, Any] | None) -> Pipeline:
    """Return a pipeline that a program has made, after a check of its rules."""
    if values:
        raise InputError("`set` works only with pipeline files; set the values of a Pipeline in the object")
    if source.written is not None:
        return source
    # imported here, because it loads YAML and Pydantic, which most clients do not need
    from gridmill.declarations.construct import validated

    pipeline: Pipeline = validated(source)
    return pipeline


def read_all(path: Path, values: Mapping[str, Any] | None) -> tuple[object, ...]:
    """Return all records that a file declares. Raises PipelineError."""
    # imported here, because it loads YAML and Pydantic, which most clients do not need
    from gridmill.declarations import read_declarations

    return read_declarations(path, set_values=words(values), awaiting=True)


LARGE_BYTES = 20 * MIB
"""If a code bundle has at least this size in bytes, a warning is printed, because copying so much code takes
longer than starting a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The code of a project as it is now: the hash of its bundle (None if no job runs code of the project),
    the Git commit that is checked out, and the machine on which the project is."""

    bundle: str | None
    commit: str
    host: str


def upload_code(pipeline: Pipeline, grid: Grid, settings: Settings) -> Code:
    """Return the code of the pipeline. If jobs of the pipeline run code in the folder of the project, the
    folder is stored as a code bundle."""
    code = Code(bundle=pipeline.bundle, commit=pipeline.commit, host=pipeline.host)
    if not pipeline.folder:
        return code
    if not code.host:
        code = replace(code, commit=commit_of(Path(pipeline.folder)), host=socket.gethostname())
    if code.bundle is None and any(job.runs_code for job in pipeline.jobs):
        return replace(code, bundle=_upload_bundle(Path(pipeline.folder), grid, settings))
    return code


def _upload_bundle(folder: Path, grid: Grid, settings: Settings) -> str:
    """Store a folder as a code bundle, and return the hash of the bundle."""
    from gridmill.storage.bundle import make_bundle

    # The control node of this home stores bundles in the same folder, so a known bundle is not packed again.
    key = sha256(str(folder).encode()).hexdigest()[:32]
    bundle = make_bundle(
        folder,
        settings.home / "bundles",
        leave_out=(settings.home, settings.root),
        hashes=settings.home / "cache" / "contents" / f"code-{key}.json",
    )
    if bundle.size_bytes > LARGE_BYTES:
        warnings.warn(
            f"{folder} has {show_bytes(bundle.size_bytes)} of code, and every command gets a copy. "
            "List files that the commands do not need in .gridmillignore.",
            stacklevel=2,
        )
    if bundle.secrets:
        names = ", ".join(bundle.secrets)
        warnings.warn(
            f"{names}: not copied with the code, as such files often contain secrets. To copy it, add "
            f"`!{bundle.secrets[0]}` to "
            f".gridmillignore; to hide this message, add `{bundle.secrets[0]}`.",
            stacklevel=2,
        )
    if not grid.has_bundle(bundle.hash):
        grid.put_bundle(bundle.hash, bundle.path.read_bytes())
    return bundle.hash


def words(values: Mapping[str, Any] | None) -> dict[str, str]:
    """Return parameters as texts in the form of the option `--set`."""
    return {key: word(value) for key, value in (values or {}).items()}
