import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.domain.amounts import GIB
from gridmill.sites.cloud.facts import PROBE, Facts, Promise, faults, misfit, read_facts
from gridmill.sites.cloud.install import with_variables
from gridmill.version import __version__

GPU = "gpu=NVIDIA A10G, 23028, 550.54.15\n"
HEALTHY = (
    "cpus=8\nmemory_kib=33554432\ndisk_kib=104857600\nwatch=used=7 silent=1 working=0\ncontact=ab\n"
    "gridmill=0.1.0\ncached=/opt/gridmill-x\nsmi=yes\n"
)
PROMISE = Promise(cpus=8, memory_bytes=30 * GIB, gpus=2, gpu_memory_bytes=24 * 10**9, least_driver="525")


def test_the_output_of_the_script_is_read():
    facts = read_facts(f"{HEALTHY}{GPU}{GPU}xid=31\n")
    assert (facts.cpus, facts.memory_bytes, facts.disk_bytes) == (8, 32 * GIB, 100 * GIB)
    assert facts.gridmill == "0.1.0"
    assert (facts.cached, facts.is_watched, facts.has_smi) == ("/opt/gridmill-x", True, True)
    assert [gpu.model for gpu in facts.gpus] == ["NVIDIA A10G"] * 2
    assert facts.driver == "550.54.15"
    assert faults(facts, PROMISE) == (), "Xid 31 is an error of a program"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (HEALTHY + GPU, "it has 1 working GPUs, and 2 were promised"),
        (HEALTHY.replace("smi=yes\n", ""), "nvidia-smi is missing"),
        (
            HEALTHY + GPU + "gpu=Unable to determine the device handle for GPU1: Unknown Error\n",
            "device handle",
        ),
        (HEALTHY + GPU * 2 + "xid=79\n", "Xid 79 of a GPU: it has fallen off the bus"),
        (HEALTHY + GPU * 2 + "xid=48\nxid=31\n", "Xid 48"),
        (HEALTHY + GPU.replace("550.54.15", "470.82") * 2, "version 470.82, and at least 525"),
        (HEALTHY + GPU.replace("23028", "15360") * 2, "15 GiB of memory"),
        (HEALTHY.replace("cpus=8", "cpus=4") + GPU * 2, "it has 4 CPUs, and 8 are needed"),
        (HEALTHY.replace("33554432", "8388608") + GPU * 2, "8 GiB of memory"),
        ("", "it has 0 CPUs"),
    ],
)
def test_a_defective_machine_is_found_with_its_reason(text, fault):
    assert fault in "; ".join(faults(read_facts(text), PROMISE))


def test_a_machine_without_promised_gpus_needs_no_driver():
    facts = read_facts("cpus=2\nmemory_kib=4194304\n")
    assert faults(facts, Promise(cpus=2, memory_bytes=GIB, gpus=0)) == ()


@pytest.mark.parametrize(
    ("text", "gpus", "why"),
    [
        ("", 0, "neither podman nor docker"),
        ("containers=docker\n", 0, ""),
        (
            "containers=podman\ncontainers=docker\ntoolkit=docker\n",
            1,
            "podman of the machine cannot give GPUs",
        ),
        ("containers=podman\ntoolkit=podman\n", 1, ""),
    ],
)
def test_a_machine_for_jobs_in_containers_needs_a_runtime(text: str, gpus: int, why: str):
    promise = Promise(cpus=2, memory_bytes=GIB, gpus=gpus, needs_container=True)
    said = misfit(read_facts(text), promise)
    assert why in said
    assert bool(why) == bool(said)
    assert misfit(read_facts(text), replace(promise, needs_container=False)) == ""


@pytest.mark.parametrize("folder", ["etc/cdi", "var/run/cdi"])
def test_one_description_of_the_gpus_is_sufficient_for_podman(tmp_path: Path, folder: str):
    (tmp_path / folder).mkdir(parents=True)
    for name in ("nvidia.yaml", "nvidia-2.yaml"):
        (tmp_path / folder / name).touch()
    script = PROBE.replace("/etc/cdi", "etc/cdi").replace("/var/run/cdi", "var/run/cdi")
    script = with_variables(script, RUN=tmp_path / "run", MARK="m1", PYTHON="python", CACHED=tmp_path)
    done = subprocess.run(
        ["sh", "-s"], input=script, text=True, capture_output=True, check=True, cwd=tmp_path
    )
    assert read_facts(done.stdout).gpu_runtimes.count("podman") == 1


def test_the_script_runs_here(tmp_path: Path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA A10G, 23028, 550.54.15'\n")
    smi.chmod(0o755)
    python = tmp_path / "späces here" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\nexec '{sys.executable}' \"$@\"\n")
    python.chmod(0o755)
    script = with_variables(PROBE, RUN=tmp_path / "run", MARK="m1", PYTHON=python, CACHED=tmp_path)
    done = subprocess.run(
        ["sh", "-s"],
        input=script,
        text=True,
        capture_output=True,
        check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    facts: Facts = read_facts(done.stdout)
    assert facts.cpus > 0
    assert facts.memory_bytes > 0
    assert facts.disk_bytes > 0
    assert len(facts.gpus) == 1
    assert (facts.is_watched, facts.gridmill, facts.cached) == (False, __version__, "")
    assert (tmp_path / "run" / "contact").read_text() == "m1\n", "the check is a contact"


@pytest.mark.parametrize(("extras", "lacking"), [("", ()), ("tls,data", ("absent-one", "absent-two"))])
def test_an_image_without_the_packages_of_an_extra_lacks_them(
    tmp_path: Path, extras: str, lacking: tuple[str, ...]
) -> None:
    packages = tmp_path / "packages"
    needs = ("msgspec", *(f"{one} ; extra == 'data'" for one in ("absent-two>2", "absent-one", "numpy")))
    texts = {
        "gridmill/__init__.py": "",
        "gridmill/version.py": '__version__ = "9.1"\n',
        "gridmill-9.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: gridmill\nVersion: 9.1\n"
        + "".join(f"Requires-Dist: {one}\n" for one in needs),
    }
    for name, text in texts.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nPYTHONPATH='{packages}' exec '{sys.executable}' \"$@\"\n")
    python.chmod(0o755)
    script = with_variables(PROBE, RUN=tmp_path / "run", PYTHON=python, EXTRAS=extras, CACHED=tmp_path)
    done = subprocess.run(["sh", "-s"], input=script, text=True, capture_output=True, check=True)
    facts = read_facts(done.stdout)
    assert (facts.gridmill, facts.lacking) == ("9.1", lacking)
