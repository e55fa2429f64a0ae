"""This module decides into how many parts a job that can run on several machines is divided, and the size of
each part."""

from collections.abc import Callable

from gridmill.domain.amounts import MIB, Amounts, show_count
from gridmill.domain.dataset import BUCKET_ROWS, DatasetSpec
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import Job, JobSize
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.sink import SinkSpec
from gridmill.domain.site import Site
from gridmill.scheduler.bottleneck import entity_of
from gridmill.scheduler.feasibility import gpus_of

Size = Callable[..., Sizing]
"""A function that returns the size of one attempt of a job. If `parts` is set, the function returns the size
of the attempt of one part."""
PART_BYTES = 256 * MIB
"""The bytes of a sink's source files for each part, if the number of parts is not declared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSizes:
    """The number of parts of a job and the size of each part. `whole` is the size of the attempt that
    combines the results of the parts."""

    count: int
    part: Sizing
    whole: Sizing


def cut_job(job: Job, job_size: JobSize, resource: Resource, site: Site, size: Size) -> PartSizes | None:
    """Return the parts of a job. The result is None if the job runs as a whole. The parts of a job are the
    same on every site that has the same number of machines."""
    if job.dataset is None and job.sink is None and job.prediction is None:
        return None
    pods = pods_of(resource, site, size(job, parts=max(1, site.machine_count)).amounts.memory_bytes)
    if pods < 2:
        return None
    if job.dataset is not None:
        return _cut_dataset(job, job.dataset, job_size.rows, pods, size)
    if job.sink is not None:
        return _cut_sink(job, job.sink, job_size.input_bytes, pods, size)
    return _cut_swarm(job, pods, replace(site.largest, cpus=_cpus(resource, site, pods)), size)


def parts_line(job: Job, job_size: JobSize, resource: Resource, site: Site, size: Size) -> str:
    """Return a sentence about the parts of a job. The result is empty if the job runs as a whole."""
    if job.each is not None:
        node_count = sum(map(job.each.matches, site.nodes))
        if not node_count:
            return f"no node of site {site.name} matches `each`"
        return f"once on each of {show_count(node_count, 'node')} of site {site.name}"
    part_sizes = cut_job(job, job_size, resource, site, size)
    return part_sizes.whole.why[-1] if part_sizes is not None else ""


def pods_of(resource: Resource, site: Site, memory_bytes: int = 0) -> int:
    """Return the number of pods that the resource may have, for a job that takes this much memory in each
    pod. The result is the declared number, otherwise one pod for every node that is large enough."""
    if resource.workers is not None:
        return resource.workers
    amounts = Amounts(
        cpus=resource.cpus or 0.0,
        memory_bytes=resource.memory_bytes or memory_bytes,
        gpus=gpus_of(resource),
    )
    return min(site.machine_count, sum(amounts.fits_in(node.capacity) for node in site.nodes))


def _cpus(resource: Resource, site: Site, pods: int) -> float:
    """Return the number of CPUs of one pod."""
    per_node = -(-pods // max(1, site.machine_count))
    return max(1.0, resource.cpus or site.largest.cpus // per_node)


def _cut_dataset(job: Job, spec: DatasetSpec, rows: int | None, pods: int, size: Size) -> PartSizes | None:
    """Divide a dataset into parts by its buckets. All rows of an entity are in the same bucket."""
    buckets = (spec.buckets or -(-(rows or 0) // BUCKET_ROWS)) if entity_of(spec) else 1
    count = min(pods, buckets)
    if count < 2:
        return None
    whole = size(job, parts=count)
    why = f"in {show_count(count, 'part')}, each on a pod of its own with some of {buckets} buckets"
    return PartSizes(count=count, part=whole, whole=replace(whole, why=(*whole.why, why)))


def _cut_sink(job: Job, spec: SinkSpec, input_bytes: int | None, pods: int, size: Size) -> PartSizes | None:
    """Divide a sink into parts by its source files. Only the job can find out which files are new, so a part
    may have no work."""
    if not spec.source.splits:
        return None
    count = min(pods, spec.parts or -(-(input_bytes or 0) // PART_BYTES))
    if count < 2:
        return None
    whole = size(job, parts=count)
    why = f"in {show_count(count, 'part')}, each on a pod of its own with some of the files"
    return PartSizes(count=count, part=whole, whole=replace(whole, why=(*whole.why, why)))


def _cut_swarm(job: Job, pods: int, pod: Amounts, size: Size) -> PartSizes | None:
    """Divide a prediction into parts by its workers. Each part has as many workers as its `pod` has CPUs.
    The job has only as many parts as are needed for its number of workers."""
    spec = job.prediction
    assert spec is not None
    swarm = size(job, largest=pod, pods=pods)
    count = min(pods, -(-swarm.workers // int(pod.cpus)), spec.shards or swarm.workers)
    if count < 2:
        return None
    each = -(-swarm.workers // count)
    sizings = (size(replace(job, prediction=replace(spec, workers=n)), parts=count) for n in (each, 1))
    part, whole = (replace(sizing, expected_seconds=swarm.expected_seconds) for sizing in sizings)
    why = f"in {show_count(count, 'part')}, each on a pod of its own with {show_count(each, 'worker')}"
    return PartSizes(
        count=count, part=replace(part, workers=each), whole=replace(whole, why=(*whole.why, why))
    )
