"""Lists the inputs of an attempt as folders to transfer to a farm, and computes how many bytes of versions
the farm does not have.

The hashes of folders in the home are cached, so that unchanged folders are not read again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Protocol

from gridmill.codec import decode
from gridmill.domain.artifact import Artifact, ArtifactKind, Input
from gridmill.domain.comparison import ArtifactQuery
from gridmill.domain.farm_protocol import Manifest
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import AttemptOrder
from gridmill.domain.service_features import SENT_FILE, SENT_FOLDER, SentView
from gridmill.domain.serving import ServedVersion, ServiceOrder
from gridmill.domain.storage_uri import below
from gridmill.domain.version_manifest import version_uri
from gridmill.errors import (
    ConflictError,
    GridmillError,
    InputError,
    NotFoundError,
    StorageError,
    UnavailableError,
)
from gridmill.plugins import find
from gridmill.transfer.chunk_manifest import HashCache, scan, scan_files
from gridmill.transfer.paths import chunk_sizes

_NEVER_NS = 2**63


class KnownFolders:
    """Stores the hash caches of local folders, one cache file per folder. This class is safe to use from
    several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, path: Path) -> Path:
        """Returns the path of the cache file with the hashes of a folder."""
        return self._folder / f"{sha256(str(path).encode()).hexdigest()[:32]}.json"

    def cache(self, path: Path) -> HashCache:
        """Returns the hash cache for a scan of the folder."""
        return HashCache(self.path(path))

    def scan(self, path: Path) -> Manifest:
        """Returns the manifest of the folder, as `chunk_manifest.scan` computes it."""
        return scan(path, cache=self.cache(path))

    def remember(self, path: Path, manifest: Manifest) -> None:
        """Stores the hashes of a folder that was just written from this manifest. The function does not read
        the folder, because no job has changed the folder yet."""
        cache = HashCache(self.path(path), now_ns=lambda: _NEVER_NS)
        cache.open(manifest.chunk_bytes)
        with suppress(OSError, StorageError):  # if the hashes cannot be stored, the folder is read once more
            for entry in manifest.files:
                cache.keep(entry.path, (path / entry.path).lstat(), entry.chunks)
            cache.save()


BUNDLES = "bundles"
_QUICK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTree:
    """One input folder of an attempt: `path` is the path of the folder in the home, and `uri` is the URI of
    the folder at the farm."""

    path: Path
    uri: str
    manifest: Manifest
    writable: bool = False


class InputTrees:
    """Finds the input folders of attempts in the storage root of this home. This class is safe to call from
    several threads."""

    def __init__(self, root: Path, bundles: Path, known_folders: KnownFolders) -> None:
        self._home_root, self._bundles, self._known = root, bundles, known_folders

    def of(self, order: AttemptOrder, *, for_each_rank: bool = False) -> Iterator[InputTree]:
        """Yields all folders that the attempt reads. With `for_each_rank`, each rank of a gang has its own
        copy of the folders, and therefore its own copy of the checkpoints."""
        for entry in (*order.inputs, *kept_from(order)):
            if entry.artifact.output.uri:  # without a folder, because a command may make no files
                yield self._tree_of(entry)
        if order.service is not None:
            yield from self.of_service(order.service)
        for uri in order.parts:
            path = below(self._home_root, uri)
            yield InputTree(path=path, uri=uri, manifest=self._known.scan(path))
        if order.checkpoint_uri and (for_each_rank or counts(order)):
            yield from self._checkpoints(order, below(self._home_root, order.checkpoint_uri))
        if order.bundle_path:
            bundle = self._bundles / f"{order.bundle}.tar.gz"
            yield InputTree(path=bundle, uri=f"{BUNDLES}/{bundle.name}", manifest=scan(bundle))

    def of_service(self, order: ServiceOrder) -> Iterator[InputTree]:
        """Yields the folders of the versions that a service offers, of their stages, and of the definitions
        of their contextual features."""
        versions = [one for version in order.loaded for one in version.all_versions()]
        folders = {one.folder: version_folder_uri(self._home_root, one) for one in versions}
        folders |= {one.features: features_uri(self._home_root, one) for one in versions if one.features}
        for folder, uri in folders.items():
            yield InputTree(path=Path(folder), uri=uri, manifest=self._known.scan(Path(folder)))

    def of_view(self, view: Path, sent: SentView, uri: str) -> InputTree:
        """Returns the folder with the files of a view that is sent. `view` is the folder of the view. Raises
        UnavailableError if the files were just replaced by newer ones."""
        path, cache = view / SENT_FOLDER / sent.series, self._known.cache(view / SENT_FOLDER)
        try:
            manifest = scan_files(path, [one.name for one in sent.files()], cache=cache)
        except (NotFoundError, StorageError, ConflictError) as error:
            raise UnavailableError(f"the files of the view {view} cannot be read: {error}") from error
        return InputTree(path=path, uri=uri, manifest=manifest)

    def _checkpoints(self, order: AttemptOrder, folder: Path) -> Iterator[InputTree]:
        if folder.is_dir():
            manifest = self._known.scan(folder)
            yield InputTree(path=folder, uri=farm_checkpoint_uri(order), manifest=manifest, writable=True)

    def manifest_of(self, version: Artifact) -> Manifest | None:
        """Returns the manifest of a version's files. Returns None if the version has no files, or if its
        files were never read and reading them would take long."""
        output = version.output
        if not output.uri:
            return None
        is_known = self._known.path(below(self._home_root, output.uri)).exists()
        if not is_known and output.size_bytes > _QUICK_BYTES:
            return None
        return self._tree_of(Input(name="", artifact=version)).manifest

    def _tree_of(self, entry: Input) -> InputTree:
        output = entry.artifact.output
        path = below(self._home_root, output.uri)
        if output.kind != ArtifactKind.SINK:
            return InputTree(path=path, uri=output.uri, manifest=self._known.scan(path))
        query = ArtifactQuery(root=str(self._home_root), artifact=entry.artifact, files=True)
        files = find("looks", "process")(query).files
        manifest = scan_files(path, files, cache=self._known.cache(path))
        return InputTree(path=path, uri=version_uri(output), manifest=manifest)


def version_folder_uri(root: Path, version: ServedVersion) -> str:
    """Returns the URI of the folder of a served version. Raises InputError if the folder is not in the
    storage root."""
    return folder_uri(root, version.folder, version.label)


def features_uri(root: Path, version: ServedVersion) -> str:
    """Returns the URI of the folder with the definition of the contextual features of a served version.
    Raises InputError if the folder is not in the storage root."""
    return folder_uri(root, version.features, f"the definition of the features of {version.label}")


def folder_uri(root: Path, folder: str, what: str) -> str:
    """Returns the URI of a folder. `what` names the folder in the error. Raises InputError if the folder is
    not in the storage root."""
    try:
        return Path(folder).relative_to(root).as_posix()
    except ValueError as error:
        raise InputError(f"{what} is not in the storage root {root}: {folder}") from error


def read_sent(view: Path) -> SentView | None:
    """Returns the description of the files of a view that are to be sent, or None if there is no complete
    view. Raises UnavailableError."""
    try:
        return decode((view / SENT_FILE).read_bytes(), SentView)
    except FileNotFoundError:
        return None
    except (OSError, InputError) as error:
        raise UnavailableError(f"{view / SENT_FILE} cannot be read: {error}") from error


def counts(order: AttemptOrder) -> bool:
    """Returns whether the results of the attempt are stored as a version. In a gang, only the results of
    rank 0 are stored."""
    return order.gang is None or order.gang.rank == 0


def farm_checkpoint_uri(order: AttemptOrder) -> str:
    """Returns the URI of the checkpoint folder at the farm, which belongs to the attempt or its gang. Files
    that an earlier attempt left in this folder are ignored."""
    owner = order.gang.id if order.gang is not None else order.attempt_id
    return f"{order.checkpoint_uri}.{owner}" if order.checkpoint_uri else ""


def kept_from(order: AttemptOrder) -> tuple[Input, ...]:
    """Returns the previous version of the job's result as an input, if the job continues from it."""
    spec = order.job.dataset
    return order.earlier if spec is not None and spec.incremental else ()


def read_by(order: AttemptOrder) -> frozenset[str]:
    """Returns the URIs of the folders in this home that the attempt reads."""
    entries = (*order.inputs, *kept_from(order))
    return frozenset(order.parts) | {entry.artifact.output.uri for entry in entries} - {""}


def farm_input(entry: Input) -> Input:
    """Returns the input with its URI at the farm."""
    output = entry.artifact.output
    if output.kind != ArtifactKind.SINK:
        return entry
    moved = replace(output, uri=version_uri(output))
    return replace(entry, artifact=replace(entry.artifact, output=moved))


_ASKED = 10_000
_PATIENCE_SECONDS = 5.0
"""The timeout for a question to the farm during planning. The timeout is short because a user waits for the
plan. If the farm does not answer in time, the plan uses the stored records."""


class FarmInventory(Protocol):
    """Returns which chunks a farm does not have."""

    def missing(self, chunks: Iterable[str], *, seconds: float) -> tuple[str, ...]:
        """Returns the chunks that the farm does not have. The farm must answer within `seconds`. Raises
        UnavailableError."""


def missing_bytes(
    farm: FarmInventory, versions: Iterable[Artifact], manifest_of: Callable[[Artifact], Manifest | None]
) -> Mapping[str, int]:
    """Returns the number of bytes that the farm does not have, by the id of each version whose files are
    known. Raises UnavailableError."""
    sizes: dict[str, dict[str, int]] = {}
    for version in versions:
        try:
            manifest = manifest_of(version)
        except UnavailableError:
            raise
        except GridmillError:
            # skipped: the attempt that reads the folder reports that its files are deleted or changing
            continue
        if manifest is not None:
            sizes[version.id] = chunk_sizes(manifest)
    gone = set(_missing(farm, dict.fromkeys(chunk for one in sizes.values() for chunk in one)))
    return {key: sum(size for chunk, size in one.items() if chunk in gone) for key, one in sizes.items()}


def changed_shares(
    pairs: Iterable[tuple[Artifact, Artifact]], manifest_of: Callable[[Artifact], Manifest | None]
) -> Mapping[str, float]:
    """For each pair of versions, returns a fraction: of the bytes of the newer version, the fraction that is
    in chunks which the older version does not have. The keys are the ids of the newer versions."""
    shares: dict[str, float] = {}
    for newer, older in pairs:
        try:
            manifests = manifest_of(newer), manifest_of(older)
        except GridmillError:
            continue  # the files of one of the folders are deleted or changing, so they cannot be compared
        if manifests[0] is not None and manifests[1] is not None:
            sizes, before = chunk_sizes(manifests[0]), chunk_sizes(manifests[1])
            changed = sum(size for chunk, size in sizes.items() if chunk not in before)
            shares[newer.id] = changed / max(1, sum(sizes.values()))
    return shares


def _missing(farm: FarmInventory, chunks: Iterable[str]) -> Iterable[str]:
    left = iter(chunks)
    while some := list(islice(left, _ASKED)):
        yield from farm.missing(some, seconds=_PATIENCE_SECONDS)
