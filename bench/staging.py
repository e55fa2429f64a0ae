"""Carrying files to a bucket, back, and right to a farm, against rclone, s5cmd and rsync."""

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar
from urllib.parse import urlsplit

from tests.kit.objectstore import HOW_TO_GET_IT, KEYS, make_bucket, object_store
from tests.kit.sshd import HOW_TO_GET_IT as NO_SSH
from tests.kit.sshd import Sshd, is_installed, ssh_server

from bench.contestants import environment
from bench.environments import programs
from bench.farm import add, controller
from bench.measure import Result, Series, alternate, at_least, at_most, cpu_seconds, row, save
from gridmill.domain.farm_protocol import PlaceTree
from gridmill.sites.farm.client import member
from gridmill.sites.farm.credentials import keeping
from gridmill.transfer.bucket import BucketClient
from gridmill.transfer.bucket_cache import BucketCache
from gridmill.transfer.chunk_manifest import HashCache, scan
from gridmill.transfer.chunk_store import ChunkStore
from gridmill.transfer.engine import pull, push
from gridmill.transfer.paths import chunk_sizes
from gridmill.transfer.progress import TransferProgress
from gridmill.transfer.signed_urls import flows
from gridmill.transfer.stream import UNMETERED, ByteMeter, Chunk, ChunkStream
from gridmill.transfer.tree_writer import TreeCheckout

AREA = "Staging"
HERE = ("127.0.0.1",)  # where the bucket is allowed to be: farms read none on their own machine
SHARE, FILES, LARGE = 0.9, 10_000, 4
LARGE_BYTES, SMALL_BYTES, GROWN_SHARE = 256_000_000, 10_000, 100
ROUNDS = {"large": 3, "small": 1}  # a round of the small ones takes the others minutes
_SETTLE_SECONDS = 2.5
_KINDS = {"large": "1 GB in 4 files", "small": "10,000 files of 10 kB"}
_WAYS = {
    "up": "to a bucket",
    "down": "from a bucket",
    "across": "folder to folder",
    "direct": "to a farm, directly",
}
_STAGED = _WAYS.keys() - {"across"}  # what users' data does
HOW = """
Random bytes, on one disk. The bucket is moto's S3 server on this machine, which does one thing at a time and
takes most of the time; each contestant starts with an empty bucket or folder. Ours, in one process: the tree
is scanned and hashed, what lacks is sent, checked by its hash; back, chunks are checked, kept (those of
large files in their places there, as they come), and made a tree of links. What comes from
the bucket is what the same contestant put there; ours reads by signed URLs, as farms do.
rclone has 16 transfers, s5cmd its 256 workers, rsync `-a`;
each is a process that starts. To a farm on this machine: ours as jobs with `staging: direct` have it, over
mutual TLS through its controller, which is up; rsync and rclone (SFTP) over an SSH server of this machine.
Folder to folder, in one process, ours does nowhere but here: it shows what hashing and keeping cost. At the
end of each the file system is synced, as ours is durable when it says so. What is held against the target is
the time of the quickest of the others over ours, round by round. CPU seconds are those of the contestant,
without the servers'.
"""
Act = Callable[[], object]
_ENDED = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def main() -> None:
    with TemporaryDirectory() as folder, object_store() as endpoint:
        if endpoint is None:
            sys.exit(HOW_TO_GET_IT)
        os.environ.pop("AWS_CA_BUNDLE", None)  # rclone stumbles over it
        os.environ.update(_settings(endpoint))
        trees = {"large": Path(folder) / "from-large", "small": Path(folder) / "from-small"}
        _write(trees["large"], LARGE, LARGE_BYTES)
        _write(trees["small"], FILES, SMALL_BYTES)
        results: list[Result] = []
        with _shell(Path(folder)) as shell:
            for kind, root in trees.items():
                for way in _WAYS:
                    results += _Contest(kind, way, root, Path(folder) / "work", endpoint, shell).results()
                results += _again(kind, root, endpoint)
    save("staging", results, how=HOW)


@contextmanager
def _shell(folder: Path) -> Iterator[Sshd | None]:
    """An SSH server; none where none is installed."""
    if not is_installed():
        print(f"not measured: rsync and rclone over SSH: {NO_SSH}")
        yield None
        return
    with ssh_server(environment(folder)) as shell:
        yield shell


def _settings(endpoint: str) -> dict[str, str]:
    return KEYS | {
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_CONFIG_X_TYPE": "s3",
        "RCLONE_CONFIG_X_PROVIDER": "Other",
        "RCLONE_CONFIG_X_ENDPOINT": endpoint,
        "RCLONE_CONFIG_X_ACCESS_KEY_ID": KEYS["AWS_ACCESS_KEY_ID"],
        "RCLONE_CONFIG_X_SECRET_ACCESS_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
        "S3_ENDPOINT_URL": endpoint,
    }


def _write(folder: Path, files: int, size_bytes: int) -> None:
    for number in range(files):
        path = folder / f"{number // 100:03}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size_bytes))


def _far(endpoint: str, bucket: str) -> BucketCache:
    said = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1", "endpoint": endpoint}
    return BucketCache(BucketClient(f"s3://{bucket}/p", said))


class _Signed:
    """Reads as a farm does: by signed URLs."""

    def __init__(self, kept: BucketCache, sizes: Mapping[str, int]) -> None:
        self._kept, self._sizes = kept, sizes
        assert kept.missing(sizes) == ()

    def fetch(self, chunks: Iterable[str]) -> Iterator[Chunk]:
        return (flow.gathered() for flow in self.flows(chunks))

    def flows(self, chunks: Iterable[str]) -> Iterator[ChunkStream]:
        for parcel in self._kept.parcels({chunk: self._sizes[chunk] for chunk in chunks}):
            yield from flows(parcel, HERE)


@dataclass(frozen=True)
class _Kept:
    """Of a bucket what home puts there, and counts, as it does for a farm."""

    kept: BucketCache
    meter: ByteMeter = UNMETERED

    def metered(self, moved: Callable[[int], None], piece_bytes: int) -> "_Kept":
        return _Kept(self.kept, ByteMeter(moved=moved, piece_bytes=piece_bytes))

    def missing(self, chunks: Iterable[str]) -> tuple[str, ...]:
        return self.kept.missing(chunks)

    def send(self, chunks: Sequence[Chunk]) -> None:
        self.kept.send(chunks, self.meter)


class _Contest:
    """One kind of files, one way."""

    buckets: ClassVar[dict[tuple[str, str], list[str]]] = {}

    def __init__(
        self, kind: str, way: str, root: Path, work: Path, endpoint: str, shell: Sshd | None
    ) -> None:
        self.kind, self.way, self.root, self.work = kind, way, root, work
        self.endpoint, self.shell = endpoint, shell
        self.cpu: dict[str, Series] = {}

    def results(self) -> list[Result]:
        names = ("ours", *(name for name, act in self._peers("").items() if act))
        self.cpu = {name: Series() for name in names}
        wall = alternate(
            {name: partial(self._timed, name) for name in names}, rounds=ROUNDS[self.kind], warm=False
        )
        what = f"{_KINDS[self.kind]}, {_WAYS[self.way]}"
        rows = self._ratio(f"{what}: of the best's speed", [wall[name].values for name in names])
        rows += [row(AREA, f"{what}: {name}", wall[name].median, "s", **wall[name].spread) for name in names]
        rows += [
            row(AREA, f"{what}: {name}", cpu.median, "CPU s", **cpu.spread) for name, cpu in self.cpu.items()
        ]
        return rows

    def _ratio(self, what: str, seconds: Sequence[Sequence[float]]) -> list[Result]:
        """Ours are the first; none without others."""
        if len(seconds) == 1:
            return []
        ratio = Series([min(them) / us for us, *them in zip(*seconds, strict=True)])
        if self.way not in _STAGED:
            return [row(AREA, what, ratio.median, "", **ratio.spread)]
        return [at_least(SHARE, AREA, what, ratio.median, "", **ratio.spread)]

    def _timed(self, name: str) -> float:
        self._clear()
        with self._ready(name) as act:
            began, used = time.perf_counter(), sum(map(cpu_seconds, _ENDED))
            act()
            subprocess.run(("sync", "-f", str(self.work)), check=True)
            took = time.perf_counter() - began
            self.cpu[name].values.append(sum(map(cpu_seconds, _ENDED)) - used)
        return took

    @contextmanager
    def _ready(self, name: str) -> Iterator[Act]:
        """What that contestant is to do; what it needs is up meanwhile."""
        if (name, self.way) != ("ours", "direct"):
            yield self._act(name, self._bucket(name))
            return
        home, env = self.work / "home", environment(self.work)
        with controller(self.work / "farm", env) as (port, words):
            add(f"127.0.0.1:{port}", words, {**env, "GRIDMILL_HOME": str(home)})
            time.sleep(_SETTLE_SECONDS)
            yield partial(_direct, self.root, home)

    def _clear(self) -> None:
        """Nobody is to wait for what the one before left. Large files go: a sync tells the disk so, which is
        busy with it for a second. Small ones are put aside: ext4 looks for a minute at each inode that was
        just freed whenever it makes a file."""
        if self.kind == "small" and self.work.exists():
            self.work.rename(self.work.with_name(f"aside-{time.time_ns()}"))
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        subprocess.run(("sync", "-f", str(self.work)), check=True)
        time.sleep(_SETTLE_SECONDS)

    def _bucket(self, name: str) -> str:
        """To fill: a new one. What comes from a bucket comes from the one that was filled last."""
        filled = self.buckets.setdefault((self.kind, name), [])
        if self.way == "up":
            filled.append(f"{self.kind}-{name}-{len(filled)}")
            make_bucket(self.endpoint, filled[-1])
        return filled[-1] if filled else ""

    def _act(self, name: str, bucket: str) -> Act:
        if name == "ours":
            return {"up": self._up, "down": self._down, "across": self._across}[self.way](bucket)
        return partial(subprocess.run, self._peers(bucket)[name], check=True, stdout=subprocess.DEVNULL)

    def _up(self, bucket: str) -> Act:
        return lambda: push(scan(self.root), self.root, _Kept(_far(self.endpoint, bucket)))

    def _down(self, bucket: str) -> Act:
        manifest = scan(self.root)

        def down() -> None:
            store = ChunkStore(self.work / "store", 1 << 40)
            placer = TreeCheckout(self.work / "root", store)
            placer.place("x", manifest, "t.1")
            pull(manifest, store, _Signed(_far(self.endpoint, bucket), chunk_sizes(manifest)))
            placer.place("x", manifest, "t.1")

        return down

    def _across(self, _: str) -> Act:
        def across() -> None:
            manifest = scan(self.root)
            store = ChunkStore(self.work / "store", 1 << 40)
            placer = TreeCheckout(self.work / "root", store)
            placer.place("x", manifest, "t.1")
            push(manifest, self.root, store)
            placer.place("x", manifest, "t.1")

        return across

    def _peers(self, bucket: str) -> dict[str, tuple[str, ...]]:
        """Commands; of those that are not installed none."""
        root, work = str(self.root), str(self.work)
        ends = ("--s3-upload-cutoff", "1G")  # moto refuses how this version ends uploads in parts
        rclone = ("rclone", "copy", "--transfers", "16", "--checkers", "32", "--s3-no-check-bucket", *ends)
        s5cmd = (str(programs("s5cmd") / "s5cmd"), "cp")
        commands = {
            "up": {
                "rclone": (*rclone, root, f"X:{bucket}/p"),
                "s5cmd": (*s5cmd, f"{root}/", f"s3://{bucket}/p/"),
            },
            "down": {
                "rclone": (*rclone, f"X:{bucket}/p", work),
                "s5cmd": (*s5cmd, f"s3://{bucket}/p/*", f"{work}/"),
            },
            "across": {"rclone": (*rclone, root, work), "rsync": ("rsync", "-a", f"{root}/", work)},
            "direct": {
                "rclone": (*rclone, root, f"{_sftp(self.shell)}:{work}/there"),
                "rsync": ("rsync", "-a", "-e", _ssh(self.shell), f"{root}/", f"root@127.0.0.1:{work}/there"),
            }
            if self.shell
            else {},
        }[self.way]
        return {name: command for name, command in commands.items() if shutil.which(command[0])}


def _direct(root: Path, home: Path) -> None:
    """As a job's data goes to the farm that this home calls `far`."""
    farm = member(keeping(home, "far"))
    manifest = scan(root)
    place = PlaceTree(uri="x", manifest=manifest, attempt_id="bench-1.job.1")
    farm.place(place)
    push(manifest, root, farm)
    assert farm.place(place) == ()
    farm.close()


def _ssh(shell: Sshd) -> str:
    return f"ssh -F {shell.config} -p {urlsplit(shell.address).port}"


def _sftp(shell: Sshd) -> str:
    """As rclone writes it; sums by a command there for each file would take it minutes."""
    key = shell.config.with_name("user")
    port = urlsplit(shell.address).port
    return f":sftp,host=127.0.0.1,port={port},user=root,key_file={key},disable_hashcheck=true"


def _again(kind: str, root: Path, endpoint: str) -> list[Result]:
    """Staged once more, unchanged, and after a hundredth was appended."""
    make_bucket(endpoint, f"{kind}-again")
    with TemporaryDirectory() as folder:
        cache = HashCache(Path(folder) / "hashes")
        push(scan(root, cache=cache), root, _far(endpoint, f"{kind}-again"))
        time.sleep(_SETTLE_SECONDS)  # files that have just been written are not believed to be done
        scan(root, cache=cache)
        began, same = time.perf_counter(), TransferProgress()
        push(scan(root, cache=cache), root, _far(endpoint, f"{kind}-again"), progress=same)
        took = time.perf_counter() - began
        _grow(kind, root)
        grown = TransferProgress()
        push(scan(root, cache=cache), root, _far(endpoint, f"{kind}-again"), progress=grown)
    what = _KINDS[kind]
    shares = [100 * look.transferred_bytes / look.total_bytes for look in (same.look(), grown.look())]
    return [
        at_most(2, AREA, f"{what}, unchanged, once more", took, "s"),
        at_most(1, AREA, f"{what}, unchanged, once more: travels", shares[0], "%"),
        at_most(2, AREA, f"{what}, after 1 % was appended: travels", shares[1], "%"),
    ]


def _grow(kind: str, root: Path) -> None:
    """Large files at their ends, small ones by more files: as tables grow."""
    if kind == "small":
        _write(root / "more", FILES // GROWN_SHARE, SMALL_BYTES)
        return
    for path in sorted(root.rglob("*.bin")):
        with path.open("ab") as file:
            file.write(os.urandom(LARGE_BYTES // GROWN_SHARE))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
