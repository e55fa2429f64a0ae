"""The command that runs a job in a container, and what it does not contain."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gridmill.codec import encode
from gridmill.domain.amounts import Amounts
from gridmill.domain.container import ContainerRecord
from gridmill.errors import InputError
from gridmill.jobs.containers import (
    RECORD,
    ContainerJob,
    RuntimeUser,
    check_gpus,
    check_runtime,
    container_argv,
    container_name,
    find_runtime,
    has_range,
    login_folder,
    passed_variables,
    read_record,
    remove_container,
    run_argv,
)

ENVIRONMENT = {
    "PATH": "/bin",
    "HOME": "/root",
    "TMPDIR": "/w/tmp",
    "TOKEN": "value-of-a-secret",
    "GRIDMILL_OUTPUT": "/o",
    "GRIDMILL_EVENTS_FD": "3",
    "CUDA_VISIBLE_DEVICES": "2,5",
    "DOCKER_HOST": "unix:///d",
}


def job(folder: Path = Path("/w"), **changes: Any) -> ContainerJob:
    given: dict[str, Any] = {
        "attempt_id": "a 1/x",
        "folder": folder,
        "image": "registry.example.com:5000/team/train:1",
        "readable": (Path("/in/one"),),
        "writable": (Path("/w/work"), Path("/o")),
        "cwd": Path("/w/work/code"),
        "given": Amounts(cpus=1.5, memory_bytes=2**30),
    }
    return ContainerJob(**given | changes)


USER = RuntimeUser(uid=1000, gid=100)


def argv(runtime: str, user: RuntimeUser = USER, **changes: Any) -> str:
    wanted = job(**changes)
    record = ContainerRecord(runtime=runtime, name=container_name(wanted.attempt_id), image=wanted.image)
    return " ".join(run_argv(record, wanted, "sha256:1", ("python3", "a b.py"), ENVIRONMENT, user))


def test_the_container_has_the_user_the_limits_and_only_the_folders_of_the_attempt() -> None:
    text = argv("/usr/bin/podman")
    assert " --rm --name gridmill-a-1-x-" in text
    assert "--label gridmill.attempt=a 1/x" in text
    assert "--user 1000:100 --security-opt no-new-privileges --userns keep-id --preserve-fds 1" in text
    assert "--memory 1073741824b --cpus 1.5" in text
    assert "--mount type=bind,source=/w/work,destination=/w/work --mount type=bind,source=/o" in text
    assert "--mount type=bind,source=/in/one,destination=/in/one,readonly" in text
    assert text.endswith("--workdir /w/work/code " + text.partition("--workdir /w/work/code ")[2])
    assert text.endswith("--entrypoint python3 sha256:1 a b.py")


def test_values_of_variables_are_not_in_the_command() -> None:
    text = argv("/usr/bin/docker")
    assert "value-of-a-secret" not in text
    assert "--env TOKEN" in text
    assert passed_variables(ENVIRONMENT, has_events=False) == {"TMPDIR", "TOKEN", "GRIDMILL_OUTPUT"}
    assert "GRIDMILL_EVENTS_FD" in passed_variables(ENVIRONMENT, has_events=True)


def test_gpus_are_given_in_the_way_of_the_runtime_and_numbered_from_zero() -> None:
    podman, docker = (argv(f"/usr/bin/{name}", gpus=("2", "5")) for name in ("podman", "docker"))
    assert "--device nvidia.com/gpu=2 --device nvidia.com/gpu=5" in podman
    assert '--gpus "device=2,5"' in docker
    assert "--userns" not in docker
    assert "--preserve-fds" not in docker
    assert "--env CUDA_VISIBLE_DEVICES=0,1" in podman


def test_a_folder_that_cannot_be_mounted_is_refused() -> None:
    with pytest.raises(InputError, match="has a comma"):
        argv("/usr/bin/podman", readable=(Path("/in/a,b"),))


def test_a_machine_without_a_runtime_or_without_the_gpu_toolkit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither podman nor docker"):
        find_runtime({"PATH": str(tmp_path)})
    with pytest.raises(InputError, match="no description of its GPUs"):
        check_gpus("/usr/bin/podman", ("0",), {}, [tmp_path])
    (tmp_path / "nvidia.yaml").write_text("")
    check_gpus("/usr/bin/podman", ("0",), {}, [tmp_path])
    with pytest.raises(InputError, match="no NVIDIA Container Toolkit"):
        check_gpus("/usr/bin/docker", ("0",), {"PATH": str(tmp_path)})
    check_gpus("/usr/bin/docker", (), {"PATH": str(tmp_path)})


def test_a_user_without_a_range_of_users_is_root_in_the_container(tmp_path: Path) -> None:
    ranges = tmp_path / "subuid"
    assert not has_range(1_879_100_000, ranges)
    ranges.write_text("somebody:100000:65536\n1879100000:165536:65536\n")
    assert has_range(1_879_100_000, ranges)
    assert not has_range(1_879_100_001, ranges)
    alone = RuntimeUser(uid=1_879_100_001, gid=5, is_alone=True, options=("--storage-opt", "x=true"))
    text = argv("/usr/bin/podman", alone)
    assert text.startswith("/usr/bin/podman --storage-opt x=true run --rm")
    assert "--user 0:0 --security-opt no-new-privileges --preserve-fds" in text
    assert "--memory" not in text, "podman without rights cannot limit a container"


def test_a_runtime_that_does_not_work_for_the_user_is_named(tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'permission denied: docker.sock' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(InputError, match="docker does not work for the user 77 of this machine: permission"):
        check_runtime(str(program), {}, (77, 77))


RUNTIME = """#!/bin/sh
# A runtime that records its commands, and needs a login for its only image.
echo "$@" >> FOLDER/commands
case "$1 $2" in
  "info "*) echo overlay;;
  "image inspect") [ -e FOLDER/here ] || exit 1
    echo '[{"Id": "abc", "RepoDigests": ["r/i@sha256:DIGEST"]}]';;
  "pull --quiet") case "$*" in *--authfile*) cp "$4" FOLDER/auth; touch FOLDER/here;; *)
    echo "unauthorized" >&2; exit 1;; esac;;
esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "runtime"
    folder.mkdir()
    program = folder / "podman"
    program.write_text(RUNTIME.replace("FOLDER", f"'{folder}'").replace("DIGEST", "0" * 64))
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "TMPDIR": "/t"}


def test_a_private_image_is_pulled_with_a_login_that_is_only_in_memory_and_deleted(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="could not be pulled: unauthorized"):
        container_argv(job(tmp_path), ("true",), environment)
    assert read_record(tmp_path) is None
    words = container_argv(job(tmp_path, login="me:secret-value"), ("true",), environment)
    folder = tmp_path / "runtime"
    assert (
        folder / "auth"
    ).read_text() == '{"auths": {"registry.example.com:5000": {"auth": "bWU6c2VjcmV0LXZhbHVl"}}}'
    assert "secret" not in (folder / "commands").read_text()
    assert not login_folder("a 1/x").exists()
    record = read_record(tmp_path)
    assert record is not None
    assert (record.digest, record.name in words) == (f"sha256:{'0' * 64}", True)
    assert stat.S_IMODE((tmp_path / RECORD).stat().st_mode) == 0o600
    pinned = f"r/i@sha256:{'1' * 64}"
    (folder / "commands").write_text("")
    container_argv(job(tmp_path, image=pinned), ("true",), environment)
    assert "pull" not in (folder / "commands").read_text()


def test_an_image_of_this_machine_is_used_if_it_cannot_be_pulled(
    environment: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runtime" / "here").touch()
    assert "abc" in container_argv(job(tmp_path), ("true",), environment)
    assert "because the pull failed: unauthorized" in capfd.readouterr().out


def test_what_an_attempt_leaves_is_removed(environment: dict[str, str], tmp_path: Path) -> None:
    runtime = str(tmp_path / "runtime" / "podman")
    record = ContainerRecord(runtime=runtime, name="gridmill-1", image="i")
    remove_container(tmp_path, "a 1/x")
    (tmp_path / RECORD).write_bytes(encode(record))
    login_folder("a 1/x").mkdir()
    remove_container(tmp_path, "a 1/x")
    assert (tmp_path / "runtime" / "commands").read_text() == "rm --force --volumes gridmill-1\n"
    assert not login_folder("a 1/x").exists()
