"""This module computes the size of a service from a calibration: the number of replicas, CPUs and memory for
a rate of requests, and the expected 99th percentile of the latency.

A calibration is a short measurement of one replica with a rising number of connections. A replica computes
requests in batches without a timer: while one batch is computed, the next batch fills. With `c` connections
that each send the next request after the answer, a batch has `c` requests, so the time of a batch of `c`
requests is `c` divided by the measured rate. `batch_time` fits a line to these times.
"""

import math
from collections.abc import Sequence

from gridmill.domain.amounts import MIB, Amounts, show_bytes, show_count, show_cpus, show_number
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.serving import Scaling
from gridmill.domain.site import LOCAL
from gridmill.errors import CapacityError

TARGET_SHARE = 0.7
"""The share of the measured largest rate of a replica, and of its CPUs, that a size plans to use."""
MOST_REPLICAS = 64
"""The largest number of replicas of a service."""
LEAST_CPUS = 0.1
"""The smallest number of CPUs of a replica. An idle replica needs about 0.01 CPUs."""
LIMIT_FACTOR, LIMIT_EXTRA_BYTES = 1.5, 64 * MIB
"""The memory limit of a replica is its measured peak times this factor, and at least the peak plus these
bytes. A replica above its limit is replaced."""
CODE_CPUS = 2.0
"""The CPUs of a replica whose model predicts with its own code: one for the replica, and one for the process
of the code."""
FEW_CPUS = 0.6
"""A replica that used fewer CPUs than this at its largest rate waited for something, mostly for CPUs that
other programs used during the measurement."""
CALIBRATION = "calibration"
"""The name of the calibration in the details of the output of the job that measured it."""
_QUANTILE, _QUANTILE_SIGMAS = 0.99, 2.326
"""The quantile of the latency, and the distance of this quantile from the mean of a normal distribution in
standard deviations."""
_STEP_BYTES = 16 * MIB
_CPU_STEPS = 20
"""Numbers of CPUs are multiples of 1 divided by this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """The measurement of one replica with `connections` clients, each of which sends its next request after
    the answer. `mean_seconds` and `p99_seconds` are latencies. `cpu_seconds` is the CPU time of the replica
    per request. A batch had on average `batch_rows` rows, for which the model computed `batch_seconds`."""

    connections: int
    rate_per_second: float
    mean_seconds: float
    p99_seconds: float
    cpu_seconds: float
    batch_rows: float = 1.0
    batch_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The measurement of one replica of the model version `version` on machines of the type `machine`.

    `hardware` is the CPU of the machine on which it was measured. At the site `local`, it is the type of the
    machine. At another site, where the CPU is unknown before, the type is the site with the CPUs of a node.
    `replica_bytes` is the largest resident memory of the replica under load, `parent_bytes` that of the
    parent process, and `start_seconds` the time until the replica was ready. `code_bytes` is the largest
    resident memory of the processes in which the model predicts with its own code (0: it has no code); their
    CPU time is in the points. `created` is a Unix time.
    """

    version: str
    machine: str
    points: tuple[LoadPoint, ...]
    replica_bytes: int
    parent_bytes: int = 0
    start_seconds: float = 0.0
    created: float = 0.0
    hardware: str = ""
    code_bytes: int = 0

    @property
    def name(self) -> str:
        """The key of the calibration."""
        return calibration_name(self.version, self.machine)

    @property
    def most_per_second(self) -> float:
        """The largest measured rate of one replica."""
        return max(point.rate_per_second for point in self.points)

    @property
    def rate_per_replica(self) -> float:
        """The rate of requests that a size plans for one replica."""
        return TARGET_SHARE * self.most_per_second

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of one request, without the saving of batches."""
        return max(point.cpu_seconds for point in self.points)

    @property
    def used_cpus(self) -> float:
        """The CPUs that the replica used at its largest rate."""
        best = max(self.points, key=lambda one: one.rate_per_second)
        return best.rate_per_second * best.cpu_seconds

    @property
    def cpus_per_replica(self) -> float:
        """The CPUs of a replica at its planned rate."""
        return cpus_for(self, self.rate_per_replica, 1)

    @property
    def limit_bytes(self) -> int:
        """The memory limit of a replica."""
        return _limit_of(self.replica_bytes)

    @property
    def code_limit_bytes(self) -> int:
        """The memory that a size plans for the processes of the code of one replica."""
        return _limit_of(self.code_bytes) if self.code_bytes else 0

    @property
    def whole_bytes(self) -> int:
        """The memory that a size plans for one replica and the processes of its code."""
        return self.limit_bytes + self.code_limit_bytes

    @property
    def most_cpus(self) -> float:
        """The largest number of CPUs that one replica can use, because it handles its requests in one
        thread, and its code, if there is one, in another."""
        return CODE_CPUS if self.code_bytes else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSize:
    """The size of a service that serves `version`: `pods` pods, and the CPUs and the memory of all processes
    in one pod for its `replicas` replicas.

    `rate` is the rate of requests for which the size was computed (0: none), and `most_rate` is the rate
    that all pods together can serve. `p99_seconds` is the expected 99th percentile of the latency at `rate`.
    `replica_bytes` is the memory limit of one replica, `code_bytes` the memory of the processes in which its
    model predicts with its own code, and `parent_bytes` the memory of the parent process.
    `memory_bytes` includes one more replica, which an update needs.

    On a rented machine, `machine` is the type of the machine for which the size was computed. `shortage`
    states what the size lacks of the requested one, because the machine is too small; empty if it lacks
    nothing.
    """

    version: str
    replicas: int
    cpus: float
    memory_bytes: int
    replica_bytes: int
    parent_bytes: int = 0
    rate: float = 0.0
    most_rate: float = 0.0
    p99_seconds: float = 0.0
    why: tuple[str, ...] = ()
    code_bytes: int = 0
    pods: int = 1
    machine: str = ""
    shortage: str = ""

    @property
    def amounts(self) -> Amounts:
        """The CPUs and the memory of the service in one pod."""
        return Amounts(cpus=self.cpus, memory_bytes=self.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """The size that a service of `version` would have on machines of the type `machine` at the site `site`.
    While the version is not calibrated, `size` and `calibration` are None, and `run_id` is the run that
    calibrates it. `sharing` has sentences about the CPUs and memory that the services on the resource
    save.

    On a machine that is not rented yet, `later` states that the machine measures the version first. Then
    `size` is an estimate from an earlier measurement on a machine of the same type, or None."""

    version: str
    machine: str
    site: str = LOCAL
    run_id: str = ""
    calibration: Calibration | None = None
    size: ServiceSize | None = None
    sharing: tuple[str, ...] = ()
    later: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTime:
    """The time of a batch of `n` requests: `fixed_seconds` + n x `request_seconds`."""

    fixed_seconds: float
    request_seconds: float

    def of(self, requests: float) -> float:
        """Return the seconds of a batch with this number of requests."""
        return self.fixed_seconds + requests * self.request_seconds


def calibration_name(version: str, machine: str) -> str:
    """Return the key of the calibration of a model version on a type of machine."""
    return f"{version} on {machine}"


def batch_time(calibration: Calibration) -> BatchTime:
    """Return the line through the measured times of batches, by least squares. Neither of its two numbers is
    negative, and the line allows the largest measured rate."""
    pairs = [(float(one.connections), one.connections / one.rate_per_second) for one in calibration.points]
    count = len(pairs)
    mean_x, mean_y = sum(x for x, _ in pairs) / count, sum(y for _, y in pairs) / count
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread if spread else 0.0
    slope = min(max(slope, 0.0), 1.0 / calibration.most_per_second)
    return BatchTime(fixed_seconds=max(0.0, mean_y - slope * mean_x), request_seconds=slope)


def latency_quantile(times: BatchTime, rate: float) -> float:
    """Return the 99th percentile of the latency in seconds of a server that computes Poisson arrivals (`rate`
    per second) in batches without a timer. Returns infinity if the server cannot serve the rate.

    With fixed time `a` and time `b` per request, the time of a cycle has the mean `a / (1 - rate b)`, as in a
    polling system with one queue, gated service and the switchover time `a` (H. Takagi, Analysis of Polling
    Systems, MIT Press 1986, chapter 5). The number of requests in a batch is a Poisson autoregression: its
    mean is `k = rate a / (1 - rate b)` and its variance is `k / (1 - (rate b)^2)` (R. Ferland, A. Latour and
    D. Oraichi, Integer-valued GARCH process, Journal of Time Series Analysis 27, 2006). The latency is the
    rest of the batch that is computed when the request arrives, plus the time of its own batch. Both batches
    are taken at the 99th percentile of their size, by the normal approximation. An arrival finds the server
    busy with the probability `p`, and then waits a uniform part of the batch (T. L. Saaty, Elements of
    Queueing Theory, McGraw-Hill 1961), so that 1 % of all requests wait longer than the part `1 - 0.01 / p`.
    """
    load = rate * times.request_seconds
    if load >= 1.0:
        return math.inf
    mean = rate * times.fixed_seconds / (1.0 - load)
    sigma = math.sqrt(mean / (1.0 - load * load))
    own = times.of(max(1.0, mean + _QUANTILE_SIGMAS * sigma) if mean > 0 else 1.0)
    busy = min(1.0, rate * times.of(max(1.0, mean)))
    rest = max(0.0, 1.0 - (1.0 - _QUANTILE) / busy) if busy else 0.0
    return own * (1.0 + rest) + _single_wait(times.request_seconds, load)


def _single_wait(seconds: float, load: float) -> float:
    """Return the 99th percentile of the wait in an M/D/1 queue: the server is busy with the probability
    `load`, and the wait of a request that waits is nearly exponential with the mean `s / (2 (1 - load))`
    (the heavy-traffic approximation; A. O. Allen, Probability, Statistics and Queueing Theory, 1990, chapter
    5; it is the approximation of Allen and Cunneen for one server, Poisson arrivals and fixed times). All
    requests of a batch are answered at its end, so the wait is longer by the factor `(1 + 2 load) / (1 +
    load)`: half a batch and the whole next batch, instead of half of the next batch."""
    chance = load / (1.0 - _QUANTILE)
    if chance <= 1.0:
        return 0.0
    return seconds / (2.0 * (1.0 - load)) * math.log(chance) * (1.0 + 2.0 * load) / (1.0 + load)


def expected_p99(calibration: Calibration, rate_per_replica: float) -> float:
    """Return the expected 99th percentile of the latency in seconds. It includes the measured difference
    between the 99th percentile and the mean of single requests, which the operating system causes."""
    first = min(calibration.points, key=lambda one: one.connections)
    noise = max(0.0, first.p99_seconds - first.mean_seconds)
    return latency_quantile(batch_time(calibration), rate_per_replica) + noise


def cpus_for(calibration: Calibration, rate: float, replicas: int) -> float:
    """Return the CPUs of a service: the measured CPU time of the requests, divided by `TARGET_SHARE`. Each
    replica gets at least `LEAST_CPUS` and at most the CPUs that it can use."""
    used = min(rate * calibration.cpu_seconds / TARGET_SHARE, replicas * calibration.most_cpus)
    return math.ceil(max(used, replicas * LEAST_CPUS) * _CPU_STEPS - 1e-6) / _CPU_STEPS


def memory_for(replicas: int, replica_bytes: int, parent_bytes: int) -> int:
    """Return the memory of a service in bytes. It includes one more replica, because an update starts the
    first new replica before an old replica ends."""
    return _in_steps((replicas + 1) * replica_bytes + parent_bytes * LIMIT_FACTOR)


def replicas_for(calibration: Calibration, rate: float) -> int:
    """Return the smallest number of replicas that serve this rate."""
    return max(1, math.ceil(rate / calibration.rate_per_replica - 1e-9))


def fits(calibration: Calibration, rate: float, room: Amounts) -> bool:
    """Return whether a service for this rate fits into the room."""
    replicas = replicas_for(calibration, rate)
    return replicas <= MOST_REPLICAS and amounts_for(calibration, rate, replicas).fits_in(room)


def most_rate(calibration: Calibration, room: Amounts) -> float:
    """Return the largest whole rate per second that a service in this room can serve; 0 if none."""
    low, high = 0, math.floor(MOST_REPLICAS * calibration.rate_per_replica)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(calibration, middle, room) else (low, middle - 1)
    return float(low) if fits(calibration, low, room) else 0.0


def most_replicas(calibration: Calibration, room: Amounts) -> int:
    """Return the largest number of replicas at their planned rate that fit into the room."""

    def holds(number: int) -> bool:
        return amounts_for(calibration, number * calibration.rate_per_replica, number).fits_in(room)

    return next((number for number in range(MOST_REPLICAS, 0, -1) if holds(number)), 0)


def size_for_rate(calibration: Calibration, rate: float, pods: int = 1) -> ServiceSize:
    """Return the size of a service for this rate of requests in this number of pods, with the fewest
    replicas."""
    part = rate / pods
    return _sized(calibration, rate, replicas_for(calibration, part), part, pods)


def size_for_count(
    calibration: Calibration, rate: float, replicas: int, room: Amounts, where: str, pods: int = 1
) -> ServiceSize:
    """Return the size of a service with this number of replicas in each of its pods for this rate. `room` has
    the CPUs and memory that are left for each pod at `where`. Raises CapacityError if they cannot serve the
    rate, or do not fit."""
    _check_rate(calibration, rate, replicas, pods)
    if not amounts_for(calibration, rate / pods, replicas).fits_in(room):
        raise _no_room(calibration, replicas, room, where)
    return _sized(calibration, rate, replicas, rate / pods, pods)


def size_for_range(
    calibration: Calibration, rate: float, most: int, room: Amounts, where: str, pods: int = 1
) -> ServiceSize:
    """Return the size of a service that may have up to `most` replicas in each of its pods, each at its
    planned rate. Raises CapacityError if so many do not fit, or if they cannot serve `rate`."""
    _check_rate(calibration, rate, most, pods)
    whole = most * calibration.rate_per_replica
    if not amounts_for(calibration, whole, most).fits_in(room):
        raise _no_room(calibration, most, room, where)
    return _sized(calibration, rate, most, whole, pods)


def with_pods(size: ServiceSize, pods: int) -> ServiceSize:
    """Return the size with another number of pods, each as large as before."""
    return replace(size, pods=pods, most_rate=math.floor(size.most_rate / size.pods * pods))


def _check_rate(calibration: Calibration, rate: float, replicas: int, pods: int) -> None:
    whole = pods * replicas * calibration.rate_per_replica
    if rate > whole:
        each = f" in each of {pods} pods" if pods > 1 else ""
        raise CapacityError(
            f"{show_count(replicas, 'replica')} of {calibration.version}{each} can serve "
            f"{show_number(math.floor(whole))} requests/s, not {show_number(rate)}",
            hint=f"Allow more replicas: --replicas 1..{replicas_for(calibration, rate / pods)}",
            place="replicas",
        )


def _no_room(calibration: Calibration, replicas: int, room: Amounts, where: str) -> CapacityError:
    return CapacityError(
        f"{where} has no room for {show_count(replicas, 'replica')} of {calibration.version} under load; it "
        f"has room for {most_replicas(calibration, room)}",
        hint=f"It has {show_cpus(room.cpus)} and {show_bytes(room.memory_bytes)} for them; each "
        f"replica needs {show_cpus(calibration.cpus_per_replica)} and "
        f"{show_bytes(calibration.whole_bytes)}. Request fewer replicas, or stop other services of "
        "the resource.",
        place="replicas",
    )


def scaling_of(calibration: Calibration, least: int, most: int) -> Scaling:
    """Return the terms by which the parent process changes the number of replicas."""
    usual = expected_p99(calibration, calibration.rate_per_replica)
    return Scaling(
        least=least,
        most=most,
        rate_per_replica=calibration.rate_per_replica,
        slow_seconds=max(3.0 * usual, usual + 0.05),
    )


def _sized(calibration: Calibration, rate: float, replicas: int, planned: float, pods: int) -> ServiceSize:
    """Return the size of a service for `rate`. `planned` is the rate of one pod for which it has CPUs."""
    amounts = amounts_for(calibration, planned, replicas)
    p99 = expected_p99(calibration, rate / pods / replicas) if rate else 0.0
    return ServiceSize(
        version=calibration.version,
        replicas=replicas,
        cpus=amounts.cpus,
        memory_bytes=amounts.memory_bytes,
        replica_bytes=calibration.limit_bytes,
        code_bytes=calibration.code_limit_bytes,
        parent_bytes=calibration.parent_bytes,
        rate=rate,
        most_rate=math.floor(pods * replicas * calibration.rate_per_replica),
        p99_seconds=p99,
        why=tuple(_why(calibration, rate, replicas, p99)),
        pods=pods,
    )


def _why(calibration: Calibration, rate: float, replicas: int, p99: float) -> list[str]:
    best = max(calibration.points, key=lambda one: one.rate_per_second)
    lines = [
        f"{show_count(replicas, 'replica')}: one replica served {best.rate_per_second:,.0f} requests/s with "
        f"{show_count(best.connections, 'connection')}, of which {TARGET_SHARE:.0%} are planned",
        f"CPUs: one request took {show_latency(calibration.cpu_seconds)} of CPU time",
        f"memory: a replica used {show_bytes(calibration.replica_bytes)}, its limit is "
        f"{show_bytes(calibration.limit_bytes)}, and an update needs one replica more",
    ]
    if calibration.code_bytes:
        lines.append(
            f"code: its process used {show_bytes(calibration.code_bytes)}; "
            f"{show_bytes(calibration.code_limit_bytes)} are planned beside each replica"
        )
    if calibration.used_cpus < FEW_CPUS:
        lines.append(
            f"the replica used only {calibration.used_cpus:.2g} CPUs at its largest rate; if other programs "
            "used the machine, measure again with --measure-again"
        )
    if rate:
        times = batch_time(calibration)
        lines.append(
            f"p99 {show_latency(p99)}: a batch takes {show_latency(times.fixed_seconds)} and "
            f"{show_latency(times.request_seconds)} for each request"
        )
    return lines


def amounts_for(calibration: Calibration, rate: float, replicas: int) -> Amounts:
    """Return the CPUs and the memory of a service with this number of replicas for this rate."""
    return Amounts(
        cpus=cpus_for(calibration, rate, replicas),
        memory_bytes=memory_for(replicas, calibration.whole_bytes, calibration.parent_bytes),
    )


def show_latency(seconds: float) -> str:
    """Format a latency with three digits, such as `0.35 ms` or `1.2 s`."""
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _limit_of(peak_bytes: int) -> int:
    return _in_steps(max(peak_bytes * LIMIT_FACTOR, peak_bytes + LIMIT_EXTRA_BYTES))


def _in_steps(size: float) -> int:
    return -int(-size // _STEP_BYTES) * _STEP_BYTES


def sharing_lines(where: str, sizes: Sequence[ServiceSize], replica_bytes: int) -> tuple[str, ...]:
    """Return a sentence about the CPUs and the memory that services on one resource save, because their CPUs
    and memory were measured. Without a measurement, each replica gets one CPU, and each service has
    `replica_bytes` for each replica and for one more. The result is empty if nothing is saved."""
    if not sizes:
        return ()
    cpus, memory = sum(one.cpus for one in sizes), sum(one.memory_bytes for one in sizes)
    whole_cpus = float(sum(one.replicas for one in sizes))
    whole_memory = sum((one.replicas + 1) * replica_bytes for one in sizes)
    saved = [show_cpus(whole_cpus - cpus)] if whole_cpus - cpus >= 0.05 else []
    saved += [show_bytes(whole_memory - memory)] if whole_memory - memory >= MIB else []
    if not saved:
        return ()
    return (
        f"{show_count(len(sizes), 'service')} on {where}: {show_cpus(cpus)} and {show_bytes(memory)} "
        f"by measurement, in the same pods; saves {' and '.join(saved)} compared with one CPU and "
        f"{show_bytes(replica_bytes)} for each replica",
    )
