import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.domain.amounts import Amounts
from gridmill.domain.lease import LaunchTry, Lease, LeaseState, RentalTerms
from gridmill.domain.machine import Machine, MachineState
from gridmill.domain.pod_protocol import PodOrder
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import MachineFaultError, UnavailableError
from gridmill.ports.cloud import RentingSite
from gridmill.ports.site import PodStatus, TransferSite
from gridmill.settings import read_settings
from gridmill.sites.cloud import rentals as rentals_module
from gridmill.sites.cloud.boot import END
from gridmill.sites.cloud.connection import contact_seconds
from gridmill.sites.cloud.install import with_variables
from gridmill.sites.cloud.machine import START, read_watch
from gridmill.sites.cloud.rentals import Rentals, watch_settings
from gridmill.sites.cloud.settings import read
from gridmill.sites.cloud.site import CloudSite, ended_machine, make

TERMS = RentalTerms(max_seconds=3600, dead_man_seconds=900)
TRY = LaunchTry(
    number=1,
    token="t-1",
    region="north-1",
    zone="north-1a",
    instance_type="sim.small",
    confirmed=1000.0,
    machine_id="m",
)
LEASE = Lease(
    id="l-1",
    provider="burst",
    owner="o",
    resource="r",
    deployment_id="r-1",
    pod_id="r-1.0",
    state=LeaseState.BOOTING,
    terms=TERMS,
    tries=(TRY,),
)
ORDER = PodOrder(
    pod_id="r-1.0",
    deployment_id="r-1",
    type="command",
    secret="s",
    home="",
    link="",
    capacity=Amounts(cpus=1.0, memory_bytes=2**28),
    keep_seconds=0.0,
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[CloudSite]:
    settings = read_settings({"GRIDMILL_HOME": str(tmp_path)})
    made = make(settings, Site(name="burst", kind=SiteKind.CLOUD, settings={"provider": "simulated"}), None)
    assert isinstance(made, CloudSite)
    yield made
    made.close()


def test_it_is_a_renting_site_with_transfers(site):
    assert isinstance(site, RentingSite)
    assert isinstance(site, TransferSite)
    assert site.nodes() == site.farm_status().nodes
    assert {node.name.rpartition("#")[2] for node in site.nodes()} == set("12345678")


def test_a_pod_waits_with_the_phase_of_its_lease(site):
    site.bring_up([ORDER])
    assert site.observe(["r-1.0"])["r-1.0"].status is PodStatus.QUEUED
    site.use_leases([LEASE])
    report = site.observe(["r-1.0"])["r-1.0"]
    assert (report.status, report.message) == (PodStatus.QUEUED, "its machine boots")
    site.use_leases([replace(LEASE, problem="the credentials were refused")])
    assert site.observe(["r-1.0"])["r-1.0"].message == "its machine boots: the credentials were refused"


def test_nothing_is_said_to_have_ended_before_the_leases_are_known(site):
    assert site.observe(["r-1.0"])["r-1.0"].status is PodStatus.UNKNOWN
    site.use_leases([])
    report = site.observe(["r-1.0"])["r-1.0"]
    assert (report.status, report.left) == (PodStatus.GONE, True)


def test_a_pod_whose_lease_is_released_or_closed_is_gone_with_the_reason(site):
    why = "the spot machine was interrupted"
    site.use_leases([replace(LEASE, state=LeaseState.RELEASING, reason=why, release_asked=1100.0)])
    for _ in range(2):
        report = site.observe(["r-1.0"])["r-1.0"]
        assert (report.status, report.message) == (PodStatus.GONE, why)
        assert report.left, "it costs no attempt"
        assert site.undelivered_events("r-1.0") == ()
        site.use_leases([])
    site.tear_down(["r-1.0"])


def test_a_lease_that_vanishes_from_the_list_was_closed(site):
    site.use_leases([replace(LEASE, state=LeaseState.BOOTING)])
    site.use_leases([])
    assert site.observe(["r-1.0"])["r-1.0"].status is PodStatus.GONE


def test_a_machine_that_ran_to_its_limit_has_not_left(site):
    ended = replace(LEASE, state=LeaseState.RELEASING, reason="max_hours", release_asked=1000.0 + 3600)
    assert ended_machine(ended, 9e9).left is False
    assert ended_machine(replace(ended, release_asked=1100.0), 9e9).left is True
    by_itself = replace(TRY, ended=1100.0)
    assert ended_machine(replace(ended, tries=(by_itself,)), 9e9).left is True


def test_a_repeated_launch_sends_the_same_request(site):
    first = site.launch(LEASE, TRY)
    assert site.launch(LEASE, TRY).id == first.id
    assert first.owner == site.owner
    other = replace(TRY, number=2, token="t-2")
    assert site.launch(LEASE, other).id != first.id


def test_a_machine_without_keys_is_replaced_and_one_without_address_is_waited_for(site):
    machine = Machine(
        id="m", provider="x", region="r", zone="a", instance_type="x", state=MachineState.PENDING
    )
    with pytest.raises(UnavailableError, match="no address yet"):
        site.prepare_machine(LEASE, machine)
    with pytest.raises(MachineFaultError, match="keys of the rented machine"):
        site.prepare_machine(LEASE, replace(machine, address="192.0.2.1"))


def test_the_keys_are_deleted_when_the_lease_is_closed(site, tmp_path):
    site.launch(LEASE, TRY)
    site.forget_lease(replace(LEASE, state=LeaseState.RELEASING))
    assert (tmp_path / "leases" / "l-1").exists()
    site.forget_lease(replace(LEASE, state=LeaseState.CLOSED))
    site.forget_lease(replace(LEASE, state=LeaseState.CLOSED))
    assert not (tmp_path / "leases" / "l-1").exists()


def test_a_site_of_the_same_home_has_the_same_owner(site, tmp_path):
    settings = read_settings({"GRIDMILL_HOME": str(tmp_path)})
    again = make(settings, Site(name="b", kind=SiteKind.CLOUD, settings={"provider": "simulated"}), None)
    assert again.owner == site.owner
    again.close()


def test_the_transfer_rate_is_unknown_without_a_machine(site):
    with pytest.raises(UnavailableError):
        site.probe()
    assert site.transfer_progress("a") == {}
    assert site.transfer_problems() == {}


def test_the_watcher_is_set_by_the_terms():
    watch = watch_settings(replace(LEASE, terms=replace(TERMS, spot=True)), "aws")
    assert (watch.dead_man_seconds, watch.cap_seconds) == (900, 3600)
    assert "spot/instance-action" in watch.notice_command
    assert watch_settings(LEASE, "aws").notice_command == ""


class CloudWithEndCommand:
    """A provider whose machines end themselves with a command of their own."""

    def __init__(self) -> None:
        self.requests = []

    def end_command(self, token: str) -> str:
        return f"end-it {token}"

    def launch(self, request):
        self.requests.append(request)

    def close(self) -> None:
        pass


def test_a_machine_ends_itself_with_the_command_of_its_provider(tmp_path):
    settings = read_settings({"GRIDMILL_HOME": str(tmp_path)})
    declared = Site(name="burst", kind=SiteKind.CLOUD, settings={"provider": "simulated"})
    cloud = CloudWithEndCommand()
    site = CloudSite(settings, declared, read(declared), cloud, "grid-a")
    site.launch(LEASE, TRY)
    (request,) = cloud.requests
    assert f"END='end-it {TRY.token}'" in json.loads(request.user_data.partition("\n")[2])["bootcmd"][0][2]
    assert watch_settings(LEASE, "aws").end_command == END
    site.close()


def test_contacts_are_much_more_frequent_than_the_dead_man_time():
    assert contact_seconds(900, is_spot=False) == 15.0
    assert contact_seconds(900, is_spot=True) == 3.0
    assert contact_seconds(60, is_spot=False) == 6.0


def test_the_state_of_the_watcher_is_read():
    state = read_watch("used=7 silent=3 working=1\nnotice=terminate at noon \n")
    assert (state.used_seconds, state.silent_seconds, state.is_working) == (7, 3, True)
    assert state.notice == "terminate at noon"
    with pytest.raises(UnavailableError):
        read_watch("")


def test_a_machine_is_needed_for_half_of_the_dead_man_time_after_a_heartbeat(tmp_path):
    now = [0.0]
    settings = read_settings({"GRIDMILL_HOME": str(tmp_path)})
    declared = Site(name="burst", kind=SiteKind.CLOUD, settings={"provider": "simulated"})
    rentals = Rentals(settings, declared, read(declared), lambda: now[0])
    seen = []
    for now[0] in (449.0, 451.0):
        seen.append(rentals.is_needed(LEASE))
    rentals.heartbeat()
    seen.append(rentals.is_needed(LEASE))
    assert seen == [True, False, True]


def test_a_lease_that_closes_slowly_does_not_hold_up_another(site, monkeypatch):
    began, go_on = threading.Event(), threading.Event()

    def slow(home, lease):
        if lease == "l-1":
            began.set()
            assert go_on.wait(60)

    monkeypatch.setattr(rentals_module, "delete_keys", slow)
    first = threading.Thread(target=site.forget_lease, args=(replace(LEASE, state=LeaseState.CLOSED),))
    second = replace(LEASE, id="l-2", state=LeaseState.CLOSED)
    other = threading.Thread(target=site.forget_lease, args=(second,), daemon=True)
    first.start()
    assert began.wait(60)
    other.start()
    other.join(10)
    is_over = not other.is_alive()
    go_on.set()
    first.join()
    assert is_over


def test_the_light_server_starts_again_after_a_reboot_also_if_a_process_has_its_number(tmp_path):
    server = tmp_path / "python"
    server.write_text('#!/bin/sh\necho \'{"fingerprint": "f", "join": "secret"}\'\nexec sleep 60\n')
    server.chmod(0o755)
    values = {"FARM": tmp_path, "PORT": 1, "PYTHON": server, "MEMORY": 1, "JOINED": 1, "started": ""}
    script = with_variables(START, **values)
    pids = []
    try:
        for boot in ("", "", "an earlier boot"):
            if boot:
                (tmp_path / "up.boot").write_text(boot)
            subprocess.run(["sh", "-s"], input=script, text=True, check=True, timeout=60)
            pids.append(int((tmp_path / "up.pid").read_text()))
    finally:
        for pid in set(pids):
            os.kill(pid, signal.SIGKILL)
    assert pids[0] == pids[1] != pids[2]


def test_the_secret_of_the_light_server_is_private_and_deleted(tmp_path):
    server = tmp_path / "python"
    server.write_text(
        "#!/bin/sh\n"
        "stat -c %a up.out > mode\n"
        'echo \'{"fingerprint": "f", "join": "secret"}\'\n'
        "exec sleep 60\n"
    )
    server.chmod(0o755)
    values = {"FARM": tmp_path, "PORT": 1, "PYTHON": server, "MEMORY": 1, "JOINED": 0, "started": ""}
    script = with_variables(START, **values)
    try:
        done = subprocess.run(["sh", "-s"], input=script, text=True, capture_output=True, check=True)
        again = with_variables(START, **{**values, "JOINED": 1})
        subprocess.run(["sh", "-s"], input=again, text=True, check=True, timeout=30)
    finally:
        os.kill(int((tmp_path / "up.pid").read_text()), signal.SIGKILL)
    assert json.loads(done.stdout)["join"] == "secret"
    assert (tmp_path / "mode").read_text() == "600\n"
    assert not (tmp_path / "up.out").exists()
