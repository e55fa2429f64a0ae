"""What is typed on a farm's machine, and what `doctor` finds there."""

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.ports import free_port

from gridmill.__main__ import main
from gridmill.bootstrap.checks import look_at_containers, look_at_farm, look_at_gpus
from gridmill.bootstrap.home_lock import lock_home
from gridmill.bootstrap.host import ProgramHost
from gridmill.cli.farm import join_line, notes, reachable, read_place
from gridmill.cli.up import check_light, with_bucket_hosts
from gridmill.domain.site import SiteKind
from gridmill.errors import HomeInUseError, InputError, NotFoundError
from gridmill.farm.listening import listening, note_address
from gridmill.farm.store import open_records
from gridmill.farm.tenant import Tenant
from gridmill.ports.host import FarmAddress
from gridmill.settings import Settings, is_farm

HOST = ProgramHost()
KNOWN = FarmAddress(name="lab", address="127.0.0.1:1", fingerprint="f" * 64)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, root=tmp_path / "root")


def test_a_farm_is_on_a_site_that_it_can_be_on() -> None:
    assert read_place("local", {}, HOST).kind == SiteKind.LOCAL
    ray = read_place("ray:10.0.0.5:6379", {"patience": "1"}, HOST)
    assert (ray.kind, ray.address, ray.settings) == (SiteKind.RAY, "10.0.0.5:6379", {"patience": "1"})
    with pytest.raises(InputError) as told:
        read_place("cluster", {}, HOST)
    assert "local, slurm, ray" in told.value.hint
    with pytest.raises(InputError, match="the address of the Ray cluster is missing") as told:
        read_place("ray", {}, HOST)
    assert "ray:HOST:6379" in told.value.hint


@pytest.mark.parametrize(
    ("place", "settings", "wrong"),
    [
        ("local", {"home": "/x"}, "settings.home"),
        ("local:here", {}, "address"),
        ("ray:10.0.0.5:6379", {"pateince": "1"}, "settings.pateince"),
        ("ray:10.0.0.5:6379", {"patience": "soon"}, "settings.patience"),
        ("slurm", {"link": "radio"}, "settings.link"),
        ("slurm:login1", {}, "address"),
    ],
)
def test_what_is_wrong_with_its_site_is_told_when_it_starts(
    place: str, settings: dict[str, str], wrong: str
) -> None:
    if place.startswith("ray"):
        pytest.importorskip("ray")
    with pytest.raises(InputError) as told:
        read_place(place, settings, HOST)
    assert told.value.place == f"site farm: {wrong}"


def test_who_starts_a_farm_is_told_what_it_is_not() -> None:
    [alone] = notes("127.0.0.1:8700", "")
    assert f"ssh://USER@{socket.gethostname()}/127.0.0.1:8700" in alone
    assert "--listen ADDRESS:8700" in alone
    assert notes("10.1.0.7:8700", "") == []
    assert notes("10.1.0.7:8700", "not root") == ["this farm serves one tenant only: not root"]


def test_whose_a_home_is_that_a_farm_has(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_farm(settings.home)
    open_records(settings).close()
    assert is_farm(settings.home)
    with lock_home(settings.home), pytest.raises(HomeInUseError, match=r"a farm .* already owns") as told:
        lock_home(settings.home)
    assert "gridmill farm tenants" in told.value.hint
    with pytest.raises(SystemExit):
        main(["--home", str(settings.home), "status"])
    assert "is the home of a farm; to list its tenants: gridmill farm tenants" in capsys.readouterr().out


def test_hosts_of_buckets_are_added_to_those_of_the_environment(settings: Settings) -> None:
    known = replace(settings, bucket_hosts=("minio",))
    assert with_bucket_hosts(known, []) == known
    hosts = with_bucket_hosts(known, ["S3.lab", "10.1.0.9", "fd00::9"]).bucket_hosts
    assert hosts == ("minio", "s3.lab", "10.1.0.9", "fd00::9")
    for wrong in ("", "http://minio", "minio:9000", "a,b"):
        with pytest.raises(InputError) as told:
            with_bucket_hosts(known, [wrong])
        assert told.value.place == "--bucket-host"


def test_a_join_line_names_an_address_that_can_be_dialled() -> None:
    assert reachable("10.1.0.7:8700") == "10.1.0.7:8700"
    assert reachable("0.0.0.0:8700") == reachable("[::]:8700") == f"{socket.gethostname()}:8700"


def test_options_of_a_control_node_are_none_of_a_farm() -> None:
    check_light(True, control=("", False, ""), farm=(True, ["a=b"]))
    check_light(False, control=("postgresql://", True, ""), farm=(False, None))
    with pytest.raises(InputError, match="cannot be combined with --light"):
        check_light(True, control=("", True, ""), farm=(False, None))
    for farm in ((False, ["a=b"]), (False, None, ["minio"]), (False, None, None, True)):
        with pytest.raises(InputError, match="need --light"):
            check_light(False, control=("", False, ""), farm=farm)


def test_a_join_line_says_where_and_who(settings: Settings) -> None:
    with pytest.raises(NotFoundError, match="no farm"):
        listening(settings)
    open_records(settings).close()
    note_address(settings, KNOWN)
    line = join_line(listening(settings), "secret")
    assert line == f"gridmill add cluster lab --controller 127.0.0.1:1 --join {'f' * 64}:secret"


def test_doctor_looks_at_a_farm_where_one_is(settings: Settings) -> None:
    assert list(look_at_farm(settings)) == []
    records = open_records(settings)
    records.put(Tenant(name="old", certificate="c", token_hash="t", version="99.0.0", added=0.0))
    records.close()
    note_address(settings, FarmAddress(name="lab", address=f"127.0.0.1:{free_port()}", fingerprint="f" * 64))
    found = {what: (well, said) for what, well, said in look_at_farm(settings)}
    assert "is free" in found["farm address"][1]
    assert all(what.startswith("farm ") for what in found)
    assert found["farm tenants"][0] is False
    assert "old had 99.0.0" in found["farm tenants"][1]


def test_gpus_without_a_driver_are_amiss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look_at_gpus(tmp_path) == ("gpus", True, "none")
    (tmp_path / "nvidia0").touch()
    what, well, found = look_at_gpus(tmp_path)
    assert (what, well) == ("gpus", False)
    assert "driver" in found


WITHOUT = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] == "cryptography" else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from gridmill.__main__ import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("words", [("up", "--light", "--listen", "127.0.0.1:0"), ("farm", "invite")])
def test_a_farm_without_certificates_names_the_package_to_install(
    settings: Settings, words: tuple[str, ...]
) -> None:
    open_records(settings).close()
    note_address(settings, KNOWN)
    command = [sys.executable, "-c", WITHOUT, "--home", str(settings.home), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "pip install 'gridmill[tls]'" in ended.stderr
    assert "internal error" not in ended.stderr


def test_the_runtime_of_containers_is_tried(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path)}
    assert look_at_containers(environment, (0, 0))[1:] == (
        True,
        "none: jobs with `container` need podman or docker",
    )
    program = tmp_path / "podman"
    program.write_text("#!/bin/sh\necho overlay\n")
    program.chmod(0o755)
    assert look_at_containers(environment, (0, 0)) == ("containers", True, "podman")
    assert "only root in the container" in look_at_containers(environment, (1_879_100_000, 5))[2]
    program.write_text("#!/bin/sh\necho 'no namespaces' >&2; exit 125\n")
    _, well, said = look_at_containers(environment, (0, 0))
    assert (well, "does not work for the user 0 of this machine: no namespaces" in said) == (False, True)
