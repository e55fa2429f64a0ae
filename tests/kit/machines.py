"""Two hosts with addresses of their own, what is started on them, and a job that waits to be told to end."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridmill.testing.hosts import Host, Network, network

PROGRAM = (sys.executable, "-P", "-m", "gridmill")
_OF_PODS = "pgrep -af '[g]ridmill.pod|[g]ridmill.jobs|ray::[K]eeper|[u]ntil ' || true"
_WAITS = """
pipeline: {name}
at: {site}
resources:
  all-of-a-host-{name}: {{type: command, site: {site}, cpus: 2, memory: 256MiB, keep: 0s}}
jobs:
  long:
    resource: all-of-a-host-{name}
    command: "exec 9>> {lock}; flock -n 9 || echo twice >> {marks}; hostname >> {marks}; \
until [ -e {go} ]; do sleep 0.1; done; hostname"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A run of one job, which writes down on which hosts it runs (and `twice` where another one of it still
    does), until it is told to end."""

    name: str
    process: "subprocess.Popen[bytes]"
    folder: Path

    @property
    def hosts(self) -> list[str]:
        """Where it has begun, in order."""
        marks = self.folder / f"{self.name}.marks"
        return marks.read_text().split() if marks.exists() else []

    def go(self) -> None:
        """Let it end."""
        (self.folder / f"{self.name}.go").touch()


class Machines:
    """Hosts `alpha` and `beta`, which see one folder. Gridmill's control node is alpha's; each has a home of
    its own. `settings` are for every program."""

    def __init__(self, net: Network, shared: Path, site: str, settings: dict[str, str]) -> None:
        self.net, self.shared, self.site = net, shared, site
        self.settings = {
            "GRIDMILL_HOME": "/root/grid",
            "GRIDMILL_ROOT": str(shared / "root"),
            "GRIDMILL_OBSERVE": "0.3",
            "GRIDMILL_GRACE": "1",
            **settings,
        }
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.alpha, self.beta = net.host("alpha", 11), net.host("beta", 12)

    def start(
        self, host: Host, name: str, *words: str, ahead: tuple[str, ...] = (), **settings: str
    ) -> "subprocess.Popen[bytes]":
        """Start a program there; what it says is in the log of that name. `ahead`: words before its own."""
        noted = ("sh", "-c", 'echo $$ > "$0"; exec "$@"', str(self.shared / f"{name}.pid"))
        with (self.shared / f"{name}.log").open("wb") as out:
            self.started[name] = host.popen(*self._words(*noted, *ahead, *words, **settings), log=out)
        return self.started[name]

    def _words(self, *words: str, **settings: str) -> list[str]:
        return ["env", *(f"{name}={value}" for name, value in {**self.settings, **settings}.items()), *words]

    def kill(self, host: Host, name: str, signal: str = "KILL") -> None:
        """End the program that was started under that name; one that is killed has ended then."""
        host.run("kill", f"-{signal}", (self.shared / f"{name}.pid").read_text().strip())
        if signal == "KILL":
            self.started[name].wait(300)

    def crash(self, name: str) -> None:
        """Kill `gridmill up` on alpha and that run's command at once: neither notices the other one's
        end."""
        both = ("up", name)
        self.alpha.run("kill", "-KILL", *((self.shared / f"{one}.pid").read_text().strip() for one in both))
        for one in both:
            self.started[one].wait(300)

    def said(self, name: str) -> str:
        """The log of that name; empty when there is none."""
        path = self.shared / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def gridmill(self, *words: str, host: Host | None = None, check: bool = True, **settings: str) -> str:
        """A command, run to its end."""
        whole = self._words(*PROGRAM, *words, **settings)
        return (host or self.alpha).run(*whole, check=check)

    def control(self, *words: str, **settings: str) -> None:
        """`gridmill up` on alpha, until it serves."""
        self.start(self.alpha, "up", *PROGRAM, "up", "--listen", "off", *words, **settings)
        self.wait(lambda: "control node running" in self.said("up"), "the control node is up")

    def run(self, text: str, name: str = "run") -> "subprocess.Popen[bytes]":
        """`gridmill run` of that text on alpha."""
        path = self.shared / f"{name}.yaml"
        path.write_text(text)
        return self.start(self.alpha, name, *PROGRAM, "run", str(path), "--json")

    def detach(self, text: str, name: str) -> None:
        """The same, of which no command waits for the end."""
        path = self.shared / f"{name}.yaml"
        path.write_text(text)
        self.gridmill("run", str(path), "--detach")

    def ended(self, run: "subprocess.Popen[bytes]", name: str = "run") -> dict[str, object]:
        """What it told at its end."""
        run.wait(900)
        told = [line for line in self.said(name).splitlines() if line.startswith('{"run"')]
        assert told, self.said(name)
        found: dict[str, object] = json.loads(told[-1])
        return found

    def waiting(self, name: str) -> Waiting:
        """A run whose job runs now."""
        files = {what: self.shared / f"{name}.{what}" for what in ("lock", "marks", "go")}
        run = self.run(_WAITS.format(name=name, site=self.site, **files), name)
        found = Waiting(name=name, process=run, folder=self.shared)
        self.wait(lambda: found.hosts != [], f"{name} runs")
        return found

    def waiting_on_beta(self, name: str) -> Waiting:
        """One on the host that has no control node."""
        return self.waiting_on(self.beta, name)

    def waiting_on(self, host: Host, name: str) -> Waiting:
        """One on that host: two fill both hosts, and the one beside it ends."""
        pair = [self.waiting(f"{name}-1"), self.waiting(f"{name}-2")]
        [there] = [one for one in pair if one.hosts == [host.name]]
        [beside] = [one for one in pair if one is not there]
        beside.go()
        assert beside.process.wait(300) == 0, self.said(beside.name)
        return there

    def ended_well(self, run: Waiting, *hosts: str) -> None:
        """Let it end: it succeeded, in so many attempts, on these hosts one after the other."""
        run.go()
        view = self.ended(run.process, run.name)
        assert (state(view), attempts(view), run.hosts) == ("succeeded", [len(hosts)], list(hosts)), view

    def clear(self) -> None:
        """Take every deployment down: then nothing is left of pods and their jobs on any host."""
        for one in json.loads(self.gridmill("list", "deployments", "--json")):
            self.gridmill("remove", "deployment", one["id"])
        self.wait(
            lambda: json.loads(self.gridmill("list", "deployments", "--json")) == [], "all is given back"
        )
        for host in self.net.hosts.values():
            self.wait(lambda host=host: not host.run("bash", "-c", _OF_PODS).strip(), f"{host.name} is free")

    def nodes(self) -> str:
        """What the sites say of their nodes."""
        return self.gridmill("list", "sites", "--json")

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
        """Fails with the ends of all logs. What takes long to look at, as a command does, is looked at a
        third of the time: the rest is for what it waits for."""
        until = time.monotonic() + seconds
        while True:
            begun = time.monotonic()
            if condition():
                return
            assert time.monotonic() < until, f"waited in vain until {what}\n{self._logs()}"
            time.sleep(min(max(0.1, 2.0 * (time.monotonic() - begun)), 1.0))

    def _logs(self) -> str:
        logs = [f"{path.name}: {path.read_text()[-800:]}" for path in self.shared.glob("*.log")]
        told = [self.gridmill(*words, check=False) for words in (("status",), ("list", "deployments"))]
        return "\n".join([*logs, *told, *self._failures()])

    def _failures(self) -> list[str]:
        """Of runs that failed: what their jobs and attempts say."""
        failed = [one["id"] for one in self._told().get("runs", ()) if one["state"] == "failed"]
        return [
            f"{attempt['id']} on {attempt['pod_id']}: {attempt['state']}: {attempt['message']}"
            for view in map(self._told, failed)
            for one in view.get("jobs", ())
            for attempt in (*one["attempts"], one["job"] | {"pod_id": ""})
        ]

    def _told(self, *run: str) -> dict[str, Any]:
        """What `status` says; nothing where it cannot say it."""
        try:
            found: dict[str, Any] = json.loads(self.gridmill("status", *run, "--json", check=False))
        except json.JSONDecodeError:
            return {}
        return found


@contextmanager
def two_hosts() -> Iterator[tuple[Network, Path]]:
    """Their network and the folder that they share, for the time of the block."""
    folder = Path(tempfile.mkdtemp(prefix="gmh"))
    (folder / "shared").mkdir()
    prefix = f"10.{80 + os.getpid() % 100}.{os.getpid() // 100 % 200}"
    with network(folder / "net", prefix, shared=[folder / "shared"]) as net:
        yield net, folder / "shared"
    shutil.rmtree(folder, ignore_errors=True)


def attempts(view: dict[str, object]) -> list[int]:
    """Of each job of a run."""
    return [one["job"]["attempts"] for one in _jobs(view)]


def messages(view: dict[str, object]) -> list[str]:
    """What each job says of its end."""
    return [one["job"]["message"] for one in _jobs(view)]


def state(view: dict[str, object]) -> str:
    """The run's."""
    run = view["run"]
    assert isinstance(run, dict)
    return str(run["state"])


def _jobs(view: dict[str, object]) -> list[dict[str, dict[str, object]]]:
    jobs = view["jobs"]
    assert isinstance(jobs, list)
    return jobs
