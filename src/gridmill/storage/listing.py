"""The files of a code bundle with the hashes of their contents, kept beside it: what changed between two."""

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from gridmill import codec
from gridmill.errors import InputError, StorageError
from gridmill.model.provenance import EXECUTABLE_MARK, FOLDER_MARK, LINK_MARK, CodeFile
from gridmill.storage.unpack import FOLDER, LINK, bundle_members

_YAML = (".yaml", ".yml")
_LARGEST_PIPELINE = 1 << 20
_PIPELINE = re.compile(rb"^pipeline\s*:", re.MULTILINE)
_JOBS = re.compile(rb"^jobs\s*:", re.MULTILINE)


def listing_path(bundle: Path) -> Path:
    """The listing of a bundle `<hash>.tar.gz`."""
    return bundle.with_name(f"{bundle.name.partition('.')[0]}.json")


def is_pipeline_file(name: str, content: bytes) -> bool:
    """Whether a file of that name declares a pipeline: it is YAML with the fields `pipeline` and `jobs`."""
    if not name.endswith(_YAML) or len(content) > _LARGEST_PIPELINE:
        return False
    return bool(_PIPELINE.search(content) and _JOBS.search(content))


def code_file(name: str, kind: str, content: str, *, pipeline: bool) -> CodeFile:
    """An entry of the listing. `content` is the hash (hex) of what the file holds, `kind` its letter in the
    bundle: of the permissions only whether it is executable counts, as git keeps no others."""
    kept = {LINK: LINK_MARK, FOLDER: FOLDER_MARK, "x": EXECUTABLE_MARK, "q": EXECUTABLE_MARK}.get(kind, "")
    return CodeFile(name=name, digest=f"{content}{kept}", pipeline=pipeline)


def write_listing(bundle: Path, files: Iterable[CodeFile]) -> None:
    """Write it, visible only when whole. Raises StorageError."""
    path = listing_path(bundle)
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(codec.encode(tuple(files)))
        draft.rename(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write the list of a code bundle's files: {error.strerror}", place=str(path)
        ) from error


def read_listing(bundle: Path) -> tuple[CodeFile, ...]:
    """The files of a bundle, by name; made from the bundle where there is no listing. Raises StorageError
    where the bundle is not there, InputError where it is damaged."""
    with suppress(OSError, InputError):
        return codec.decode(listing_path(bundle).read_bytes(), tuple[CodeFile, ...])
    if not bundle.exists():
        raise StorageError(f"the code bundle {bundle.name[:12]} is not on this machine")
    found = tuple(sorted(_read(bundle), key=lambda file: file.name))
    with suppress(StorageError):  # made again the next time
        write_listing(bundle, found)
    return found


def _read(bundle: Path) -> Iterable[CodeFile]:
    for name, kind, content in bundle_members(bundle):
        digest = hashlib.sha256(content).hexdigest()
        yield code_file(name, kind, digest, pipeline=is_pipeline_file(name, content))
