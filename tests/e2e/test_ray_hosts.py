"""Ray over two hosts with addresses of their own: pipelines run there, and survive what happens to hosts."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gridmill.testing.hosts import Host, Network, network, why_no_hosts
from tests.ray import ENVIRONMENT, needs_ray

pytestmark = [
    pytest.mark.e2e,
    needs_ray,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
QUIET = ("--disable-usage-stats", "--object-store-memory=100000000", "--num-cpus=2", "--block")


class Lab:
    """Two hosts, Ray on both, and a control node on the first; the storage root is on a folder both see."""

    def __init__(self, net: Network, shared: Path) -> None:
        self.net, self.shared = net, shared
        self.alpha, self.beta = net.host("alpha", 11), net.host("beta", 12)
        self.head: subprocess.Popen[bytes]
        self.start_head()
        self.join(self.beta)

    def words(self, *words: str) -> list[str]:
        settings = {
            **ENVIRONMENT,
            "GRIDMILL_HOME": "/root/grid",
            "GRIDMILL_ROOT": str(self.shared / "root"),
            "GRIDMILL_OBSERVE": "0.3",
            "GRIDMILL_GRACE": "1",
        }
        return ["env", *(f"{name}={value}" for name, value in settings.items()), *words]

    def log(self, name: str) -> Path:
        return self.shared / f"{name}.log"

    def start(self, host: Host, name: str, *words: str) -> "subprocess.Popen[bytes]":
        with self.log(name).open("wb") as out:
            return host.popen(*self.words(*words), log=out)

    def start_head(self) -> None:
        where = (
            "--head",
            f"--node-ip-address={self.alpha.address}",
            "--port=6379",
            "--include-dashboard=false",
        )
        self.head = self.start(self.alpha, "head", *RAY, "start", *where, *QUIET)
        self.wait(lambda: b"Ray runtime started" in self.log("head").read_bytes(), "the head is up")

    def join(self, host: Host) -> None:
        where = (f"--address={self.alpha.address}:6379", f"--node-ip-address={host.address}")
        self.start(host, host.name, *RAY, "start", *where, *QUIET)
        self.wait(
            lambda: b"Ray runtime started" in self.log(host.name).read_bytes(), f"{host.name} has joined"
        )

    def gridmill(self, *words: str, check: bool = True) -> str:
        command = self.words(sys.executable, "-P", "-m", "gridmill", *words)
        return self.alpha.run(*command, seconds=200.0, check=check)

    def run(self, text: str, name: str = "run") -> "subprocess.Popen[bytes]":
        path = self.shared / f"{name}.yaml"
        path.write_text(text)
        words = (sys.executable, "-P", "-m", "gridmill", "run", str(path), "--json")
        return self.start(self.alpha, name, *words)

    def ended(self, run: "subprocess.Popen[bytes]", name: str = "run") -> dict[str, object]:
        run.wait(200)
        text = self.log(name).read_text()
        told = [line for line in text.splitlines() if line.startswith('{"run"')]
        assert told, text
        found: dict[str, object] = json.loads(told[-1])
        return found

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 200.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, f"waited in vain until {what}"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="gmh"))
    (folder / "shared").mkdir()
    prefix = f"10.{80 + os.getpid() % 100}.{os.getpid() // 100 % 200}"
    with network(folder / "net", prefix, shared=[folder / "shared"]) as net:
        lab = Lab(net, folder / "shared")
        address = f"{lab.alpha.address}:6379"
        lab.gridmill("add", "site", "lab", "--kind", "ray", "--address", address, "--set", "patience=15s")
        lab.start(lab.alpha, "up", sys.executable, "-P", "-m", "gridmill", "up", "--listen", "off")
        lab.wait(lambda: "control node up" in lab.log("up").read_text(), "the control node is up")
        yield lab
    shutil.rmtree(folder, ignore_errors=True)


WAITS = """
pipeline: waits
at: lab
resources:
  all-of-a-host-waits: {{type: command, site: lab, cpus: 2, memory: 256MiB, keep: 0s}}
jobs:
  long:
    resource: all-of-a-host-waits
    command: "hostname >> {marks}; until [ -e {go} ]; do sleep 0.1; done; hostname"
"""


def waiting(lab: Lab, name: str) -> tuple[str, Path, Path]:
    """A pipeline whose job says where it runs, and ends when it is told to."""
    marks, go = lab.shared / f"{name}.marks", lab.shared / f"{name}.go"
    return WAITS.format(marks=marks, go=go).replace("waits", name), marks, go


def on_beta(lab: Lab, name: str) -> tuple["subprocess.Popen[bytes]", Path, Path]:
    """A waiting run on the host that has no control node: two fill both hosts, and the one beside it ends."""
    pair = []
    for one in (f"{name}-1", f"{name}-2"):
        text, marks, go = waiting(lab, one)
        pair.append((lab.run(text, one), marks, go))
    for _run, marks, _go in pair:
        lab.wait(lambda marks=marks: hosts_of(marks) != [], "the job runs")  # type: ignore[misc]
    [away] = [one for one in pair if hosts_of(one[1]) == ["beta"]]
    [beside] = [one for one in pair if one is not away]
    beside[2].touch()
    assert beside[0].wait(200) == 0
    return away


def hosts_of(marks: Path) -> list[str]:
    return marks.read_text().split() if marks.exists() else []


def attempts(view: dict[str, object]) -> list[int]:
    jobs = view["jobs"]
    assert isinstance(jobs, list)
    return [one["job"]["attempts"] for one in jobs]


def messages(view: dict[str, object]) -> list[str]:
    jobs = view["jobs"]
    assert isinstance(jobs, list)
    return [one["job"]["message"] for one in jobs]


def state(view: dict[str, object]) -> str:
    run = view["run"]
    assert isinstance(run, dict)
    return str(run["state"])


def test_both_hosts_give_what_ray_says(lab: Lab) -> None:
    [site] = [one for one in json.loads(lab.gridmill("list", "sites", "--json")) if one["name"] == "lab"]
    assert {node["name"]: node["capacity"]["cpus"] for node in site["nodes"]} == {"alpha": 2.0, "beta": 2.0}


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
    assert [one["job"]["state"] for one in again["jobs"]] == ["unchanged", "unchanged"]  # type: ignore[attr-defined]


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


def job(view: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in view["jobs"] if one["job"]["job"]["name"] == name)
    return found


def predicted(lab: Lab, view: dict[str, Any]) -> dict[str, bytes]:
    folder = lab.shared / "root" / job(view, "swarm")["artifacts"][0]["output"]["uri"]
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def test_a_swarm_is_on_both_hosts_and_one_without_power_costs_its_part_alone(lab: Lab) -> None:
    hold, marks = lab.shared / "hold", lab.shared / "swarm.marks"
    (lab.shared / "model.py").write_text(MODEL.format(hold=hold, marks=marks))
    here = lab.ended(lab.run(POINTS, "points"), "points")
    assert state(here) == "succeeded", messages(here)
    hold.touch()
    run = lab.run(SWARM, "far")
    lab.wait(lambda: set(hosts_of(marks)) == {"alpha", "beta"}, "both hosts predict")
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
    lab.wait(lambda: "beta" in lab.gridmill("list", "sites", "--json"), "beta is seen")


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


def test_a_cable_pulled_for_a_moment_costs_nothing(lab: Lab) -> None:
    text, marks, go = waiting(lab, "moment")
    run = lab.run(text)
    lab.wait(lambda: len(hosts_of(marks)) == 1, "the job runs")
    host = lab.net.hosts[hosts_of(marks)[0]]
    host.connect(False)
    time.sleep(1.5)
    host.connect(True)
    go.touch()
    view = lab.ended(run)
    assert (state(view), attempts(view)) == ("succeeded", [1])


def test_a_host_without_power_loses_only_its_attempt(lab: Lab) -> None:
    run, marks, go = on_beta(lab, "power")
    lab.beta.power_off()
    lab.wait(lambda: len(hosts_of(marks)) == 2, "the job runs again")
    go.touch()
    view = lab.ended(run, marks.stem)
    assert (state(view), attempts(view)) == ("succeeded", [2])
    assert hosts_of(marks) == ["beta", "alpha"]
    lab.beta.start()
    lab.join(lab.beta)


def test_a_host_cut_off_for_ever_ends_its_jobs_before_they_run_elsewhere(lab: Lab) -> None:
    """So nothing runs twice at the same time, though nobody can reach that host."""
    lab.wait(lambda: "beta" in lab.gridmill("list", "sites", "--json"), "beta is seen")
    run, marks, go = on_beta(lab, "cut")
    lab.beta.connect(False)
    lab.wait(lambda: len(hosts_of(marks)) == 2, "the job runs again")
    left = lab.beta.run("bash", "-c", f"pgrep -f '[u]ntil .*{go.name}' || true")
    assert left.strip() == ""
    go.touch()
    view = lab.ended(run, marks.stem)
    assert (state(view), attempts(view)) == ("succeeded", [2])
    lab.beta.connect(True)
