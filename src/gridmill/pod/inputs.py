"""Provides the input folders of a command. For a sink, the folder contains the Parquet files of exactly the
version that the command reads."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from gridmill.codec import decode, encode
from gridmill.domain.artifact import Artifact, ArtifactKind
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.storage_uri import below
from gridmill.domain.version_manifest import HANDED, lies_alone
from gridmill.errors import InputError, NotFoundError, StorageError, UnavailableError, from_body
from gridmill.transfer.contents import place_of, read_manifest
from gridmill.transfer.tree_writer import hand_files, hand_tree

NO_FILES = "no-files"
"""The folder below the work folder that has an empty folder for each needed job without files."""
INPUTS = "inputs"
"""The folder below the work folder for the inputs that are copied or linked for the attempt."""
MOST_FILES = 20_000
"""If an output has more files than this, the command reads its folder directly, because linking the files
would take seconds."""
_LOG = "_delta_log/"


def input_folders(order: AttemptOrder, work: Path) -> dict[str, Path]:
    """Returns the folder of each job that the command needs, by the name of the job.

    A needed job without files gets an empty folder below `work`, which belongs to the attempt. Therefore an
    input is never the storage root and never missing.
    """
    inputs = {entry.name: entry.artifact for entry in order.inputs}
    return {
        name: _folder(order, work, name, inputs.get(name))
        for name in dict.fromkeys((*order.job.needs, *inputs))
    }


def _folder(order: AttemptOrder, work: Path, name: str, version: Artifact | None) -> Path:
    # without the slash, `weather/rows` is not below `weather`, which may be another input
    flat = name.replace("/", ".")
    if version is None or not version.output.uri:
        return work / NO_FILES / flat
    if version.kind != ArtifactKind.SINK and version.output.details.get("files", 0) > MOST_FILES:
        return below(order.root, version.output.uri)
    return _own_place(order, work) / flat


def _own_place(order: AttemptOrder, work: Path) -> Path:
    """Returns the folder for inputs. The folder for inputs is on the same disk as the versions, so that hard
    links are possible."""
    with suppress(OSError):
        if os.stat(work).st_dev != os.stat(order.root).st_dev:
            return below(order.root, handed_uri(order.attempt_id))
    return work / INPUTS


def handed_uri(attempt_id: str) -> str:
    """Returns the path of the attempt's inputs below the storage root."""
    return f"{HANDED}/{attempt_id}"


def take_back(order: AttemptOrder) -> None:
    """Removes the inputs of an ended attempt that are outside of its work folder. The inputs may be
    missing."""
    shutil.rmtree(below(order.root, handed_uri(order.attempt_id)), ignore_errors=True)


def hand_over(order: AttemptOrder, work: Path) -> None:
    """Makes the input folders of the attempt with their files. Raises InputError, StorageError."""
    folders = input_folders(order, work)
    try:
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        for entry in order.inputs:
            if entry.artifact.output.uri:
                _hand(order.root, entry.artifact, folders[entry.name])
    except OSError as error:
        raise StorageError(
            f"the inputs of the job cannot be prepared: {error.strerror or error}",
            place=str(error.filename or work),
        ) from error


def _hand(root: str, version: Artifact, folder: Path) -> None:
    source = below(root, version.output.uri)
    if version.kind == ArtifactKind.SINK:
        _hand_table(root, version, folder)
    elif folder != source:
        hand_tree(source, folder)


def _hand_table(root: str, version: Artifact, folder: Path) -> None:
    """Makes links to the data files of the version if these files contain exactly the rows of the version.
    If the data files contain other rows too, the rows of the version are written to a new folder."""
    files = _data_files(root, version) if version.output.details.get("plain") else None
    if files is None:
        _write_rows(root, version, folder)
    hand_files((source, str(folder / Path(source).name)) for source in files or ())


def _data_files(root: str, version: Artifact) -> list[str] | None:
    """Returns the paths of the version's data files according to its manifest. Returns None if the paths are
    unknown, because a farm does not have the manifest."""
    folder = below(root, version.output.uri)
    if lies_alone(version.output.uri):
        return [entry.path for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
    try:
        contents = read_manifest(root, version).contents
    except NotFoundError:
        return None
    if contents is None:
        return None
    return [place_of(folder, file.path) for file in contents.files if not file.path.startswith(_LOG)]


def _write_rows(root: str, version: Artifact, folder: Path) -> None:
    """Writes the rows of the version with a separate process, because this process never loads table
    libraries."""
    request = encode({"root": root, "output": version.output, "folder": str(folder)})
    argv = [sys.executable, "-P", "-m", "gridmill.jobs.export_sink"]
    done = subprocess.run(argv, input=request, capture_output=True, check=False)
    if done.returncode == 0:
        return
    try:
        answer: dict[str, Any] = decode(done.stdout, dict)
    except InputError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UnavailableError(
            f"the input {version.id} cannot be prepared: "
            f"{last or f'its process ended with {done.returncode}'}"
        ) from None
    raise from_body(answer)
