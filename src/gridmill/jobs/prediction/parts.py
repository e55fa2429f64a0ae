"""What the parts of a swarm did on their machines, written down and put together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.errors import InternalError, JobError
from gridmill.jobs.files import link_file
from gridmill.jobs.prediction.parallel import ShardDone
from gridmill.jobs.prediction.worker import part_name

DONE_FILE = ".done.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The shards that were done: `first` is the number of the first one, of `of` that there are. `seconds` is
    from the first worker made to the last shard done. `model` is the version that was chosen."""

    first: int
    of: int
    shards: tuple[ShardDone, ...]
    workers: int
    deaths: tuple[str, ...]
    seconds: float
    model: str = ""


def write_done(folder: Path, done: Done) -> None:
    """Note it beside the files of the shards."""
    (folder / DONE_FILE).write_bytes(encode(done))


def take_together(target: Path, folders: Sequence[Path], model: str) -> Done:
    """The files of all parts in `target`, as if one swarm had made them. Raises StorageError; InternalError
    unless each shard is there exactly once; JobError where a part is not of `model`."""
    parts = [decode((folder / DONE_FILE).read_bytes(), Done) for folder in folders]
    ends = [(part.first, part.first + len(part.shards)) for part in parts]
    whole = [(0, 0), *ends, (parts[0].of, parts[0].of)]
    if any(one[1] != other[0] for one, other in pairwise(whole)):
        raise InternalError(f"the parts hold shards {ends}, which are not all of {parts[0].of}")
    if len(models := {model, *(part.model for part in parts)}) > 1:
        raise JobError(
            f"the parts have chosen different models, which are equally good: {', '.join(sorted(models))}",
            hint="Name one of them in `models`.",
        )
    for folder, part in zip(folders, parts, strict=True):
        for shard in range(part.first, part.first + len(part.shards)):
            link_file(folder / part_name(shard), target)
    return Done(
        first=0,
        of=parts[0].of,
        shards=tuple(shard for part in parts for shard in part.shards),
        workers=sum(part.workers for part in parts),
        deaths=tuple(death for part in parts for death in part.deaths),
        seconds=max(part.seconds for part in parts),
        model=parts[0].model,
    )
