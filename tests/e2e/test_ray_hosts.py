"""Ray over two hosts with addresses of their own: pipelines run there, and survive what happens to hosts.

The head sees a lost node after some 8 s (RAY_health_check_*); pods give up 7.5 s after they last reached the
head, half of the site's `patience`, and are taken for gone after all of it, 15 s.
"""

import http.client
import json
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gridmill.testing.hosts import Host, Network, why_no_hosts
from tests.kit.machines import Machines, attempts, messages, state, two_hosts
from tests.kit.ray import ENVIRONMENT, GIB, needs_ray
from tests.kit.wrong_clock import HOW_TO_GET_IT, can_be_made, wrong_clock
from tests.unit.jobs.training.test_imported import weighted

PYTHON = json.dumps(sys.executable)  # as YAML has it
pytestmark = [
    pytest.mark.e2e,
    needs_ray,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
QUIET = (
    *("--disable-usage-stats", "--include-log-monitor=false", "--object-store-memory=100000000"),
    *("--num-cpus=2", "--block"),
)
LIES = ("--num-gpus=2", f"--memory={900 * GIB}")
SKEW = 300
UP, TOO_SLOW = "Ray runtime started", "timed out during startup"


class Lab(Machines):
    """Ray on both hosts, and a control node on the first. What beta says of its GPUs and memory is a lie."""

    def __init__(self, net: Network, shared: Path) -> None:
        super().__init__(net, shared, "lab", ENVIRONMENT)
        self.start_head()
        self.join(self.beta)
        address = f"{self.alpha.address}:6379"
        self.gridmill("add", "site", "lab", "--kind", "ray", "--address", address, "--set", "patience=15s")
        self.control()
        self.both()

    def start_head(self) -> None:
        where = (
            "--head",
            f"--node-ip-address={self.alpha.address}",
            "--port=6379",
            "--include-dashboard=false",
        )
        self._ray(self.alpha, "head", *where)

    def join(self, host: Host) -> None:
        where = (f"--address={self.alpha.address}:6379", f"--node-ip-address={host.address}")
        self._ray(host, host.name, *where, *LIES)

    def _ray(self, host: Host, name: str, *words: str) -> None:
        """`ray start`, again where the machine is too busy: Ray gives itself 30 s."""
        self.start(host, name, *RAY, "start", *words, *QUIET)
        self.wait(lambda: any(said in self.said(name) for said in (UP, TOO_SLOW)), f"Ray is up: {name}")
        if TOO_SLOW in self.said(name):
            self._ray(host, name, *words)

    def both(self) -> None:
        """Until the site has both hosts."""
        self.wait(lambda: all(name in self.nodes() for name in ("alpha", "beta")), "both are seen")


@pytest.fixture(scope="module")
def whole() -> Iterator[Lab]:
    with two_hosts() as (net, shared):
        yield Lab(net, shared)


@pytest.fixture
def lab(whole: Lab) -> Iterator[Lab]:
    """After each test nothing is left on any host, and both are there."""
    yield whole
    whole.both()
    whole.clear()


def job(view: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in view["jobs"] if one["job"]["job"]["name"] == name)
    return found


@pytest.mark.long
def test_both_hosts_give_what_ray_says(lab: Lab) -> None:
    [site] = [one for one in json.loads(lab.nodes()) if one["name"] == "lab"]
    assert {node["name"]: node["capacity"]["cpus"] for node in site["nodes"]} == {"alpha": 2.0, "beta": 2.0}


@pytest.mark.long
def test_data_jobs_there_make_what_they_make_here(lab: Lab) -> None:
    """The same rows and metrics; and a job that ran at one site is unchanged at the other."""
    rows = "".join(f"2026-01-{1 + i // 24:02d}T{i % 24:02d}:00:00,{i % 3},{i * i % 17}\n" for i in range(600))
    (lab.shared / "rows.csv").write_text("time,key,value\n" + rows)
    text = """
pipeline: NAME
at: SITE
jobs:
  rows: {sink: {source: rows.csv}}
  sums:
    dataset:
      tables: [rows]
      sql: "select key, sum(value) as total, count(*) as n from rows group by key order by key"
"""
    there = lab.ended(lab.run(text.replace("SITE", "lab").replace("NAME", "there")))
    here = lab.ended(lab.run(text.replace("SITE", "local").replace("NAME", "here")))
    assert [messages(there), messages(here)] == [["", ""], ["", ""]]
    assert state(there) == state(here) == "succeeded"
    shown = [lab.gridmill("preview", f"{name}/sums") for name in ("there", "here")]
    assert shown[0].replace("there", "here") == shown[1]
    again = lab.ended(lab.run(text.replace("SITE", "local").replace("NAME", "there")))
    assert [job(again, name)["job"]["state"] for name in ("rows", "sums")] == ["unchanged", "unchanged"]


MODEL = """
import socket, time
from pathlib import Path

HOLD, MARKS = Path("{hold}"), Path("{marks}")

def fit(data):
    (data.output / "empty").touch()

def predict(folder, inputs):
    if HOLD.exists():
        with MARKS.open("a") as marks:
            marks.write(socket.gethostname() + "\\n")
    while HOLD.exists():
        time.sleep(0.05)
    return inputs[:, 0] * 2
"""
POINTS = """
pipeline: points
jobs:
  points:
    dataset:
      sql: >
        select i::double as x, (i * 3)::double as y,
               case when i % 10 < 7 then 'train' when i % 10 = 7 then 'validation' else 'test' end as split
        from range(4000) as rows(i) order by i
      label: {column: y}
  model: {training: {dataset: points, model: custom, script: "model.py:fit", predict: "model.py:predict"}}
  swarm: {prediction: {dataset: points, models: [model], split: null, shards: 8, workers: 4, trust: true}}
"""
SWARM = """
pipeline: far
at: lab
jobs:
  swarm:
    prediction:
      {dataset: points/points, models: [points/model], split: null, shards: 8, workers: 4, trust: true}
"""
EACH = """
pipeline: both
at: lab
jobs:
  well: {command: {run: "hostname", each: true}}
  sick: {command: {run: "hostname; [ $GRIDMILL_NODE = alpha ] || exit 3", each: true}}
"""


def predicted(lab: Lab, view: dict[str, Any]) -> dict[str, bytes]:
    folder = lab.shared / "root" / job(view, "swarm")["artifacts"][0]["output"]["uri"]
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


@pytest.mark.long
def test_a_swarm_is_on_both_hosts_and_one_without_power_costs_its_part_alone(lab: Lab) -> None:
    hold, marks = lab.shared / "hold", lab.shared / "swarm.marks"
    (lab.shared / "model.py").write_text(MODEL.format(hold=hold, marks=marks))
    here = lab.ended(lab.run(POINTS, "points"), "points")
    assert state(here) == "succeeded", messages(here)
    hold.touch()
    run = lab.run(SWARM, "far")
    lab.wait(lambda: marks.exists() and {*marks.read_text().split()} == {"alpha", "beta"}, "both predict")
    lab.beta.power_off()
    hold.unlink()
    there = lab.ended(run, "far")
    assert state(there) == "succeeded", messages(there)
    parts = job(there, "swarm")["parts"]
    assert [part["node"] for part in parts] == ["alpha", "alpha"]
    assert sorted(len(part["attempts"]) for part in parts) == [1, 2]
    assert len(predicted(lab, here)) == 8
    assert predicted(lab, there) == predicted(lab, here)
    lab.beta.start()
    lab.join(lab.beta)


def test_a_command_runs_once_on_each_host_and_says_where_it_failed(lab: Lab) -> None:
    view = lab.ended(lab.run(EACH, "both"), "both")
    assert state(view) == "failed"
    told = {
        name: [
            (part["node"], part["job"]["state"], part["exit_code"], part["job"]["message"])
            for part in job(view, name)["parts"]
        ]
        for name in ("well", "sick")
    }
    assert told["well"] == [("alpha", "succeeded", 0, "alpha"), ("beta", "succeeded", 0, "beta")]
    assert told["sick"] == [("alpha", "succeeded", 0, "alpha"), ("beta", "failed", 3, "exit code 3: beta")]
    assert job(view, "sick")["job"]["message"] == "on beta: exit code 3: beta"


MEETS = """
import os, socket
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
ranks = torch.ones(1)
dist.all_reduce(ranks)
where = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")]
print("met", int(ranks), socket.gethostname(), *where, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_gang_meets_across_hosts_whose_own_names_are_loopback(lab: Lab) -> None:
    """As on Debian: four ranks on two hosts reach each other by the hosts' addresses all the same."""
    for host in (lab.alpha, lab.beta):
        host.run("bash", "-c", "sed -i '1i 127.0.1.1 '$(hostname) /etc/hosts")
    script = lab.shared / "meets.py"
    script.write_text(MEETS)
    text = f"""
pipeline: meets
at: lab
resources:
  two: {{type: command, site: lab, workers: 2, cpus: 2, memory: 1GiB, keep: 0s}}
jobs:
  gang: {{resource: two, memory: 400MiB, command: {{run: [{PYTHON}, {script}], workers: 4}}}}
"""
    view = lab.ended(lab.run(text, "meets"), "meets")
    for host in (lab.alpha, lab.beta):
        host.run("sed", "-i", "1d", "/etc/hosts")
    assert state(view) == "succeeded", messages(view)
    told = [
        line.split(" met ")[1].split()
        for line in lab.gridmill("logs", "meets").splitlines()
        if " met " in line
    ]
    [first] = [host for _, host, rank, *_ in told if rank == "0"]
    [other] = {"alpha", "beta"} - {first}
    assert sorted(told, key=lambda words: words[2]) == [
        ["4", host, str(rank), str(rank % 2), "2", lab.net.hosts[first].address]
        for rank, host in enumerate((first, first, other, other))
    ]


GOES_ON = """
import fcntl, os, socket, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

shared, rank = Path(sys.argv[1]), int(os.environ["RANK"])
lock = (shared / f"gang.rank-{rank}").open("a")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where this rank runs twice
checkpoint = Path(os.environ["GRIDMILL_CHECKPOINTS"]) / "step"
dist.init_process_group("gloo")
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
with (shared / "gang.marks").open("a") as marks:
    marks.write(f"{rank}:{socket.gethostname()}:{step}\\n")
while step < 6:
    told = torch.tensor([float((shared / "gang.go").exists())])
    dist.all_reduce(told, dist.ReduceOp.MIN)
    if step == 3 and not told.item():
        (shared / f"gang.waits-{rank}").touch()
        time.sleep(0.1)
        continue
    step += 1
    if rank == 0:
        checkpoint.write_text(str(step))
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_gang_that_loses_a_host_waits_for_room_and_goes_on_from_its_checkpoint(lab: Lab) -> None:
    """Then its pod there is killed, which the other rank notices first. No rank ever runs twice at once."""
    script, marks = lab.shared / "goes_on.py", lab.shared / "gang.marks"
    script.write_text(GOES_ON)
    text = f"""
pipeline: on
at: lab
resources:
  pair: {{type: command, site: lab, workers: 2, cpus: 2, memory: 1GiB}}
jobs:
  gang:
    resource: pair
    memory: 1GiB
    command: {{run: [{PYTHON}, {script}, {lab.shared}], workers: 2}}
"""
    run = lab.run(text, "on")

    def begun(times: int) -> None:
        lab.wait(
            lambda: marks.exists() and len(marks.read_text().split()) == 2 * times, f"{times} have begun"
        )

    begun(1)
    lab.wait(lambda: len(list(lab.shared.glob("gang.waits-*"))) == 2, "both wait, with a checkpoint")
    lab.beta.power_off()
    lab.wait(
        lambda: "needs room for 2 workers at once" in lab.gridmill("status", "on-1"), "it says why it waits"
    )
    lab.beta.start()
    lab.join(lab.beta)
    begun(2)
    lab.beta.run("bash", "-c", "kill -9 $(cut -d' ' -f1 /tmp/gridmill-*/pods/pair-*/pid)", check=False)
    begun(3)
    (lab.shared / "gang.go").touch()
    view = lab.ended(run, "on")
    assert state(view) == "succeeded", messages(view)
    [first, second, third] = [one["message"] for one in job(view, "gang")["attempts"]]
    assert "the node of the pod is lost" in first
    assert second.startswith("rank ")
    assert third == ""
    told = [line.split(":") for line in marks.read_text().split()]
    assert [step for _, _, step in told] == ["0", "0", "3", "3", "3", "3"]
    for attempt in range(3):
        both = told[2 * attempt : 2 * attempt + 2]
        assert {host for _, host, _ in both} == {"alpha", "beta"}
        assert {rank for rank, _, _ in both} == {"0", "1"}


@pytest.mark.long
def test_what_no_node_has_is_refused_and_what_a_node_lies_about_is_told(lab: Lab) -> None:
    """GPUs that are not there, more memory than there is: Ray believes it, the pod's keeper looks."""
    text = """
pipeline: wishes
at: lab
resources:
  gpu: {type: command, gpus: 1, memory: 1GiB, site: lab}
  ram: {type: command, memory: 500GiB, site: lab}
  many: {type: command, gpus: 3, memory: 1GiB, site: lab}
jobs:
  gpu: {resource: gpu, command: "true"}
  ram: {resource: ram, command: "true"}
  many: {resource: many, command: "true"}
"""
    view = lab.ended(lab.run(text, "wishes"), "wishes")
    assert state(view) == "failed"
    said = {name: job(view, name)["job"]["message"] for name in ("gpu", "ram", "many")}
    assert "host beta has 0 GPUs and not GPU number 0, which Ray assigned" in said["gpu"]
    assert "of memory and not the 500 GiB that Ray assigned to a pod" in said["ram"]
    assert "the largest" in said["many"]


@pytest.mark.long
def test_a_cable_pulled_for_a_moment_costs_nothing(lab: Lab) -> None:
    run = lab.waiting_on_beta("moment")
    lab.beta.connect(False)
    time.sleep(1.5)
    lab.beta.connect(True)
    lab.ended_well(run, "beta")


@pytest.mark.long
def test_a_control_node_killed_finds_its_jobs_again(lab: Lab) -> None:
    run = lab.waiting_on_beta("killed")
    lab.crash(run.name)
    lab.control()
    run.go()

    def view() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(lab.gridmill("status", f"{run.name}-1", "--json"))
        return found

    lab.wait(lambda: state(view()) == "succeeded", "it ends")
    assert (attempts(view()), run.hosts) == ([1], ["beta"])


@pytest.mark.long
def test_a_head_that_is_started_anew_has_lost_its_pods_and_their_work_is_done_again(lab: Lab) -> None:
    """The control node stays; the host that had joined ends what it ran, and has to join again."""
    run = lab.waiting_on_beta("head")
    lab.kill(lab.alpha, "head", "TERM")
    lab.wait(lambda: lab.alpha.run("bash", "-c", "pgrep -f [g]cs_server || true") == "", "the head is down")
    lab.start_head()
    lab.wait(lambda: len(run.hosts) == 2, "the job runs again")
    lab.wait(lambda: not raylet(lab.beta), "beta has heard of it")
    lab.join(lab.beta)
    lab.ended_well(run, "beta", run.hosts[-1])


def raylet(host: Host) -> str:
    return host.run("bash", "-c", "pgrep -f [r]aylet/raylet || true")


@pytest.mark.long
def test_a_host_without_power_loses_only_its_attempt(lab: Lab) -> None:
    run = lab.waiting_on_beta("power")
    lab.beta.power_off()
    lab.wait(lambda: len(run.hosts) == 2, "the job runs again")
    lab.ended_well(run, "beta", "alpha")
    lab.beta.start()
    lab.join(lab.beta)


@pytest.mark.long
def test_a_host_cut_off_for_ever_ends_its_jobs_before_they_run_elsewhere(lab: Lab) -> None:
    """So nothing runs twice at the same time, though nobody can reach that host."""
    run = lab.waiting_on_beta("cut")
    lab.beta.connect(False)
    lab.wait(lambda: len(run.hosts) == 2, "the job runs again")
    left = lab.beta.run("bash", "-c", "pgrep -f '[u]ntil .*cut' || true")
    assert left.strip() == ""
    lab.ended_well(run, "beta", "alpha")
    lab.beta.connect(True)
    lab.wait(lambda: not raylet(lab.beta), "beta has heard that it is lost")
    lab.join(lab.beta)


@pytest.mark.long
def test_a_link_back_after_ray_gave_up_and_before_we_do_has_nothing_run_twice(lab: Lab) -> None:
    """Cut until the head has called the node dead, after some 8 s: its pods have ended, or are to."""
    run = lab.waiting_on_beta("while")
    lab.beta.connect(False)
    lab.wait(lambda: "beta" not in lab.nodes(), "Ray gives it up")
    lab.beta.connect(True)
    lab.wait(lambda: len(run.hosts) == 2, "the job runs again")
    lab.wait(lambda: not raylet(lab.beta), "beta has heard that it is lost")
    lab.join(lab.beta)
    lab.ended_well(run, "beta", "alpha")


@pytest.mark.long
@pytest.mark.skipif(not can_be_made(), reason=HOW_TO_GET_IT)
@pytest.mark.parametrize("skew", [SKEW, -SKEW])
def test_a_host_whose_clock_is_wrong_keeps_time(lab: Lab, skew: int) -> None:
    """It runs jobs, ends them at their timeouts, and tells when they ended and how long they took."""
    name = f"clock{'-fast' if skew > 0 else '-slow'}"
    text = f"""
pipeline: {name}
at: lab
jobs:
  told: {{command: {{run: "date +%s", each: true}}}}
  late: {{command: {{run: "sleep 100", each: true}}, timeout: 3s}}
"""
    with wrong_clock(lab.beta, lab.shared, skew):
        view = lab.ended(lab.run(text, name), name)
    now = time.time()
    told, late = job(view, "told")["parts"], job(view, "late")["parts"]
    assert [(part["node"], part["job"]["state"]) for part in told] == [
        ("alpha", "succeeded"),
        ("beta", "succeeded"),
    ]
    right, wrong = (int(part["job"]["message"]) for part in told)
    assert abs(wrong - right - skew) < SKEW / 2
    assert ["3.0 s" in part["job"]["message"] for part in late] == [True, True], messages(view)
    for [one] in (part["attempts"] for part in (*told, *late)):
        started, ended = (datetime.fromisoformat(one[name]).timestamp() for name in ("started", "ended"))
        assert 0.0 <= ended - started < SKEW / 2
        assert one["use"]["wall_seconds"] < SKEW / 2
        assert abs(ended - now) < SKEW / 2


class Client(threading.Thread):
    """Sends requests on one connection, and tries each failed request once more. `failed` has the requests
    that failed twice, and `slowest_seconds` is the longest time of a request."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection(host, port, timeout=60)
        self._over = threading.Event()
        self.answered, self.again, self.failed, self.slowest_seconds = 0, 0, list[object](), 0.0

    def run(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            first = self._try()
            if first != 200:
                self.again += 1
                second = self._try()
                if second != 200:
                    self.failed.append((first, second))
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - begun)
            self.answered += 1

    def _try(self) -> object:
        try:
            self._connection.request("POST", "/predict", b'{"rows": [{"temp": 1, "wind": 2}]}')
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return error
        return answer.status

    def end(self) -> None:
        self._over.set()
        self.join(120)
        self._connection.close()


class Load:
    """Eight clients of the service `rain`, for the time of the block."""

    def __init__(self, lab: Lab, port: int) -> None:
        self._lab = lab
        self.clients = [Client(lab.alpha.address, port) for _ in range(8)]

    def __enter__(self) -> "Load":
        for one in self.clients:
            one.start()
        self.go_on()
        return self

    def go_on(self) -> None:
        """Each client gets further answers."""
        before = [one.answered for one in self.clients]
        self._lab.wait(
            lambda: all(one.answered > n + 50 for one, n in zip(self.clients, before, strict=True)),
            "all clients get answers",
        )

    def __exit__(self, *_: object) -> None:
        for one in self.clients:
            one.end()

    @property
    def failed(self) -> list[object]:
        return [failed for one in self.clients for failed in one.failed]

    def summary(self) -> str:
        answered, again = (sum(getattr(one, name) for one in self.clients) for name in ("answered", "again"))
        slowest = max(one.slowest_seconds for one in self.clients)
        return f"{answered} requests, {again} sent twice by a client, the slowest {slowest:.2f} s"


def rain(lab: Lab) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(lab.gridmill("show", "service", "rain", "--json"))
    return shown


def pods(lab: Lab) -> list[str]:
    """The addresses of the pods of the service `rain` that are ready, in order."""
    service = rain(lab)["service"]
    reports = [service["report"], *(one["report"] for one in service["further_pods"])]
    return sorted(one["host"] for one in reports if one is not None and one["state"] == "ready")


@pytest.mark.long
def test_a_service_on_two_hosts_loses_one_of_them_without_a_failed_request(lab: Lab) -> None:
    """First all processes of the host are killed, and then it loses its power under the same load."""
    model, signature = lab.shared / "net.onnx", lab.shared / "signature.yaml"
    model.write_bytes(weighted())
    signature.write_text("features: [temp, wind]\nlabel: rain\n")
    lab.gridmill("import", "model", "rain", str(model), "--signature", str(signature))
    words = ("--type", "service", "--site", "lab", "--cpus", "1", "--memory", "1GiB")
    lab.gridmill("configure", "resource", "servers", *words)
    start = ("--model", "rain/model", "--resource", "servers", "--host", "0.0.0.0", "--accept-open")
    lab.gridmill("start", "service", "rain", *start, "--pods", "2")
    both = sorted([lab.alpha.address, lab.beta.address])
    assert pods(lab) == both
    with Load(lab, rain(lab)["service"]["port"]) as load:
        lab.beta.run("bash", "-c", "kill -KILL -1", check=False)
        load.go_on()
        lab.wait(lambda: pods(lab) == [lab.alpha.address], "the end of the pod is seen")
        lab.join(lab.beta)
        lab.both()
        lab.wait(lambda: rain(lab)["state"] == "running" and pods(lab) == both, "another pod is ready")
        load.go_on()
        lab.beta.power_off()
        load.go_on()
    print(load.summary())
    assert load.failed == [], load.summary()
    lab.gridmill("stop", "service", "rain")
    lab.beta.start()
    lab.join(lab.beta)
