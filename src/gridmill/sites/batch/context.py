"""The objects that all attempts of a batch site share, and the request for the job of an attempt."""

import math
import time
from collections.abc import Callable
from pathlib import Path

from gridmill.domain.amounts import MIB
from gridmill.domain.batch_use import BatchUse
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.site import Site
from gridmill.errors import UnavailableError
from gridmill.ports.batch import BatchJob, BatchPort, BatchRequest
from gridmill.sites.attempt_inputs import InputTrees, farm_checkpoint_uri, farm_input
from gridmill.sites.batch.attempt_record import BatchAttemptRecord
from gridmill.sites.batch.exchange import Exchange
from gridmill.sites.batch.manifest import BatchManifest, InputFolder
from gridmill.sites.batch.settings import BatchSettings, for_resource, memory_request

_LEAST_MEMORY_BYTES = 128 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteContext:
    """The objects that all attempts of a site share. `root_mark` is the path, below the storage root, of the
    file by which a container recognises the storage root. `jobs` returns the last known state of a job, or
    None if the service was not asked yet; `missing_seconds` returns for how many seconds the service has
    not known the job. `records` returns the record of another attempt of the site by its id."""

    site: Site
    parsed: BatchSettings
    root: Path
    mark: str
    root_mark: str
    exchange: Exchange
    service: BatchPort
    trees: InputTrees
    jobs: Callable[[str], BatchJob | None]
    missing_seconds: Callable[[str], float]
    records: Callable[[str], BatchAttemptRecord | None]
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


def request_of(record: BatchAttemptRecord, context: SiteContext) -> BatchRequest:
    """Returns the job for the attempt."""
    parsed = for_resource(context.site, record.settings)
    endpoint = (parsed.bucket_endpoint,) if parsed.bucket_endpoint else ()
    program = (parsed.python, "-P", "-m", "gridmill.bootstrap.batch_attempt")
    gang = record.order.gang
    first = gang.id if gang is not None else record.order.attempt_id
    return BatchRequest(
        name=record.name,
        command=(*program, context.exchange.bucket.url, first, *endpoint),
        # containers on EC2 do not know their region, and a request with another region is refused
        variables={"AWS_REGION": parsed.bucket_region} if parsed.bucket_region else {},
        cpus=max(1, math.ceil(record.given.cpus - 1e-9)),
        memory_bytes=memory_request(max(_LEAST_MEMORY_BYTES, record.given.memory_bytes)),
        gpus=record.given.gpus,
        limit_seconds=parsed.time_limit_seconds,
        spot=parsed.spot,
        nodes=record.nodes,
        labels={"gridmill-owner": context.mark, "gridmill-attempt": record.order.attempt_id},
    )


def check_account(record: BatchAttemptRecord, context: SiteContext) -> None:
    """Raises UnavailableError if the credentials of the site belong to another account than the job. The
    service then does not know the job, although the job may run and cost money."""
    present = context.service.account() if record.account else ""
    if present != record.account:
        raise UnavailableError(
            f"its job {record.job_id or record.name} is in account {record.account}, but the credentials of "
            f"site {context.site.name} are for account {present}",
            hint="Set the credentials of the first account until the job has ended.",
        )


def manifest_of(
    record: BatchAttemptRecord, context: SiteContext, inputs: tuple[InputFolder, ...]
) -> BatchManifest:
    """Returns the manifest of the attempt."""
    order, shared = record.order, context.parsed.shared_root
    if shared:
        order = replace(order, bundle_path=order.bundle_path.replace(str(context.root), shared, 1))
    else:
        earlier = order.earlier if order.job.dataset is not None else ()
        order = replace(
            order,
            checkpoint_uri=farm_checkpoint_uri(order),
            inputs=tuple(map(farm_input, order.inputs)),
            earlier=tuple(map(farm_input, earlier)),
        )
    return BatchManifest(
        order=order,
        type=record.type,
        capacity=record.given,
        inputs=inputs,
        checkpoints_seconds=context.parsed.checkpoints_seconds,
        poll_seconds=min(5.0, context.parsed.poll_seconds),
        shared_root=shared,
        root_mark=context.root_mark,
        chunks=record.chunks,
    )


def use_of(record: BatchAttemptRecord, context: SiteContext, job: BatchJob | None) -> BatchUse | None:
    """Returns the time for which the service ran the attempt, with its price. It is None if the container
    never started, or if the service does not show the times of the job."""
    if job is None or job.started is None:
        return None
    parsed = for_resource(context.site, record.settings)
    return BatchUse(
        site=context.site.name,
        job_id=job.id,
        region=context.site.settings.get("region", ""),
        started=job.started,
        ended=max(job.started, context.now() if job.ended is None else job.ended),
        price_micros=parsed.price_of(record.given, is_whole=record.nodes > 1),
        currency=parsed.currency,
        spot=parsed.spot,
    )
