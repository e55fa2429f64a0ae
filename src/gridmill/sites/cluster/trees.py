"""What an attempt at a farm reads, as trees that are carried there, and how it finds them there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gridmill.model.artifact import Artifact, ArtifactKind, Input
from gridmill.model.farm import Manifest
from gridmill.model.look import Look
from gridmill.model.message import Order
from gridmill.model.noun import dataclass
from gridmill.model.stored import version_uri
from gridmill.model.uri import below
from gridmill.registry import find
from gridmill.sites.cluster.known import Known
from gridmill.staging.manifest import scan, scan_files

BUNDLES = "bundles"
_QUICK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What is carried: `path` here, `uri` there."""

    path: Path
    uri: str
    manifest: Manifest
    writable: bool = False


class Trees:
    """Of attempts, as they are in this home's storage root. Safe to call from several threads."""

    def __init__(self, root: Path, bundles: Path, known: Known) -> None:
        self._here, self._bundles, self._known = root, bundles, known

    def of(self, order: Order) -> Iterator[Tree]:
        """All that it reads."""
        for entry in (*order.inputs, *kept_from(order)):
            if entry.artifact.output.uri:  # a command may make no files
                yield self._tree_of(entry)
        for uri in order.parts:
            path = below(self._here, uri)
            yield Tree(path=path, uri=uri, manifest=self._known.scan(path))
        if order.checkpoint_uri and counts(order):
            yield from self._checkpoints(order, below(self._here, order.checkpoint_uri))
        if order.bundle_path:
            bundle = self._bundles / f"{order.bundle}.tar.gz"
            yield Tree(path=bundle, uri=f"{BUNDLES}/{bundle.name}", manifest=scan(bundle))

    def _checkpoints(self, order: Order, folder: Path) -> Iterator[Tree]:
        if folder.is_dir():
            found = self._known.scan(folder)
            yield Tree(path=folder, uri=checkpoints_there(order), manifest=found, writable=True)

    def manifest_of(self, version: Artifact) -> Manifest | None:
        """Its files; None where that would take long, as they were never read, or it has none."""
        output = version.output
        if not output.uri:
            return None
        known = self._known.path(below(self._here, output.uri)).exists()
        if not known and output.size_bytes > _QUICK_BYTES:
            return None
        return self._tree_of(Input(name="", artifact=version)).manifest

    def _tree_of(self, entry: Input) -> Tree:
        output = entry.artifact.output
        path = below(self._here, output.uri)
        if output.kind != ArtifactKind.SINK:
            return Tree(path=path, uri=output.uri, manifest=self._known.scan(path))
        look = Look(root=str(self._here), artifact=entry.artifact, files=True)
        files = find("looks", "process")(look).files
        manifest = scan_files(path, files, cache=self._known.cache(path))
        return Tree(path=path, uri=version_uri(output), manifest=manifest)


def counts(order: Order) -> bool:
    """Whether what it makes is kept: of a gang, what rank 0 makes."""
    return order.gang is None or order.gang.rank == 0


def checkpoints_there(order: Order) -> str:
    """A folder of the attempt's own, or of its gang's: what an earlier one left there is nobody's concern."""
    owner = order.gang.id if order.gang is not None else order.attempt_id
    return f"{order.checkpoint_uri}.{owner}" if order.checkpoint_uri else ""


def kept_from(order: Order) -> tuple[Input, ...]:
    """The version before, where the job goes on from it."""
    spec = order.job.dataset
    return order.earlier if spec is not None and spec.incremental else ()


def read_by(order: Order) -> frozenset[str]:
    """The folders of this home that it reads, by their URIs."""
    entries = (*order.inputs, *kept_from(order))
    return frozenset(order.parts) | {entry.artifact.output.uri for entry in entries} - {""}


def input_there(entry: Input) -> Input:
    """As it is named there."""
    output = entry.artifact.output
    if output.kind != ArtifactKind.SINK:
        return entry
    moved = replace(output, uri=version_uri(output))
    return replace(entry, artifact=replace(entry.artifact, output=moved))
