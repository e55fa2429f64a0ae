"""Examples and the snippets marked to be run are run, each in a home of its own."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.conftest import processes_mentioning
from tests.kit.markdown import ROOT, Block, blocks, commands, name
from tests.kit.planned import planned
from tests.kit.ports import free_port

pytestmark = pytest.mark.e2e

BIN = Path(sys.executable).parent
DEADLINE_SECONDS = 300.0
MARKED = [block for block in blocks() if block.mark.startswith("run: ")]
SHELL_PAGES = sorted({block.page for block in MARKED if block.mark == "run: shell"})
SERVER_PAGES = sorted({block.page for block in MARKED if block.mark == "run: server"})


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("h")


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "GRIDMILL_HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def run(words: list[str], home: Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    line = shlex.split(words[-1]) if words[:2] == ["sh", "-c"] else words
    with planned(line[1:] if line[:1] == ["gridmill"] else (), environment(home), folder) as plan:
        done = subprocess.run(
            words,
            cwd=folder,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        plan.exit_code = done.returncode
    return done


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("hello", "greet | Hello, world!"),
        ("steps", "total | 16 words"),
        pytest.param("settings", "flaky | this time it works", marks=pytest.mark.long),
        pytest.param("nightly", "tell | good night", marks=pytest.mark.long),
        pytest.param("ticker", "count | counted", marks=pytest.mark.long),
        pytest.param("shared", "count | counted to 100", marks=pytest.mark.long),
        pytest.param("weekly", "count | from 2013-01-01 to 2013-01-08", marks=pytest.mark.long),
    ],
)
def test_an_example_runs_and_then_has_nothing_to_do(example: str, says: str, home: Path):
    file = f"examples/{example}/pipeline.yaml"
    done = run(["gridmill", "run", file], home)
    assert done.returncode == 0, done.stderr
    assert says in run(["gridmill", "logs", example], home).stdout.splitlines()
    again = run(["gridmill", "run", file], home)
    assert "unchanged" in again.stdout, again.stderr


def test_a_command_on_each_node_runs_every_time(home: Path):
    for number in (1, 2):
        done = run(["gridmill", "run", "examples/each/pipeline.yaml"], home)
        assert "check on each node" in done.stdout, done.stderr
        assert f"each-{number} succeeded" in done.stdout
    told = json.loads(run(["gridmill", "status", "each-2", "--json"], home).stdout)
    [part] = told["jobs"][0]["parts"]
    assert (part["exit_code"], part["job"]["message"]) == (0, f"{part['node']} is well")


@pytest.mark.long
def test_from_csv_files_to_a_forecast(home: Path):
    done = run(["gridmill", "run", "examples/shops/pipeline.yaml"], home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 jobs done" in done.stdout


@pytest.mark.long
def test_a_model_learns_from_what_two_others_say(home: Path):
    done = run(["gridmill", "run", "examples/stacking/pipeline.yaml"], home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 of 9 jobs done" in done.stdout
    made_from = json.loads(run(["gridmill", "show", "dataset", "stacking/second", "--json"], home).stdout)
    assert {"stacking/trees_say@1", "stacking/line_says@1"} <= set(_texts(made_from))
    again = run(["gridmill", "run", "examples/stacking/pipeline.yaml"], home)
    assert "(9 unchanged)" in again.stdout + again.stderr


@pytest.mark.long
def test_a_service_whose_requests_drift_is_trained_again_and_serves_the_better_version(tmp_path: Path):
    words = [sys.executable, "examples/retrain/circle.py", str(tmp_path / "circle")]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=5 * DEADLINE_SECONDS,
        check=False,
    )
    for pid in processes_mentioning(str(tmp_path)):  # pods outlive the control node
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "temperature/trees@champion moved: temperature/trees@2 has mae" in done.stdout
    assert "== the service follows the alias, and answers with temperature/trees@2" in done.stdout


@pytest.mark.long
def test_a_training_goes_to_a_farm_and_its_model_comes_home(tmp_path: Path, home: Path):
    """A farm and a home on this machine, as `try_it.sh` starts them."""
    pytest.importorskip("cryptography")
    words = ["sh", "examples/farm/try_it.sh", str(tmp_path), str(free_port())]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=5 * DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "log").read_text()
    assert "4 of 4 jobs done" in done.stdout
    shown = json.loads(run(["gridmill", "show", "job", "farm/model", "--json"], tmp_path / "home").stdout)
    [attempt] = shown["attempts"]
    assert attempt["deployment_id"].startswith("trainer-")
    assert attempt["transfers"]["upload"]["transferred_bytes"] > 0
    assert attempt["transfers"]["download"]["transferred_bytes"] > 0


def _texts(value: object) -> Iterator[str]:
    """All text in a JSON value."""
    match value:
        case str():
            yield value
        case dict():
            yield from _texts(list(value.values()))
        case list():
            for one in value:
                yield from _texts(one)


@pytest.mark.long
def test_a_torchrun_script_learns_by_two_workers(home: Path):
    done = run(["gridmill", "run", "examples/gang/pipeline.yaml"], home)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = run(["gridmill", "logs", "gang"], home).stdout.splitlines()
    losses = [float(line.rpartition(" ")[2]) for line in lines if "[0] step" in line]
    assert len(losses) == 4, lines
    assert losses[-1] < losses[0]


@pytest.mark.long
def test_images_are_classified(home: Path, tmp_path: Path):
    example = shutil.copytree(ROOT / "examples" / "digits", tmp_path / "digits")
    assert run([sys.executable, str(example / "make_images.py")], tmp_path).returncode == 0
    done = run(["gridmill", "run", str(example / "pipeline.yaml"), "--json"], home)
    assert done.returncode == 0, done.stdout + done.stderr
    (attempt,) = json.loads(done.stdout)["jobs"][-1]["attempts"]
    assert attempt["metrics"]["test_accuracy"] >= 0.93


def test_rows_that_break_constraints_are_told(home: Path):
    done = run(["gridmill", "run", "examples/checked/pipeline.yaml"], home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checked/sales@1: 7 rows rejected" in done.stdout
    shown = run(["gridmill", "show", "sink", "checked/sales", "--rejects"], home).stdout
    assert "data/sales.csv:7" in shown
    assert "id: not unique" in shown


def test_the_data_of_the_shops_is_what_its_script_makes(tmp_path: Path):
    script = ROOT / "examples" / "shops" / "make_data.py"
    shutil.copy(script, tmp_path)
    assert run([sys.executable, str(tmp_path / script.name)], tmp_path).returncode == 0
    for file in sorted((script.parent / "data").iterdir()):
        assert (tmp_path / "data" / file.name).read_bytes() == file.read_bytes()


def test_the_example_in_python(home: Path):
    done = run([sys.executable, "examples/python/run.py"], home)
    assert done.returncode == 0, done.stderr
    assert "words: 6" in done.stdout.splitlines()


@pytest.mark.long
@pytest.mark.parametrize("block", [b for b in MARKED if b.mark == "run: python"], ids=str)
def test_python_that_is_marked(block: Block, home: Path):
    done = run([sys.executable, "-c", block.text], home)
    assert done.returncode == 0, done.stderr


QUICK = {"docs/quickstart.md"}
"""The page whose commands are tried in `make test`; those of the others are tried in `make test-long`."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if name(page) in QUICK else pytest.mark.long) for page in SHELL_PAGES],
    ids=name,
)
def test_commands_that_are_marked(page: Path, home: Path, tmp_path: Path):
    for block in blocks(page):
        if block.mark == "run: shell":
            follow(block, home, tmp_path)
        elif block.mark.startswith("run: ") and "." in block.mark:
            (tmp_path / block.mark.removeprefix("run: ")).write_text(block.text)


def follow(block: Block, home: Path, folder: Path) -> None:
    """Run its commands one by one; each prints what is shown below it."""
    for line, shown in commands(block):
        done = run(["sh", "-c", line], home, folder)
        for text in shown:
            assert text in done.stdout.splitlines(), f"{block}: {line}\n{done.stdout}{done.stderr}"
        if not re.search(r"exit code [1-9]", line):
            assert done.returncode == 0, f"{block}: {line}\n{done.stderr}"


@pytest.fixture
def server(home: Path) -> Iterator[None]:
    up = subprocess.Popen([BIN / "gridmill", "up", "--listen", "127.0.0.1:0"], env=environment(home))
    until = time.monotonic() + DEADLINE_SECONDS
    while not (home / "control.json").exists():
        assert up.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    yield
    up.send_signal(signal.SIGTERM)
    assert up.wait(DEADLINE_SECONDS) == 0
    for pid in processes_mentioning(str(home)):  # pods outlive it, by an hour
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("page", SERVER_PAGES, ids=name)
def test_commands_beside_a_server(page: Path, home: Path):
    steps = [step for b in blocks(page) if b.mark == "run: server" for step in commands(b)]
    lines = [line for line, _ in steps]
    script = "\n".join(["set -e", *(line.replace("curl -s", "curl -sf") for line in lines)])
    done = run(["sh", "-c", script], home)
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for _, shown in steps for text in shown), done.stdout


def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path):
    site = tmp_path / "site"
    build = [str(BIN / "mkdocs"), "build", "--strict", "--site-dir", str(site)]
    done = run(build, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (site / "index.html").read_text()
    for start in ('<script src="http', '<link rel="stylesheet" href="http', "fonts.g", '<img src="http'):
        assert start not in page
    assert not list(site.rglob("*.py"))
