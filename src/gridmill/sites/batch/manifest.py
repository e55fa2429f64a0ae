"""The records that a home and the container of an attempt exchange through a bucket, and the names of their
objects.

All objects of an attempt are below `attempts/ID`. The home writes the manifest and the values of secrets.
The container writes all other objects.
"""

import hashlib
import re

from gridmill.domain.amounts import Amounts
from gridmill.domain.farm_protocol import Manifest
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import AttemptOrder, PodEvent

MOST_RECORD_BYTES = 256 << 20
"""The largest size in bytes of a record in the bucket."""
ATTEMPTS = "attempts"
"""The folder with the objects of all attempts."""
CHUNKS = "data"
"""The folder with the folders of chunks."""
_NOT_PLAIN = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFolder:
    """A folder that the attempt reads, or that it changes if it is `writable`. The chunks of its files are in
    the bucket."""

    uri: str
    manifest: Manifest
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchManifest:
    """All values with which a container runs an attempt.

    `type` is the kind of the job and `capacity` the size of the pod. With `shared_root`, the container sees
    the storage root of the home at this path, and `root_mark` is a file below it that must exist. Without
    `shared_root`, the attempt reads `inputs`. Checkpoints are uploaded every `checkpoints_seconds`. The
    events of the attempt are uploaded at most every `poll_seconds`. `chunks` is the folder of the bucket with
    the chunks of the attempt, see `chunks_folder`.
    """

    order: AttemptOrder
    type: str
    capacity: Amounts
    inputs: tuple[InputFolder, ...]
    checkpoints_seconds: float
    poll_seconds: float
    shared_root: str = ""
    root_mark: str = ""
    chunks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnd:
    """The end of an attempt, which is the last object that its container writes.

    `event` is the end event. `result` are the files of the output folder of an attempt that succeeded. If
    `interrupted` is true, the service or a person has ended the container, and the end event does not show
    why the attempt ended. `seconds` is the time that the container needed to download the inputs and to
    upload the result.
    """

    event: PodEvent
    result: Manifest | None = None
    interrupted: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCheckpoints:
    """The latest checkpoints of an attempt, whose chunks are in the bucket."""

    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAddress:
    """The address of a rank of a gang, other than rank 0. Its container writes this record. `first` is the
    address of rank 0, which the service has given to this container."""

    address: str
    first: str


def chunks_folder(now: float, keep_seconds: float) -> str:
    """Returns the folder of the bucket with the chunks of attempts that begin now. A new folder begins every
    `keep_seconds`. An old folder is deleted as soon as no attempt uses it, even if the site is never idle."""
    return f"{CHUNKS}/{int(now // keep_seconds):08d}"


def folder_of(attempt_id: str) -> str:
    """Returns the folder of the attempt's objects in the bucket."""
    return f"{ATTEMPTS}/{attempt_id}"


def manifest_object(attempt_id: str) -> str:
    """Returns the name of the object with the BatchManifest."""
    return f"{folder_of(attempt_id)}/manifest.json"


def started_object(attempt_id: str) -> str:
    """Returns the name of the object that the first container of an attempt creates. Another container of
    the same attempt then does nothing."""
    return f"{folder_of(attempt_id)}/started"


def events_folder(attempt_id: str) -> str:
    """Returns the folder of the objects with events."""
    return f"{folder_of(attempt_id)}/events"


def events_object(attempt_id: str, last: int) -> str:
    """Returns the name of the object with consecutive events, of which `last` is the number of the last."""
    return f"{events_folder(attempt_id)}/{last:012d}.json"


def number_of(name: str) -> int:
    """Returns the number of the last event in an object with events."""
    return int(name.rpartition("/")[2].partition(".")[0])


def secret_request_object(attempt_id: str) -> str:
    """Returns the name of the object with the SecretRequest of the pod."""
    return f"{folder_of(attempt_id)}/secrets/request.json"


def secret_values_object(attempt_id: str) -> str:
    """Returns the name of the object with the SecretValues, which are encrypted for the pod that asked."""
    return f"{folder_of(attempt_id)}/secrets/values.json"


def checkpoints_object(attempt_id: str) -> str:
    """Returns the name of the object with the BatchCheckpoints."""
    return f"{folder_of(attempt_id)}/checkpoints.json"


def end_object(attempt_id: str) -> str:
    """Returns the name of the object with the BatchEnd."""
    return f"{folder_of(attempt_id)}/end.json"


def ranks_folder(gang: str) -> str:
    """Returns the folder of the objects of a gang's ranks, which is deleted together with rank 0."""
    return f"{folder_of(gang)}/ranks"


def address_object(gang: str, rank: int) -> str:
    """Returns the name of the object with the RankAddress."""
    return f"{ranks_folder(gang)}/{rank}.address"


def beat_object(gang: str, rank: int) -> str:
    """Returns the name of the object that a rank other than rank 0 changes while its container runs."""
    return f"{ranks_folder(gang)}/{rank}.beat"


def rank_ended_object(gang: str, rank: int) -> str:
    """Returns the name of the object that a rank other than rank 0 writes after its end."""
    return f"{ranks_folder(gang)}/{rank}.ended"


def job_name(mark: str, attempt_id: str, token: str) -> str:
    """Returns the name of the attempt's job at the service. The name is valid at AWS Batch and at GCP Batch,
    and differs between attempts and between homes, which have different marks. It also differs after the
    records were restored from an old copy, which uses the ids of attempts again, but no token."""
    digest = hashlib.sha256(f"{attempt_id} {token}".encode()).hexdigest()[:10]
    plain = _NOT_PLAIN.sub("-", attempt_id.lower())[-32:].strip("-")
    return f"gm-{mark}-{plain}-{digest}"
