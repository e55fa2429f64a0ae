"""What attempts at a farm read is carried there, what they make is carried home."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from gridmill.codec import decode, encode, from_builtins, to_builtins
from gridmill.errors import NotFoundError, StorageError, UnavailableError
from gridmill.model.artifact import ArtifactKind, Input, Output
from gridmill.model.event import EventType, PodEvent
from gridmill.model.farm import Manifest, Place
from gridmill.model.look import Look
from gridmill.model.message import Events, Order, Outcome
from gridmill.model.noun import dataclass
from gridmill.model.state import AttemptState
from gridmill.registry import find
from gridmill.sites.cluster.farm import Farm
from gridmill.staging.carry import Terms, pull, push
from gridmill.staging.chunks import ChunkStore
from gridmill.staging.hashes import HashCache
from gridmill.staging.manifest import scan, scan_files
from gridmill.staging.place import Placer
from gridmill.staging.progress import Carried, Progress

COMING = ".coming"
"""Below the storage root: what is on its way home."""
_BUNDLES = "bundles"
_TIMES = 3
_PATIENCE_SECONDS = 5.0
"""Whoever asked asks again, as long as the farm is dialled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What an attempt at the farm leaves there: its own folder, and its checkpoints, by their URIs. A `part`
    leaves something in any case."""

    output_uri: str
    checkpoint_uri: str = ""
    part: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What is carried: `path` here, `uri` there."""

    path: Path
    uri: str
    manifest: Manifest
    writable: bool = False


class HomeCarrying:
    """Carrying between this home's storage root and a farm. Safe to call from several threads."""

    def __init__(
        self,
        farm: Farm,
        root: Path,
        bundles: Path,
        notes: Path,
        limit_bytes_per_second: float | None = None,
    ) -> None:
        """`notes` is a folder for what must be known again after a restart."""
        self._farm, self._here, self._bundles, self._notes = farm, root, bundles, notes
        self._terms = Terms(patience_seconds=_PATIENCE_SECONDS, limit_bytes_per_second=limit_bytes_per_second)
        self._coming = root / COMING / notes.parent.name
        shutil.rmtree(self._coming, ignore_errors=True)  # of a process that was killed
        self._root = ""
        self._progress: dict[str, Progress] = {}

    def take_there(self, order: Order) -> Order:
        """See Carrying."""
        self._note(order)
        progress = self._progress[order.attempt_id] = Progress()
        try:
            for tree in self._trees(order):
                self._carry(tree, order.attempt_id, progress)
        finally:
            del self._progress[order.attempt_id]
        there = self._root_there()
        bundle = f"{there}/{_BUNDLES}/{order.bundle}.tar.gz" if order.bundle_path else ""
        return replace(
            order,
            root=there,
            bundle_path=bundle,
            inputs=tuple(map(_there, order.inputs)),
            earlier=tuple(map(_there, order.earlier)),
        )

    def progress(self, attempt_id: str) -> Carried | None:
        """How far its data is on the way there; None when none is."""
        found = self._progress.get(attempt_id)
        return found.look() if found is not None else None

    def _root_there(self) -> str:
        if not self._root:
            self._root = self._farm.look().root
        return self._root

    def _trees(self, order: Order) -> Iterator[Tree]:
        for entry in (*order.inputs, *order.earlier):
            yield self._tree_of(entry)
        for uri in order.parts:
            yield Tree(path=self._here / uri, uri=uri, manifest=self._scan(self._here / uri))
        checkpoints = self._here / order.checkpoint_uri
        if order.checkpoint_uri and checkpoints.is_dir():
            found = self._scan(checkpoints)
            yield Tree(path=checkpoints, uri=order.checkpoint_uri, manifest=found, writable=True)
        if order.bundle_path:
            bundle = self._bundles / f"{order.bundle}.tar.gz"
            yield Tree(path=bundle, uri=f"{_BUNDLES}/{bundle.name}", manifest=scan(bundle))

    def _tree_of(self, entry: Input) -> Tree:
        output = entry.artifact.output
        path = self._here / output.uri
        if output.kind != ArtifactKind.SINK:
            return Tree(path=path, uri=output.uri, manifest=self._scan(path))
        look = Look(root=str(self._here), artifact=entry.artifact, files=True)
        files = find("looks", "process")(look).files
        manifest = scan_files(path, files, cache=self._cache(path))
        return Tree(path=path, uri=_version_uri(output), manifest=manifest)

    def _scan(self, path: Path) -> Manifest:
        return scan(path, cache=self._cache(path))

    def _cache(self, path: Path) -> HashCache:
        return HashCache(self._notes / "hashes" / f"{sha256(str(path).encode()).hexdigest()[:32]}.json")

    def _carry(self, tree: Tree, attempt_id: str, progress: Progress) -> None:
        """Until nothing lacks there: what was there when it was asked may have gone since."""
        place = Place(uri=tree.uri, manifest=tree.manifest, attempt_id=attempt_id, writable=tree.writable)
        for _ in range(_TIMES):
            if not self._farm.place(place):
                return
            push(tree.manifest, tree.path, self._farm, progress=progress, terms=self._terms)
        raise UnavailableError(
            f"the farm lost chunks of {tree.uri} as they came", hint="Its quota may be too small."
        )

    # home

    def bring_home(self, events: Events) -> Events:
        """See Carrying."""
        return Events(events=tuple(map(self._brought, events.events)))

    def _brought(self, event: PodEvent) -> PodEvent:
        carried = self._carried(event.attempt_id) if event.type == EventType.ENDED else None
        if carried is None:
            return event
        outcome = from_builtins(event.body["outcome"], Outcome)
        done = outcome.state == AttemptState.SUCCEEDED
        try:
            if done and carried.output_uri:
                self._fetch(carried.output_uri)
        except NotFoundError as error:
            if carried.part or any(one.uri for one in outcome.outputs):
                lost = Outcome(
                    state=AttemptState.LOST, message=f"what it made is no more at the farm: {error}"
                )
                event = replace(event, body={"outcome": to_builtins(lost)})
        if carried.checkpoint_uri:
            self._keep_checkpoints(carried.checkpoint_uri, done=done)
        with suppress(NotFoundError):
            self._farm.forget(event.attempt_id)
        self._forget(event.attempt_id)
        return event

    def _keep_checkpoints(self, uri: str, *, done: bool) -> None:
        if done:
            return shutil.rmtree(self._here / uri, ignore_errors=True)
        with suppress(NotFoundError):  # it made none
            self._fetch(uri)
        return None

    def _fetch(self, uri: str) -> None:
        """The folder as it is there, whole or not at all. Raises NotFoundError where it is not."""
        manifest = self._farm.scan(uri)
        folder = self._coming / sha256(uri.encode()).hexdigest()[:32]
        chunks = ChunkStore(folder, manifest.size_bytes + 1)
        for _ in range(_TIMES):
            if not Placer(self._here, chunks).place(uri, manifest, COMING, writable=True):
                return shutil.rmtree(folder, ignore_errors=True)
            pull(manifest, chunks, self._farm, terms=self._terms)
        raise UnavailableError(f"what came of {uri} is gone again", place=str(folder))

    def give_up(self, attempt_id: str) -> None:
        """See Carrying. What is on its way arrives; the next attempt has use for it."""

    # notes: which attempts have something there

    def _note(self, order: Order) -> None:
        mine = order.gang is None or order.gang.rank == 0  # of a gang, what counts is rank 0's
        note = Note(
            output_uri=order.output_uri if mine else "",
            checkpoint_uri=order.checkpoint_uri if mine else "",
            part=order.part is not None,
        )
        path = self._path(order.attempt_id)
        draft = path.with_name(f".{path.name}.draft")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(encode(note))
            draft.rename(path)
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror}", place=str(path)) from error

    def _carried(self, attempt_id: str) -> Note | None:
        try:
            return decode(self._path(attempt_id).read_bytes(), Note)
        except OSError:
            return None

    def _forget(self, attempt_id: str) -> None:
        with suppress(OSError):
            self._path(attempt_id).unlink()

    def _path(self, attempt_id: str) -> Path:
        return self._notes / "attempts" / f"{attempt_id}.json"


def _version_uri(output: Output) -> str:
    """A table's versions are folders of their own there: each is only ever made, never changed."""
    return f"versions/{output.uri}@{output.table_version}"


def _there(entry: Input) -> Input:
    output = entry.artifact.output
    if output.kind != ArtifactKind.SINK:
        return entry
    moved = replace(output, uri=_version_uri(output))
    return replace(entry, artifact=replace(entry.artifact, output=moved))
