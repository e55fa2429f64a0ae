"""The GPU memory of a model's code: its measurement, its share, and what happens above the share. A program
`nvidia-smi` simulates the GPUs."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.kit.gpus import SimulatedGpus
from tests.kit.served_models import code_model
from tests.kit.services import wait_for
from tests.unit.serving.test_code_model import trusted

from gridmill.domain.amounts import GIB, MIB, POD_GPU_SHARES
from gridmill.errors import JobError
from gridmill.serving.code_model import CodeModel
from gridmill.serving.gpu_memory import (
    GpuMemory,
    GpuShare,
    gpu_sizes,
    gpus_of_replica,
    read_processes,
    share_bytes,
    take_share,
)
from gridmill.serving.served_model import load_version


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedGpus:
    made = SimulatedGpus(tmp_path / "gpus", processes_with=str(tmp_path / "m"))
    monkeypatch.setenv("PATH", f"{made.folder}{os.pathsep}{os.environ['PATH']}")
    return made


def test_the_memory_of_a_process_on_all_gpus_is_added() -> None:
    lines = "12, 300\n13, [N/A]\n12, 200\n14, 5\nNo running processes found\n"
    assert dict(read_processes(lines)) == {12: 500 * MIB, 14: 5 * MIB}


@pytest.mark.parametrize(
    "words",
    ["[N/A]", "[Insufficient Permissions]", "[Unknown Error]", "[GPU is lost]", "[Not Supported]", "N/A", ""],
)
def test_memory_that_the_driver_does_not_report_is_not_measured(words: str) -> None:
    assert dict(read_processes(f"12, {words}\n13, 7")) == {13: 7 * MIB}


@pytest.mark.parametrize("text", ["[N/A]\n16384", "No devices were found", "NVIDIA-SMI has failed 1234", ""])
def test_a_machine_that_does_not_report_all_its_gpus_has_no_share(gpus: SimulatedGpus, text: str) -> None:
    gpus.print_sizes(text)
    assert share_bytes("0,1", "", 1) is None


def test_a_gpu_in_mig_mode_has_no_share(gpus: SimulatedGpus) -> None:
    assert gpu_sizes("0,1") == [16 * GIB, 16 * GIB]
    gpus.print_mig_modes("Disabled\nEnabled\n")
    assert gpu_sizes("0,1") == []
    gpus.print_mig_modes("[N/A]\n[N/A]\n")
    assert gpu_sizes("0,1") == [16 * GIB, 16 * GIB]
    assert gpu_sizes("MIG-7a0f3c1e-0000-5555-aaaa-3f0f2b6d1c9e") == []


@pytest.mark.parametrize(("shares", "is_shared"), [("24", True), ("1", False)])
def test_a_replica_on_a_shared_gpu_may_use_a_quarter_more_than_was_measured(
    tmp_path: Path, gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch, shares: str, is_shared: bool
) -> None:
    for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH"):
        monkeypatch.setenv(name, "before")  # so that its value before the test is restored
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv(POD_GPU_SHARES, shares)
    taken = take_share(trusted(tmp_path / "m", replicas=2), 0)
    assert taken is not None
    assert (taken.share_bytes, taken.gpu_bytes, taken.is_shared) == (8 * GIB, 16 * GIB, is_shared)
    assert taken.limit_after(4 * GIB) == (5 if is_shared else 8) * GIB
    assert taken.limit_after(7 * GIB) == 8 * GIB
    assert ("XLA_PYTHON_CLIENT_PREALLOCATE" in os.environ) == is_shared
    ordered = take_share(trusted(tmp_path / "m", replicas=2, gpu_memory_bytes=3 * GIB), 0)
    assert ordered is not None
    assert ordered.share_bytes == 3 * GIB


@pytest.mark.parametrize(
    ("visible", "share", "replicas", "expected"),
    [
        ("", "", 2, None),
        ("0", "", 1, 24 * GIB),
        ("0,1", "", 1, 40 * GIB),
        ("0,1", "", 2, 16 * GIB),
        ("0,1", "", 4, 8 * GIB),
        ("0", "0.25", 2, 3 * GIB),
    ],
)
def test_replicas_on_a_gpu_divide_the_share_of_their_service(
    gpus: SimulatedGpus, visible: str, share: str, replicas: int, expected: int | None
) -> None:
    gpus.have(24 * GIB, 16 * GIB)
    assert share_bytes(visible, share, replicas) == expected


def test_several_replicas_are_divided_among_the_gpus() -> None:
    assert [gpus_of_replica("4,7", number, 3) for number in range(3)] == ["4", "7", "4"]
    assert gpus_of_replica("4,7", 1, 1) == "4,7"
    assert gpus_of_replica("", 1, 2) == ""


def test_a_machine_whose_gpus_are_not_known_has_no_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    order = trusted(tmp_path / "m", replicas=2)
    assert take_share(order, 1) is None
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.fixture
def share() -> GpuShare:
    return GpuShare(share_bytes=2 * GIB, max_batch=64, memory=GpuMemory(look_seconds=0.0))


@pytest.fixture
def model(tmp_path: Path, gpus: SimulatedGpus, share: GpuShare) -> Iterator[CodeModel]:
    gpus.use(1000 * MIB)
    (version,) = trusted(code_model(tmp_path / "m")).versions
    loaded = load_version(version, "1", 1, gpu=share)
    assert loaded.gpu_bytes == 1000 * MIB
    assert isinstance(loaded.predictor, CodeModel)
    yield loaded.predictor
    loaded.close()


def test_a_process_above_its_share_is_replaced_and_its_prediction_is_answered(
    model: CodeModel, gpus: SimulatedGpus
) -> None:
    pid = model.pid
    assert pid is not None
    gpus.use(3 * GIB)

    def is_replaced() -> bool:
        assert model.predict(np.array([[1.0, 2.0]])).tolist() == [21.0]
        return model.pid != pid

    wait_for("another process", is_replaced)  # the measurement runs beside the predictions
    assert not os.path.exists(f"/proc/{pid}")
    gpus.use(1 * GIB)
    assert model.predict(np.array([[1.0, 2.0]])).tolist() == [21.0]


def test_a_model_above_its_share_from_the_start_is_not_loaded(
    tmp_path: Path, gpus: SimulatedGpus, share: GpuShare
) -> None:
    gpus.use(3 * GIB)
    (version,) = trusted(code_model(tmp_path / "m")).versions
    with pytest.raises(JobError, match=r"uses 3 GiB of GPU memory; its share is 2 GiB") as refused:
        load_version(version, "1", 1, gpu=share)
    assert "--max-batch" in refused.value.hint
