"""Manifests of versions and the moves of aliases, below the storage root."""

import os
from pathlib import Path

from gridmill import __version__
from gridmill.codec import encode
from gridmill.errors import StorageError
from gridmill.model.alias import LATEST
from gridmill.model.artifact import Artifact
from gridmill.model.stored import (
    MANIFEST_FORMAT,
    AliasMove,
    Contents,
    VersionManifest,
    manifest_uri,
    moves_uri,
)
from gridmill.model.uri import below
from gridmill.staging.checking import seal
from gridmill.staging.contents import NOTHING, list_contents, read_contents, write_whole


def keep_manifest(root: Path, version: Artifact, listed: str, *, shared: bool = False) -> None:
    """See ports.storage.Storage."""
    contents = read_contents(below(root, listed)) if listed else None
    if not version.output.uri:
        contents = NOTHING
    if listed and shared:
        folder = below(root, version.output.uri)
        contents = list_contents(folder, contents or NOTHING)
        seal(folder, contents)
    write_manifest(root, new_manifest(version, contents))


def new_manifest(version: Artifact, contents: Contents | None) -> VersionManifest:
    """As this Gridmill writes it."""
    return VersionManifest(format=MANIFEST_FORMAT, gridmill=__version__, version=version, contents=contents)


def write_manifest(root: Path, manifest: VersionManifest) -> None:
    """Whole or not at all. Raises StorageError."""
    uri = manifest_uri(manifest.version.name, manifest.version.number)
    write_whole(below(root, uri), encode(manifest))


def note_move(root: Path, move: AliasMove) -> None:
    """See ports.storage.Storage."""
    path = below(root, moves_uri(move.name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(descriptor, encode(move) + b"\n")  # one write: a line is there whole or not at all
            if move.alias != LATEST:  # what users say; the latest version is known from the runs
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", place=str(path)) from error
