"""What is said of a farm in a line."""

from gridmill.cli.farm_status import farm_line, gpu_slot_texts, transfers_text
from gridmill.cli.sites import _gpu_texts
from gridmill.domain.amounts import GIB, MIB, Amounts
from gridmill.domain.farm_protocol import FarmStatus, QueuedDeployment
from gridmill.domain.route import AttemptTransfers, Route, Transfer, TransferRate
from gridmill.domain.site import Gpu, GpuSlot, Node, NodeUtilization
from gridmill.domain.views import FarmView

SEATS = (GpuSlot(gpu=0, taken=True, deployment="trainer-1"), GpuSlot(gpu=1), GpuSlot(gpu=2, taken=True))
SEEN = NodeUtilization(busy_cpus=3.6, owner_cpus=0.0, used_bytes=0, seats=SEATS)
LOOK = FarmStatus(
    version="0.1.0",
    protocol=1,
    root="/r",
    nodes=(Node(name="g", capacity=Amounts(cpus=32.0, memory_bytes=64 * GIB, gpus=3)),),
    utilization={"g": SEEN},
    waiting=2,
    queue=(
        QueuedDeployment(deployment="trainer-2", position=1, seconds=600.0),
        QueuedDeployment(deployment="trainer-3", position=0, seconds=20.0),
        QueuedDeployment(deployment="trainer-4", position=4),
    ),
    staged_bytes=GIB,
    quota_bytes=100 * GIB,
    disk_free_bytes=300 * GIB,
    warnings=("a result was lost",),
)
WAY = Route(
    upload=TransferRate(transferred_bytes=80.0 * MIB, seconds=1.0, transfers=2),
    download=TransferRate(transferred_bytes=92.0 * MIB, seconds=1.0),
    round_trip_seconds=0.002,
)


def test_a_farm_that_answers_says_what_it_has() -> None:
    assert farm_line(FarmView(site="gpu-farm", status=LOOK, route=WAY)) == (
        "gpu-farm: 1 of 3 GPUs free; 4 of 32 CPUs busy; 2 deployments waiting "
        "(trainer-2 behind 1: about 10 min, trainer-3 next: less than a minute, trainer-4 behind 4); "
        "1 GiB of 100 GiB staged, 300 GiB free on disk; version 0.1.0; a result was lost; "
        "upload 80 MiB/s, download 92 MiB/s (probe), round trip 2 ms"
    )


def test_one_that_does_not_says_so_and_what_is_known() -> None:
    told = farm_line(FarmView(site="gpu-farm", problem="it does not answer"))
    assert told == "gpu-farm: it does not answer; transfer rates are not measured yet"


def test_gpus_are_shown_by_number_with_what_their_driver_says() -> None:
    assert _gpu_texts(SEEN) == ["0 trainer-1", "1 free", "2 taken"]
    gpu = Gpu(model="H100", memory_bytes=80 * GIB, used_bytes=12 * GIB, busy=0.5)
    both = NodeUtilization(busy_cpus=0.0, owner_cpus=0.0, used_bytes=0, gpus=(gpu,), seats=SEATS[:1])
    shared = [
        GpuSlot(gpu=0, taken=True, deployment="a-1"),
        *[GpuSlot(gpu=0)] * 3,
        *[GpuSlot(gpu=1, taken=True)] * 4,
    ]
    assert gpu_slot_texts(shared) == ["0 a-1, 3 x free", "1 4 x taken"]
    assert _gpu_texts(both) == ["0 trainer-1 (H100 12/80 GiB)"]


def test_what_was_carried_for_an_attempt_is_said() -> None:
    there = Transfer(transferred_bytes=75 * MIB, reused_bytes=25 * MIB, seconds=7.5)
    back = Transfer(transferred_bytes=MIB, seconds=0.5)
    told = transfers_text(AttemptTransfers(upload=there, download=back))
    assert told == "75 MiB uploaded in 7.5 s (25% present already), 1 MiB downloaded in 500 ms"
    assert transfers_text(AttemptTransfers()) == "0 B uploaded, 0 B downloaded"
