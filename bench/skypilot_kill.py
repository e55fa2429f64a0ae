"""The kill test of rented machines with SkyPilot: its processes get SIGKILL while it launches a machine of
the simulated EC2, and the machines are counted that still run afterwards.

`python -m bench.skypilot_kill ENVIRONMENT [WAIT_SECONDS]` needs root, iproute2, sshd, rsync, and a virtual
environment with SkyPilot. It installs nothing and uses no network outside this computer. The environment is
made with `python3 -m venv ENVIRONMENT && ENVIRONMENT/bin/pip install 'skypilot[aws]==0.14.1'`.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.measure import OUT, REPOSITORY
from gridmill.errors import UnavailableError
from gridmill.testing.cloud.ec2 import catalogue
from gridmill.testing.cloud.ec2.own_images import image_id
from gridmill.testing.cloud.ec2.records import Instance
from gridmill.testing.cloud.ec2.simulation import EC2Simulation, simulated_ec2
from gridmill.testing.cloud.namespace_machines import NamespaceMachines, why_no_machines

REGION, TYPE, CLUSTER = "us-east-1", "t3.micro", "one"
LONGEST_SECONDS = 900.0
"""The time after which a step that was not reached fails the measurement."""
WAIT_SECONDS = 60.0
_LOOK_SECONDS = 0.01
_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""All processes that SkyPilot starts are in a PID namespace, which ends together with `unshare`."""
_ENDER = re.compile(r"skylet|poweroff|shutdown")
"""Programs that end a machine: the daemon of SkyPilot, and a shutdown that was planned."""
_PAGE = REPOSITORY / "docs" / "reference" / "rented-machines.md"
_RESULT = OUT / "skypilot-kill.json"
_HEADING = "## The same kills with SkyPilot"


class Step(StrEnum):
    """The step of a launch at which all processes of SkyPilot get SIGKILL."""

    ROLE = "before the launch request"
    LAUNCH = "after the launch request"
    SSH = "while it waits for SSH"
    SETUP = "while it prepares the machine"
    NONE = "no kill: the preparation fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a kill, as EC2 shows it `waited_seconds` later: how many machines still run, what they
    do when they shut themselves down, and the programs on them that would end them."""

    step: Step
    restarted: bool
    waited_seconds: float
    machines: int
    shutdown_behavior: str
    enders: tuple[str, ...]


@dataclass
class Home:
    """A home of SkyPilot, with the credentials of a simulated account and the types that it offers."""

    folder: Path
    environment: Path
    ec2: EC2Simulation
    host: NamespaceMachines
    process: "subprocess.Popen[bytes] | None" = None
    began: int = field(default=0)

    def write(self) -> None:
        """Writes the credentials and the catalogue, which SkyPilot would download otherwise."""
        aws = self.folder / ".aws"
        aws.mkdir()
        keys = f"aws_access_key_id={self.ec2.access_key}\naws_secret_access_key={self.ec2.secret_key}\n"
        (aws / "credentials").write_text(f"[default]\n{keys}")
        (aws / "config").write_text(f"[default]\nregion = {REGION}\n")
        ask = "from sky.skylet import constants; print(constants.CATALOG_SCHEMA_VERSION)"
        folder = self.folder / ".sky" / "catalogs" / self.run("python", "-c", ask).strip() / "aws"
        folder.mkdir(parents=True)
        for name, rows in catalogs().items():
            with (folder / name).open("w", newline="") as file:
                csv.writer(file).writerows(rows)

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables of SkyPilot, which send all requests for AWS to the simulation."""
        return {
            "HOME": str(self.folder),
            "PATH": f"{self.environment / 'bin'}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "USER": "root",
            "AWS_ENDPOINT_URL": self.ec2.endpoint_url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        }

    def run(self, program: str, *words: str) -> str:
        """Runs a program of the environment, and returns its output."""
        command = (str(self.environment / "bin" / program), *words)
        done = subprocess.run(
            command, env=dict(self.variables), cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode()[-2000:]}")
        return done.stdout.decode()

    def start(self, *words: str) -> None:
        """Starts a command of SkyPilot in a new PID namespace, where its API server can outlive it."""
        (self.folder / "ended").unlink(missing_ok=True)
        script = '"$@"; touch ended; exec sleep infinity'
        command = (*_NAMESPACE, "sh", "-c", script, "sh", str(self.environment / "bin" / "sky"), *words)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=dict(self.variables),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def launch(self) -> None:
        """Starts a launch with the shortest time after which SkyPilot ends an idle machine by itself."""
        self.began = len(self.ec2.requests)
        where = ("--infra", f"aws/{REGION}", "--instance-type", TYPE)
        self.start("launch", "-y", "-c", CLUSTER, *where, "--down", "-i", "0", "true")

    def has_ended(self) -> bool:
        """Whether the command has ended."""
        return (self.folder / "ended").exists()

    def actions(self) -> list[str]:
        """The actions that this home has asked of EC2, in their order."""
        return [action for _, _, action in self.ec2.requests[self.began :]]

    def has_reached(self, step: Step) -> bool:
        """Whether the launch has reached a step."""
        actions = self.actions()
        match step:
            case Step.ROLE:
                return "CreateInstanceProfile" in actions
            case Step.LAUNCH:
                return "RunInstances" in actions
            case Step.SSH:
                return "CreateTags" in actions and actions[-1] == "DescribeInstances"
            case Step.SETUP:
                return any("/.sky/" in line for one in self.ec2.running() for line in self.programs(one))
            case Step.NONE:
                return self.has_ended()

    def programs(self, machine: Instance) -> list[str]:
        """The command lines of the programs on a machine, without its first process."""
        show = "[ $f = /proc/1/cmdline ] || { tr '\\0\\n' '  ' < $f; echo; }"
        script = f"for f in /proc/[0-9]*/cmdline; do {show}; done 2> /dev/null"
        try:
            command = self.host.command(machine.id, "sh", "-c", script)
        except (KeyError, UnavailableError):  # the machine has not started yet
            return []
        return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()

    def kill(self) -> None:
        """Ends all processes of SkyPilot by SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def catalogs() -> dict[str, list[list[object]]]:
    """The files of SkyPilot's catalogue, with one type and one image of the simulated EC2."""
    kind = catalogue.INSTANCE_TYPES[TYPE]
    image = next(
        one for one in catalogue.IMAGES if "ubuntu-jammy" in one.name and one.architecture == "x86_64"
    )
    size: list[object] = [TYPE, "", "", kind.vcpus, kind.memory_mib / 1024, ""]
    prices: list[object] = [kind.price_micros / 1e6, kind.spot_micros / 1e6]
    zones = range(1, len(catalogue.zones(REGION)) + 1)
    return {
        "vms.csv": [
            [
                *("InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "GpuInfo"),
                *("Price", "SpotPrice", "Region", "AvailabilityZone", "Arch", "LocalDiskType"),
                *("NVMeLocalDisks", "LocalDisksCount", "LocalDiskSize"),
            ],
            *([*size, *prices, REGION, f"{REGION}-az{zone}", "x86_64", "", "", "", ""] for zone in zones),
        ],
        "images.csv": [
            ["Tag", "Region", "OS", "OSVersion", "ImageId", "CreationDate", "BaseImageId"],
            [
                *("skypilot:custom-cpu-ubuntu", REGION, "ubuntu", "22.04"),
                *(image_id(REGION, image), "20261001", ""),
            ],
        ],
        "instance_quota_mapping.csv": [["InstanceType", "OnDemandInstanceCode", "SpotInstanceCode"]],
    }


@contextmanager
def new_home(environment: Path, ec2: EC2Simulation, host: NamespaceMachines) -> Iterator[Home]:
    """A new home, whose processes end with the block."""
    with tempfile.TemporaryDirectory(prefix="gmsky", ignore_cleanup_errors=True) as name:
        home = Home(folder=Path(name), environment=environment, ec2=ec2, host=host)
        home.write()
        try:
            yield home
        finally:
            home.kill()


def wait(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition. Raises TimeoutError."""
    until = time.monotonic() + LONGEST_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {LONGEST_SECONDS:.0f} s until {what}")
        time.sleep(_LOOK_SECONDS)


def outcome(home: Home, step: Step, wait_seconds: float, *, restarted: bool) -> Outcome:
    """Kills one launch, waits, and counts. Then ends the machines that are left."""
    home.launch()
    wait(lambda: home.has_reached(step) or home.has_ended(), f"SkyPilot reaches: {step}")
    if not home.has_reached(step):
        raise RuntimeError(f"SkyPilot ended before: {step}\n{(home.folder / 'log').read_text()[-2000:]}")
    if step is not Step.NONE:
        home.kill()
    if restarted:
        home.start("api", "start")
        wait(home.has_ended, "the API server starts again")
    time.sleep(wait_seconds)
    running = home.ec2.running()
    enders = {line for one in running for line in home.programs(one) if _ENDER.search(line)}
    found = Outcome(
        step=step,
        restarted=restarted,
        waited_seconds=wait_seconds,
        machines=len(running),
        shutdown_behavior=", ".join(sorted({one.shutdown_behavior for one in running})),
        enders=tuple(sorted(enders)),
    )
    for one in running:
        home.ec2.terminate_by_hand(one.id)
    return found


SCHEDULES = (
    (Step.ROLE, False),  # first, because later launches find the role of the account
    (Step.LAUNCH, False),
    (Step.SETUP, False),
    (Step.NONE, False),
    (Step.LAUNCH, True),
    (Step.SSH, False),
    (Step.SETUP, True),
)
"""The steps, and whether the API server starts again at once."""


def measure(environment: Path, wait_seconds: float) -> None:
    """Runs all schedules, and writes the result and the page after each."""
    outcomes: list[Outcome] = []
    host = NamespaceMachines()
    with simulated_ec2(host=host) as ec2:
        for step, restarted in SCHEDULES:
            with new_home(environment, ec2, host) as home:
                outcomes.append(outcome(home, step, wait_seconds, restarted=restarted))
            print(outcomes[-1], flush=True)
            result = {
                "version": version_of(environment),
                "date": time.strftime("%Y-%m-%d"),
                "outcomes": [asdict(one) for one in outcomes],
            }
            _RESULT.write_text(json.dumps(result, indent=1) + "\n")
            write_page()


def version_of(environment: Path) -> str:
    """The version of SkyPilot in an environment."""
    ask = "from importlib.metadata import version; print(version('skypilot'))"
    command = (str(environment / "bin" / "python"), "-c", ask)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def section() -> str:
    """The section of the page with the table of the last measurement. It is empty without a measurement."""
    if not _RESULT.exists():
        return ""
    return section_of(json.loads(_RESULT.read_text()))


def section_of(result: Mapping[str, Any]) -> str:
    """The section of the page with the table of a result."""
    lines = [
        f"| {one['step']} | {_server(one)} | {one['machines']} |"
        f" {', '.join(one['enders']) or 'nothing' if one['machines'] else ''} |"
        for one in sorted(result["outcomes"], key=_place)
    ]
    waited = max(one["waited_seconds"] for one in result["outcomes"])
    return _TEXT.format(
        heading=_HEADING,
        version=result["version"],
        date=result["date"],
        waited=waited,
        rows="\n".join(lines),
    )


def _server(one: Mapping[str, object]) -> str:
    if one["step"] == Step.NONE:
        return "is not killed"
    return "starts again at once" if one["restarted"] else "never starts again"


def _place(one: Mapping[str, object]) -> tuple[object, int]:
    return one["restarted"], [step.value for step in Step].index(str(one["step"]))


_TEXT = """
{heading}

`python -m bench.skypilot_kill ENVIRONMENT` kills SkyPilot at the steps of a launch, against the simulated EC2
whose machines are hosts in namespaces. This is a simulation: no instance of AWS was used. It was measured on
{date} with SkyPilot {version} and `sky launch --down -i 0`, which ends an idle machine as early as SkyPilot
can. All its processes, also its API server, get SIGKILL. The instances are counted {waited:.0f} s later.

| SkyPilot is killed | its API server | instances that run | programs that would end them |
|---|---|---|---|
{rows}

The instances have the shutdown behavior `stop`. The program on the machine that ends it (skylet) starts
after the machine was prepared. The machines of this test have no internet. Therefore the preparation fails
when it downloads uv from astral.sh and SkyPilot's runtime from PyPI, and SkyPilot gets no further. What
happens if SkyPilot is killed while skylet runs was not measured. A machine that Gridmill rents arms its timer
at the start of its boot, so that it ends itself at all these steps (first table, `shutdown`).
"""


def write_page() -> None:
    """Replaces the section of the page."""
    _PAGE.write_text(_PAGE.read_text().partition(f"\n{_HEADING}")[0] + section())


def main(words: Sequence[str]) -> int:
    """Measures, and writes the result and the section of the page. Returns the exit code."""
    reason = why_no_machines() or ("" if shutil.which("rsync") else "rsync is not installed")
    if reason or not words or not (Path(words[0]) / "bin" / "sky").exists():
        print(f"not measured: {reason or 'name an environment with SkyPilot'}\n\n{__doc__}", file=sys.stderr)
        return 2
    environment = Path(words[0]).absolute()
    measure(environment, float(words[1]) if len(words) > 1 else WAIT_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
