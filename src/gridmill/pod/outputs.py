"""Collects the output folder of a command so that it can be stored. The stored version contains only files
and folders.

A link is replaced with its target if the target belongs to the attempt (to its output, its work folder or
its checkpoints) or to a version that the attempt reads. Links to other targets are refused, because these
targets may change or disappear after the attempt. Sockets, pipes and devices are useless after their process
has ended. Sockets, pipes and devices are removed, and the log reports each removal. A small output is
collected immediately. A large output is collected by a separate process while the pod's loop continues.
"""

import os
import shutil
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from itertools import islice
from pathlib import Path
from uuid import uuid4

from gridmill.codec import decode, encode
from gridmill.domain.artifact import Artifact
from gridmill.domain.command import has_output
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.storage_uri import below
from gridmill.domain.version_manifest import problem_text
from gridmill.errors import InputError, StorageError
from gridmill.pod import processes
from gridmill.pod.inputs import input_folders
from gridmill.pod.launch import fork, settle
from gridmill.transfer.contents import NOTHING, list_contents, read_contents, write_contents
from gridmill.transfer.tree_writer import may_share
from gridmill.transfer.verify import find_troubles, repair_hint, seal, seal_again

_DRAFT = ".gridmill-copy-"
_MOST_COPIED = 1_000_000
_FEW, _LITTLE_BYTES = 200, 1 << 20
"""Outputs up to this size are hashed in the pod's loop, which takes some milliseconds."""
_COPY = "Write the file itself to the output, for example with `cp -L`."
_EMPTY = 'Keep the folder and delete only its content: `rm -rf "$GRIDMILL_OUTPUT"/*`.'


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedFiles:
    """The files that will be stored. `problem` is the reason if the files cannot be stored, and `notes` are
    lines for the job's log."""

    files: int = 0
    size_bytes: int = 0
    notes: tuple[str, ...] = ()
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFolders:
    """The folders that contain the files of a command.

    `output` is the output folder of the command. `excluded` are other folders to which only attempts of this
    command write. The first of the `excluded` folders belongs to this rank alone. `inputs` are the folders
    of the versions that the command reads. `wanted` are the outputs that the command declares. `shared` are
    inputs that may be shared with other readers, and `root` is the storage root that contains these inputs.
    All ranks of a gang share `output`, and `others` is true if other ranks may still write to `output`.
    `listed` is the path of a file, to which the list of output files with their hashes is written. For a
    gang (`of_gang`), the control node checks again which files exist.
    """

    output: Path
    excluded: tuple[Path, ...]
    inputs: tuple[Path, ...] = ()
    wanted: tuple[str, ...] = ()
    others: bool = False
    listed: Path | None = None
    of_gang: bool = False
    shared: tuple[Artifact, ...] = ()
    root: str = ""


def left_by(order: AttemptOrder, work: Path) -> OutputFolders:
    """Returns the folders of a command's attempt."""
    return OutputFolders(
        output=below(order.root, order.output_uri),
        excluded=(work, below(order.root, order.checkpoint_uri)) if order.checkpoint_uri else (work,),
        inputs=(*input_folders(order, work).values(), *_versions(order)),
        wanted=order.job.command.outputs if order.job.command is not None else (),
        others=order.gang is not None and order.gang.rank > 0,
        listed=below(order.root, order.contents_uri) if order.contents_uri else None,
        of_gang=order.gang is not None,
        shared=tuple(_shared(order)),
        root=order.root,
    )


def _shared(order: AttemptOrder) -> Iterator[Artifact]:
    for entry in order.inputs:
        output = entry.artifact.output
        if output.uri and may_share(output.size_bytes or 0, output.details.get("files", 0)):
            yield entry.artifact


def _versions(order: AttemptOrder) -> Iterator[Path]:
    """Yields the folders of the inputs. An input that was made for the attempt may be a link to the folder
    of a version."""
    uris = (entry.artifact.output.uri for entry in order.inputs)
    return (below(order.root, uri) for uri in uris if uri)


def look(left: OutputFolders, most: int) -> CollectedFiles | None:
    """Returns the files to store if a quick check is sufficient, because there are few files and no links to
    replace. Otherwise None."""
    try:
        if left.shared:
            return None
        _check_folder(left.output)
        entries = list(islice(_entries(left.output), most + 1))
        if len(entries) > most or any(_is_odd(entry) for entry in entries):
            return None
        counted = _counted(left, entries, ())
        if left.listed is not None and (counted.files > _FEW or counted.size_bytes > _LITTLE_BYTES):
            return None
        return _listed(left, counted)
    except (InputError, StorageError) as error:
        return CollectedFiles(problem=str(error), hint=error.hint)
    except OSError:
        return None


def collect(left: OutputFolders) -> CollectedFiles:
    """Replaces links in the output and returns the files to store. The call may take long."""
    try:
        _check_shared(left)
        _check_folder(left.output)
        notes = tuple(_OutputScan(left).run())
        return _listed(left, _counted(left, _entries(left.output), notes))
    except (InputError, StorageError) as error:
        return CollectedFiles(problem=str(error), hint=error.hint)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return CollectedFiles(problem=f"its output cannot be stored: {error.strerror or error}{where}")


def _check_shared(left: OutputFolders) -> None:
    """Raises InputError if a version was changed while the job read it directly below the storage root."""
    for version in left.shared:
        seal_again(left.root, version)
        problems = find_troubles(left.root, version)
        if problems:
            raise InputError(
                f"its input {version.id} was changed while it ran: {problem_text(problems)}",
                hint="A job must not write to its inputs. Copy the files that it changes, for example with "
                "`cp -r`. "
                f"{repair_hint(version)}",
            )


def _check_folder(folder: Path) -> None:
    try:
        status = folder.lstat()
    except FileNotFoundError as error:
        raise InputError("the command removed its output folder", hint=_EMPTY) from error
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(folder)
        folder.unlink()  # removing the folder of a failed attempt must not follow the link
        raise InputError(f"the command replaced its output folder with a link to {target}", hint=_COPY)
    if not stat.S_ISDIR(status.st_mode):
        raise InputError("the command replaced its output folder with a file", hint=_EMPTY)


def _entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    """Yields all entries below the folder except folders. Links are not followed. Raises OSError if a folder
    cannot be read."""
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path))
            # left out, because this entry is a copy that another rank is still writing
            elif not entry.name.startswith(_DRAFT):
                yield entry


def _is_odd(entry: "os.DirEntry[str]") -> bool:
    return not entry.is_file(follow_symlinks=False)


def _counted(
    left: OutputFolders, entries: Iterable["os.DirEntry[str]"], notes: tuple[str, ...]
) -> CollectedFiles:
    files, size, names = 0, 0, set[str]()
    for entry in entries:
        files, size = files + 1, size + entry.stat(follow_symlinks=False).st_size
        if left.wanted:
            names.add(os.path.relpath(entry.path, left.output))
    missing = [name for name in left.wanted if not has_output(name, names)]
    problem = f"the command did not write its output {', '.join(map(repr, missing))}" if missing else ""
    hint = f"Write it to the folder GRIDMILL_OUTPUT, which {_present_text(names)}." if missing else ""
    return CollectedFiles(files=files, size_bytes=size, notes=notes, problem=problem, hint=hint)


def _listed(left: OutputFolders, collected_files: CollectedFiles) -> CollectedFiles:
    """Writes the list of the output files with their hashes, and returns the collected files.

    Each rank of a gang lists the files that exist when it ends, and hashes only files that no other rank has
    hashed.
    """
    if left.listed is not None and collected_files.files and not collected_files.problem:
        listed_contents = read_contents(left.listed) or NOTHING
        # no error in a gang, because other ranks may remove files meanwhile
        with suppress(StorageError) if left.of_gang else nullcontext():
            contents = list_contents(left.output, listed_contents)
            write_contents(left.listed, contents)
            if not left.of_gang:
                seal(left.output, contents)
    return collected_files


def _present_text(found: set[str]) -> str:
    if not found:
        return "is empty"
    names = sorted(found)
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"contains {', '.join(names[:5])}{more}"


class _OutputScan:
    """Processes the links and the special files of an output once."""

    def __init__(self, left: OutputFolders) -> None:
        self._left = left
        self._output = Path(os.path.realpath(left.output))
        self._own = tuple(Path(os.path.realpath(one)) for one in left.excluded)
        self._inputs = tuple(Path(os.path.realpath(one)) for one in left.inputs)
        self._made = 0

    def run(self) -> Iterator[str]:
        """Replaces links with their targets, and removes special files. Returns lines for the log of the
        job. Raises InputError, OSError."""
        replaced = 0
        for entry in [one for one in _entries(self._left.output) if _is_odd(one)]:
            path = Path(entry.path)
            if entry.is_symlink():
                replaced += self._replace(path)
            else:
                path.unlink(missing_ok=True)
                yield f"{self._name(path)} is a socket, a pipe or a device, and is not stored\n"
        if replaced:
            yield f"{replaced} links in the output were replaced with the files that they point to\n"

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self._left.output)

    def _replace(self, link: Path) -> bool:
        """Replaces the link with its target in one atomic step. Returns False if another rank of the gang
        will replace the link when it ends."""
        target = self._target(link)
        if self._left.others and not target.is_relative_to(self._own[0]):
            return False
        draft = link.with_name(f"{_DRAFT}{uuid4().hex}")
        try:
            self._copy(target, draft, (target,))
            if draft.is_dir():
                link.unlink(missing_ok=True)
            draft.rename(link)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            draft.unlink(missing_ok=True)
            raise
        return True

    def _target(self, link: Path) -> Path:
        """Returns the final target of the link. Raises InputError if the target cannot be stored."""
        what = f"the output has a link {self._name(link)} to {os.readlink(link)}"
        try:
            target = Path(os.path.realpath(link, strict=True))
        except FileNotFoundError as error:
            raise InputError(f"{what}, which does not exist", hint=_COPY) from error
        except OSError as error:
            raise InputError(f"{what}: {error.strerror}", hint=_COPY) from error
        if not _is_in(target, (self._output, *self._own, *self._inputs)):
            raise InputError(f"{what}, which does not belong to the job and may change", hint=_COPY)
        if Path(os.path.realpath(link.parent)).is_relative_to(target):
            raise InputError(f"{what}, a folder that contains the link", hint=_COPY)
        return target

    def _copy(self, source: Path, target: Path, trail: tuple[Path, ...]) -> None:
        """Copies a file or a folder. `trail` contains the folders that are being copied at this moment, from
        the outermost folder to the innermost folder. A link to one of these folders is refused, because the
        copy would never end."""
        self._made += 1
        if self._made > _MOST_COPIED:
            raise InputError(f"links in the output lead to more than {_MOST_COPIED} files", hint=_COPY)
        if source.is_file():
            return self._copy_file(source, target)
        if not source.is_dir():
            raise InputError(f"the output has a link to {source}, which is not a file or folder", hint=_COPY)
        target.mkdir()
        for entry in sorted(source.iterdir()):
            # left out, because a copy in progress may be this copy, which would then contain itself
            if entry.name.startswith(_DRAFT):
                continue
            real = self._target(entry) if entry.is_symlink() else entry
            if real in trail:
                raise InputError(
                    f"the output has a link that leads back to a folder above it: {self._name(entry)}",
                    hint=_COPY,
                )
            if real.is_dir() or real.is_file():
                self._copy(real, target / entry.name, (*trail, real))

    def _copy_file(self, source: Path, target: Path) -> None:
        """Makes a hard link if the file belongs only to the attempt, because a hard link takes no space.
        The function copies every other file."""
        mine = _is_in(source, self._own) and source.stat().st_nlink == 1
        if mine or source.is_relative_to(self._output):
            try:
                return os.link(source, target)
            # the file system has no hard links, or the two places are on different file systems
            except OSError:
                pass
        shutil.copy2(source, target)


def _is_in(path: Path, places: Iterable[Path]) -> bool:
    return any(path.is_relative_to(place) for place in places)


_AT_ONCE = 2_000
"""Up to this number of files are counted in the loop of the pod, which takes some milliseconds."""
_FILE = "collected.json"
_FIRST_FREE = 3


class OutputCollection:
    """Collects the output of one attempt. `folder` is the folder of the attempt. `pid` is the id of the
    process that collects the output, or 0 if there is none."""

    def __init__(self, left: OutputFolders, folder: Path) -> None:
        self.pid = 0
        self._file = folder / _FILE
        self._found = look(left, _AT_ONCE)
        if self._found is None:
            self._begin(left)

    def _begin(self, left: OutputFolders) -> None:
        try:
            self.pid = fork(lambda parent: _work(left, self._file, parent))
        except OSError as error:
            self._found = CollectedFiles(
                problem=f"the process that stores its output could not be started: {error.strerror}"
            )

    def cancel(self) -> None:
        """Ends the process that collects the output. The output of the attempt is then not stored."""
        if self.pid:
            processes.send([self.pid], signal.SIGKILL)

    def collected(self) -> CollectedFiles | None:
        """Returns the files to store, or None while the process is still collecting them."""
        if self._found is None:
            ended = processes.stat(self.pid) is None
            self._found = _read(self._file)
            if self._found is None and ended:
                self._found = CollectedFiles(
                    problem="its output cannot be stored: the process that stores it died"
                )
        return self._found


def _work(left: OutputFolders, file: Path, parent: int) -> None:
    """The main function of the process that collects the output. This process closes all files of the pod
    and ends when the pod ends."""
    os.setsid()
    os.closerange(_FIRST_FREE, os.sysconf("SC_OPEN_MAX"))
    settle((), parent)
    draft = file.with_suffix(".new")
    draft.write_bytes(encode(collect(left)))
    draft.rename(file)
    raise SystemExit(0)


def _read(file: Path) -> CollectedFiles | None:
    try:
        return decode(file.read_bytes(), CollectedFiles)
    except (OSError, InputError):
        return None
