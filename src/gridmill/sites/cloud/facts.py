"""Checks a rented machine before a job uses it: pure functions on the output of one shell script that runs
on the machine."""

import re
from collections.abc import Iterator

from gridmill.domain.amounts import KIB, MIB, show_bytes, show_cpus
from gridmill.domain.frozen import dataclass

INSTALLED = """import sys
from importlib.metadata import PackageNotFoundError, distribution
from gridmill.version import __version__
print("gridmill=" + __version__)
def lacks(name):
    try:
        distribution(name)
    except PackageNotFoundError:
        return True
try:
    from packaging.requirements import Requirement
    wanted = [Requirement(text) for text in distribution("gridmill").requires or ()]
except (ImportError, PackageNotFoundError):
    sys.exit()
contexts = [{"extra": extra} for extra in sys.argv[1].split(",")] + [{"extra": ""}]
names = {one.name for one in wanted if not one.marker or any(map(one.marker.evaluate, contexts))}
lacking = sorted(filter(lacks, names))
if lacking:
    print("lacking=" + " ".join(lacking))
"""
"""The program with which a Python prints the version of its Gridmill, and the packages that it lacks for the
extras in its argument. It prints nothing if it has no Gridmill. The packages of a Gridmill that was not
installed by pip are unknown."""
PROBE = r"""
say() { printf '%s=%s\n' "$1" "$2"; }
say cpus "$(nproc)"
say memory_kib "$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)"
say disk_kib "$(df -Pk /var/lib | awk 'NR == 2 { print $4 }')"
say watch "$(cat "$RUN/state" 2>/dev/null)"
mkdir -p "$RUN"; say contact "$MARK"; echo "$MARK" > "$RUN/contact"
"$PYTHON" -P - "$EXTRAS" 2>/dev/null <<'GRIDMILL-END'
PROGRAM
GRIDMILL-END
[ -e "$CACHED/done" ] && say cached "$CACHED"
for one in podman docker; do command -v "$one" > /dev/null && say containers "$one"; done
for one in /etc/cdi/nvidia* /var/run/cdi/nvidia*; do [ -e "$one" ] && say toolkit podman && break; done
command -v nvidia-ctk > /dev/null && say toolkit docker
if command -v nvidia-smi > /dev/null; then
    say smi yes
    timeout 60 nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits 2>&1 |
        sed 's/^/gpu=/'
fi
dmesg 2>/dev/null | sed -n 's/.*NVRM: Xid ([^)]*): \([0-9]*\).*/xid=\1/p' | sort -u
exit 0
""".replace("PROGRAM\n", INSTALLED)
"""The script that looks at a machine. Its variables are RUN, MARK, PYTHON, EXTRAS and CACHED."""
_FATAL_XIDS = {
    48: "a memory error that cannot be corrected",
    62: "its internal processor has stopped",
    64: "a memory row that cannot be replaced",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    92: "too many memory errors",
    95: "an uncontained memory error",
    119: "its system processor does not answer",
    120: "an error of its system processor",
}
"""The Xid errors in the kernel log that mean defective hardware. NVIDIA, "XID Errors". Other Xid errors may
be caused by programs."""
_GPU = re.compile(r"(?P<model>.+), (?P<mib>\d+), (?P<driver>[0-9.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """A GPU of the machine, as its driver reports it."""

    model: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The result of the check of a machine. `gridmill` is the version of Gridmill in the Python of the image;
    empty if there is none. `lacking` are the packages that it lacks for the extras of the site. `cached` is
    the folder in which this version of Gridmill was installed earlier. `smi_error` is the message of
    `nvidia-smi` if it fails. `runtimes` are the runtimes of containers, the one that jobs use first, and
    `gpu_runtimes` those that can give GPUs to containers."""

    cpus: int
    memory_bytes: int
    disk_bytes: int
    is_watched: bool
    gridmill: str = ""
    lacking: tuple[str, ...] = ()
    cached: str = ""
    has_smi: bool = False
    gpus: tuple[GpuFacts, ...] = ()
    smi_error: str = ""
    xids: tuple[int, ...] = ()
    runtimes: tuple[str, ...] = ()
    gpu_runtimes: tuple[str, ...] = ()

    @property
    def driver(self) -> str:
        """Returns the version of the GPU driver; empty if there is none."""
        return self.gpus[0].driver if self.gpus else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the machine must have. `least_driver` is the least version of the GPU driver. With
    `needs_container`, jobs run in containers on it."""

    cpus: float
    memory_bytes: int
    gpus: int
    gpu_memory_bytes: int = 0
    least_driver: str = ""
    disk_bytes: int = 0
    needs_container: bool = False


def read_facts(text: str) -> Facts:
    """Parses the output of the script."""
    pairs = [(name, value) for name, _, value in (line.partition("=") for line in text.splitlines())]
    values = dict(pairs)
    rows = [value for name, value in pairs if name == "gpu"]
    found = [_GPU.fullmatch(row.strip()) for row in rows]
    return Facts(
        cpus=_number(values.get("cpus")),
        memory_bytes=_number(values.get("memory_kib")) * KIB,
        disk_bytes=_number(values.get("disk_kib")) * KIB,
        is_watched=bool(values.get("watch")),
        gridmill=values.get("gridmill", ""),
        lacking=tuple(values.get("lacking", "").split()),
        cached=values.get("cached", ""),
        has_smi="smi" in values,
        gpus=tuple(
            GpuFacts(model=one["model"], memory_bytes=int(one["mib"]) * MIB, driver=one["driver"])
            for one in found
            if one is not None
        ),
        smi_error=" ".join(row for row, match in zip(rows, found, strict=True) if match is None)[:300],
        xids=tuple(sorted(_number(value) for name, value in pairs if name == "xid")),
        runtimes=tuple(value for name, value in pairs if name == "containers"),
        gpu_runtimes=tuple(value for name, value in pairs if name == "toolkit"),
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def misfit(facts: Facts, promise: Promise) -> str:
    """Returns why the image of a machine does not fit its jobs, so that another machine with this image would
    not fit either; empty if it fits."""
    if not promise.needs_container:
        return ""
    if not facts.runtimes:
        return "a job runs in a container, but the machine has neither podman nor docker"
    if promise.gpus and facts.runtimes[0] not in facts.gpu_runtimes:
        return (
            f"a job runs in a container with GPUs, but {facts.runtimes[0]} of the machine cannot give GPUs "
            "to containers: the NVIDIA Container Toolkit is missing or not configured"
        )
    return ""


def faults(facts: Facts, promise: Promise) -> tuple[str, ...]:
    """Returns the reasons why the machine must be replaced; empty if the machine is as promised."""
    return tuple(_faults(facts, promise))


def _faults(facts: Facts, promise: Promise) -> Iterator[str]:
    if facts.cpus < promise.cpus:
        yield f"it has {show_cpus(facts.cpus)}, and {promise.cpus:g} are needed"
    if facts.memory_bytes < promise.memory_bytes:
        needed = show_bytes(promise.memory_bytes)
        yield f"it has {show_bytes(facts.memory_bytes)} of memory, and {needed} are needed"
    if facts.disk_bytes < promise.disk_bytes:
        free, needed = show_bytes(facts.disk_bytes), show_bytes(promise.disk_bytes)
        yield f"{free} of its disk are free, and {needed} are needed"
    if promise.gpus:
        yield from _gpu_faults(facts, promise)


def _gpu_faults(facts: Facts, promise: Promise) -> Iterator[str]:
    if not facts.has_smi:
        yield "nvidia-smi is missing, so that its image has no GPU driver"
    elif len(facts.gpus) < promise.gpus:
        why = f": nvidia-smi prints {facts.smi_error!r}" if facts.smi_error else ""
        yield f"it has {len(facts.gpus)} working GPUs, and {promise.gpus} were promised{why}"
    for gpu in facts.gpus:
        if gpu.memory_bytes < promise.gpu_memory_bytes * _NOMINAL:
            needed = show_bytes(promise.gpu_memory_bytes)
            yield f"its GPU {gpu.model} has {show_bytes(gpu.memory_bytes)} of memory, and {needed} are needed"
    if facts.driver and _version(facts.driver) < _version(promise.least_driver):
        yield f"its GPU driver has version {facts.driver}, and at least {promise.least_driver} is needed"
    for number in facts.xids:
        if number in _FATAL_XIDS:
            yield f"its kernel reports Xid {number} of a GPU: {_FATAL_XIDS[number]}"


_NOMINAL = 0.9
"""The driver reports less memory than the nominal size, because it reserves a part (22.5 of 24 GiB for the
A10G)."""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
