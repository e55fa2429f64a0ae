"""The command line on a grid in memory: words in, text or JSON and an exit code out."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridmill import __main__ as program
from gridmill.cli.app import COMMANDS, load
from gridmill.cli.examples import EXAMPLES
from gridmill.cli.help import stored_help
from gridmill.domain.artifact import Alias, Artifact, ArtifactKind, Output
from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import EventType
from gridmill.domain.promotion import Promotion, PromotionMeasurement, PromotionState
from gridmill.domain.service import Service, ServiceState, ServiceView
from gridmill.domain.views import RunView
from gridmill.errors import InputError
from gridmill.sdk.client import Client
from gridmill.sdk.discovery import OpenGrid, home_settings
from gridmill.testing.fake_grid import Act, FakeGrid

FILE = """\
pipeline: demo
parameters: {rate: 0.5}
jobs:
  first:
    command: {run: "true"}
  second:
    needs: [first]
    command: {run: "echo ${rate}"}
"""


class BrokenGrid(FakeGrid):
    """A grid with a defect."""

    def run(self, run_id: str) -> RunView:
        raise RuntimeError("the detail")


class Cli:
    """Runs command lines; keeps what they wrote."""

    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.fake = FakeGrid()
        self.home = home
        self.file = home / "p.yaml"
        self.file.write_text(FILE)
        self._capfd = capfd
        self.out = self.err = ""

    def __call__(self, *words: str | Path) -> int:
        client = Client(home_settings(self.home), dial=lambda: OpenGrid(grid=self.fake, close=lambda: None))
        given = [str(word) for word in words]
        code: object = 0
        try:
            program.main(given, context=client)
        except SystemExit as exit:
            code = exit.code
        self.out, self.err = self._capfd.readouterr()
        return int(code or 0) if isinstance(code, int | None) else 1

    def json(self, *words: str | Path) -> Any:
        self(*words, "--json")
        return json.loads(self.out)


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capfd)


def test_a_kept_pipeline_is_run_by_its_name_without_its_file(cli: Cli) -> None:
    assert cli("apply", "-f", cli.file, "--set", "rate=3") == 0
    cli.file.unlink()
    assert cli("run", "demo", "--set", "rat=4") == 2
    assert "there is no parameter `rat`; did you mean `rate`?" in cli.err
    assert cli("start", "run", "demo", "--set", "rate=4") == 0
    assert cli.json("show", "job", "demo-1", "second")["job"]["job"]["command"]["run"] == "echo 4"
    assert cli("run", "demo", "--only", "first") == 0
    assert "1 of 1 jobs done" in cli.out
    assert cli("run", "dem") == 4
    assert "there is no pipeline 'dem'" in cli.err


def test_run_says_each_change_and_sums_up(cli: Cli) -> None:
    assert cli("run", cli.file, "--set", "rate=2") == 0
    assert "first: running on default-command-1 (1 CPU, 1 GiB)" in cli.err
    assert "second: succeeded" in cli.err
    assert "demo-1 succeeded in" in cli.out
    assert "2 of 2 jobs done" in cli.out
    assert "256 MiB" in cli.out
    assert str(cli.home / "reports" / "demo-1.html") in cli.out
    assert (cli.home / "reports" / "demo-1.html").exists()


def test_run_prints_one_json_document(cli: Cli) -> None:
    view = cli.json("run", cli.file)
    assert view["run"]["id"] == "demo-1"
    assert [job["job"]["state"] for job in view["jobs"]] == ["succeeded", "succeeded"]


def test_start_run_is_run_and_force_and_only_arrive(cli: Cli) -> None:
    assert cli("start", "run", cli.file, "--only", "first", "--force") == 0
    view = cli.json("show", "run", "demo-1")
    assert view["run"]["force"] is True
    assert [job["job"]["job"]["name"] for job in view["jobs"]] == ["first"]


def test_a_failed_run_shows_the_end_of_the_log_and_what_to_do(cli: Cli) -> None:
    cli.fake.acts["first"] = Act.FAIL
    assert cli("run", cli.file) == 1
    assert "first failed: exit code 3" in cli.out
    assert "| it broke" in cli.out
    assert "gridmill logs demo-1 first" in cli.out
    assert "gridmill resume demo-1" in cli.out
    assert cli("resume", "demo") == 1
    cli.fake.acts.clear()
    assert cli("resume", "demo-1") == 0
    assert "nothing to resume" not in cli.err


def test_a_run_that_succeeded_has_nothing_to_resume(cli: Cli) -> None:
    cli("run", cli.file)
    for more in ((), ("--detach",)):
        assert cli("resume", "demo-1", *more) == 0
        line = "nothing to resume: demo-1 succeeded. To run the pipeline again: gridmill run demo"
        assert line in cli.err


def test_a_log_without_text_is_said_to_be_empty(cli: Cli) -> None:
    cli.fake.acts["first"] = Act.HANG
    cli("run", cli.file, "--detach")
    assert cli("logs", "demo-1", "second") == 0
    assert (cli.out, cli.err) == ("", "second has printed nothing: it has not started (blocked)\n")
    assert cli("logs", "demo-1", "second", "--search", "x") == 0
    assert cli.err == ""


def test_a_stopped_run_exits_as_interrupted(cli: Cli) -> None:
    cli.fake.acts["first"] = Act.HANG
    assert cli("run", cli.file, "--detach") == 0
    assert cli.out == "demo-1\n"
    assert cli("stop", "demo-1", "first") == 0
    assert cli("stop", "run", "demo") == 0
    assert cli.out == "demo-1 stopped\n"
    assert cli("stop", "demo") == 0  # may be repeated
    assert cli("stop", "a", "b", "c") == 2


def test_plan_and_apply(cli: Cli) -> None:
    assert cli("plan", cli.file) == 0
    assert "nothing measured yet" in cli.out
    assert "start_run demo" not in cli.fake.calls
    assert cli.json("plan", cli.file)["jobs"][1]["needs"] == ["first"]
    assert cli("apply", "-f", cli.file) == 0
    assert cli.out == "pipeline demo: 2 jobs\nskipped if nothing changed: first, second\n"


def test_status_shows_services_that_were_started_and_the_comparisons_of_aliases(
    cli: Cli,
) -> None:
    measured = PromotionMeasurement(candidate="w/m@2", serving="w/m@1", metric="rmse")
    both = "w/m@2 has rmse 0.4, w/m@1 has 0.5"
    waiting = Promotion(state=PromotionState.WAITING, measured=measured, reason=both)
    cli.fake._aliases["w/m@champion"] = Alias(
        id="w/m@champion", name="w/m", alias="champion", number=1, promotion=waiting
    )
    rain = Service(name="rain", model="w/m@1", version="w/m@1")
    cli.fake.kept_services = (
        ServiceView(service=rain, state=ServiceState.RUNNING, url="http://127.0.0.1:4000", ready=1),
        ServiceView(service=replace(rain, name="old"), state=ServiceState.STOPPED),
    )
    assert cli("status") == 0
    shown = " ".join(cli.out.split())
    assert "rain running w/m@1" in shown
    assert "old" not in shown
    assert f"alias w/m@champion waits for approval: {both}" in shown
    assert "gridmill promote model w/m@champion" in shown
    status = cli.json("status")
    assert [one["service"]["name"] for one in status["services"]] == ["rain"]
    assert [one["id"] for one in status["aliases"]] == ["w/m@champion"]


def test_status_of_the_grid_and_of_a_run(cli: Cli) -> None:
    cli.fake.acts["second"] = Act.HANG
    cli("run", cli.file, "--detach")
    assert cli("status") == 0
    assert "1 active run:" in cli.out
    assert cli("status", "demo") == 0
    assert "━━━━━━╌╌╌╌╌╌  50%" in cli.out
    assert cli.json("status")["control"]["active_runs"] == 1
    assert cli.json("status", "demo-1")["run"]["state"] == "active"
    cli("stop", "demo")
    assert cli("status", "demo", "--watch") == 0
    assert cli("status", "demo", "--watch", "--json") == 0
    assert json.loads(cli.out.splitlines()[-1])["run"]["state"] == "stopped"


def test_logs_of_all_of_one_and_the_last_lines(cli: Cli) -> None:
    cli("run", cli.file)
    cli.fake.emit("demo-1", "second", EventType.LOG, {"stream": "out", "text": "[bold]\nä\n"})
    assert cli("logs", "demo") == 0
    assert cli.out == "first | first starts\nsecond | second starts\nsecond | [bold]\nsecond | ä\n"
    assert cli("logs", "demo-1", "second", "-f") == 0
    assert cli.out.splitlines()[0] == "second starts"
    assert cli("logs", "demo-1/second", "--tail", "1") == 0
    assert cli.out == "ä\n"
    assert cli("logs", "demo", "--json") == 0
    assert [json.loads(line)["job"] for line in cli.out.splitlines()] == ["first", "second", "second"]
    assert cli("logs", "demo", "third") == 4


@pytest.mark.parametrize(
    "words",
    [
        ("run", "demo"),
        ("job", "demo", "first"),
        ("job", "demo-1/first"),
        ("attempt", "demo-1.first.1"),
        ("site", "local"),
        ("pipeline", "demo"),
        ("files", "demo/first"),
        ("resources", "big"),
        ("control",),
    ],
)
def test_show_any_noun(cli: Cli, words: tuple[str, ...]) -> None:
    cli("run", cli.file)
    cli("configure", "resource", "big", "--type", "command", "--memory", "1GiB")
    assert cli("show", *words) == 0
    assert cli.out.strip()
    assert cli.json("show", *words)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("show", "run", "none"), 4),
        (("show", "thing", "x"), 2),
        (("show", "run"), 2),
        (("list", "jobs"), 2),
        (("remove", "attempt", "demo-1.a.1"), 2),
        (("remove", "run", "none-1"), 4),
        (("remove", "resource", "none"), 4),
        (("run", "no-such-file.yaml"), 2),
        (("configure", "resource", "x", "--type", "training", "--memory", "much"), 2),
        (("alter", "resource", "none", "--cpus", "1"), 4),
        (("nonsense",), 2),
        (("run",), 2),
    ],
)
def test_what_cannot_be_done_is_said_without_a_traceback(cli: Cli, words: tuple[str, ...], code: int) -> None:
    assert cli(*words) == code
    assert "Traceback" not in cli.err
    assert cli.err.strip()


def test_errors_as_json_have_the_one_body(cli: Cli) -> None:
    body = cli.json("show", "run", "none")
    assert body["code"] == "not-found"
    assert "none" in body["message"]


def test_list_each_noun(cli: Cli) -> None:
    assert cli("list", "runs") == 0
    assert "there are no runs" in cli.err
    cli("run", cli.file)
    cli("configure", "resource", "big", "--type", "command", "--rows", "1M")
    for noun in ("runs", "resource", "sites", "pipelines", "files", "artifacts"):
        assert cli("list", noun) == 0
        assert len(cli.out.splitlines()) >= 2
        assert len(cli.json("list", noun)) >= 1
    assert cli.json("list")["run"] == 1


def test_resources_are_configured_altered_removed(cli: Cli) -> None:
    assert (
        cli("configure", "resource", "big", "--type", "training", "--memory", "4GiB", "--workers", "2") == 0
    )
    assert cli.out.startswith("resource big (training): 2 workers, each 1 CPU, 4 GiB")
    assert cli("alter", "resource", "big", "--rows", "10k", "--job", "a", "--job", "b") == 0
    body = cli.json("alter", "resource", "big", "--keep", "1m")
    assert body["resource"]["memory_bytes"] == 4 * 2**30
    assert body["resource"]["size"]["rows"] == 10_000
    assert body["resource"]["jobs"] == ["a", "b"]
    assert cli("alter", "resource", "big") == 2
    assert cli("remove", "resource", "big") == 0


def test_sites_are_added_configured_removed(cli: Cli) -> None:
    assert cli("add", "site", "lab", "--kind", "slurm", "--set", "partition=gpu", "--set", "qos=low") == 0
    assert cli.out.startswith("site lab (slurm): 1 node")
    assert cli("add", "site", "lab", "--kind", "slurm") == 5
    assert "other settings" in cli.err
    body = cli.json("configure", "site", "lab", "--address", "ssh://me@login", "--set", "qos=")
    assert body["settings"] == {"partition": "gpu"}
    assert body["address"] == "ssh://me@login"
    assert cli("configure", "site", "none", "--set", "a=b") == 4
    assert cli("configure", "site", "lab", "--set", "nothing") == 2
    assert cli("add", "site", "lab", "--kind", "unknown") == 2
    assert cli("remove", "site", "lab") == 0
    assert [site["name"] for site in cli.json("list", "sites")] == ["local"]


def test_report_schema_version_doctor(cli: Cli) -> None:
    cli("run", cli.file)
    assert cli("report", "demo", "-o", cli.home / "r.html") == 0
    assert (cli.home / "r.html").exists()
    assert cli("report", "demo", "-o", "-") == 0
    assert "<title>demo-1" in cli.out
    assert cli.json("schema")["$schema"].startswith("https://json-schema.org/")
    assert cli("version") == 0
    assert cli.json("version")["gridmill"]
    cli("doctor")
    assert "storage root" in cli.out
    assert {check["what"] for check in cli.json("doctor")} >= {"python", "home", "cgroups"}


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:8700", "8700", "example.org:1", "127.0.0.1:x", "127.0.0.1:99999"]
)
def test_up_listens_on_this_machine_only(cli: Cli, listen: str) -> None:
    assert cli("up", "--listen", listen) == 2
    assert cli.err.startswith("error: ")


def test_a_defect_is_logged_to_a_file_and_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDMILL_HOME", str(cli.home))
    cli.fake = BrokenGrid()
    assert cli("status", "demo") == 70
    assert "Traceback" not in cli.err
    assert str(cli.home / "gridmill-errors.log") in cli.err
    assert "the detail" in (cli.home / "gridmill-errors.log").read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_has_json(name: str, cli: Cli) -> None:
    assert cli(name, "--help") == 0
    assert "--json" in cli.out or name == "ssh"  # a session has no result
    assert load(name).help.splitlines()[0].rstrip(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_examples_that_are_read(name: str) -> None:
    lines = EXAMPLES[name]
    assert len(lines) >= 2
    for line in lines:
        words = shlex.split(line.partition(" > ")[0])
        assert words[0] == name
        with load(name).make_context(name, words[1:], resilient_parsing=False):
            pass
    assert f"gridmill {lines[0]}" in load(name).epilog


def test_help_loads_nothing_heavy_and_names_every_command() -> None:
    heavy = ("numpy", "duckdb", "sqlalchemy", "pydantic", "httpx", "fastapi", "rich", "msgspec", "uvicorn")
    code = (
        "import sys\nfrom gridmill.__main__ import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print('loaded', [m for m in {heavy!r} if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "loaded []" in said
    for name in COMMANDS:
        assert f"\n  {name} " in said


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["run", "--help"]])
def test_stored_help_is_printed_without_typer(words: list[str]) -> None:
    code = (
        f"import os, sys\nfrom gridmill.__main__ import program\nsys.argv[1:] = {words!r}\n"
        "slow = {'typer', 'pathlib', 'dataclasses'}\n"
        "os._exit = lambda code: print('loaded', code, sorted(slow & set(sys.modules)))\n"
        "program()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    text, _, loaded = ended.stdout.rpartition("loaded")
    assert text.startswith("Usage: gridmill ")
    assert loaded == " 0 []\n"


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        ([], 80),
        (["--help"], 79),
        (["run", "--help"], 60),
        (["nothing", "--help"], 80),
        (["../README", "--help"], 80),
        (["--home", "--help"], 80),
        (["start", "backfill", "--help"], 80),
        (["run", "--json"], 80),
    ],
)
def test_other_lines_and_narrow_terminals_are_left_to_typer(words: list[str], columns: int) -> None:
    assert stored_help(words, {"COLUMNS": str(columns)}) is None


def test_set_needs_a_value() -> None:
    from gridmill.cli.run import read_set

    assert read_set(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(InputError, match="--set v is given twice: '2' and '3'"):
        read_set(["v=2", "v=3"])
    with pytest.raises(InputError):
        read_set(["a"])


def test_completion_names_commands(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_GRIDMILL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "gridmill st")
    monkeypatch.setenv("COMP_CWORD", "1")
    cli()
    assert {"start", "status", "stop"} <= set(cli.out.split())


def test_a_former_name_of_a_command_gives_the_new_one(cli: Cli) -> None:
    assert cli("import", "weather and more.zip") == 2
    assert "`gridmill import` is now `gridmill restore`" in cli.err
    assert "Write `gridmill restore 'weather and more.zip'`." in cli.err


def test_export_writes_a_version_and_path_says_where_it_is(cli: Cli, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2], "y": ["a", None]}), tmp_path / "part-00000.parquet")
    output = Output(kind=ArtifactKind.DATASET, uri=tmp_path.name)
    cli.fake.root = str(tmp_path.parent)
    made = Artifact(id="p/d@1", name="p/d", number=1, output=output, fingerprint="f")
    cli.fake._artifacts[made.id] = made
    assert cli("export", "p/d@1", "--to", "-") == 0
    assert cli.out == '"x","y"\n1,"a"\n2,\n'
    target = tmp_path.parent / f"{tmp_path.name}-x.parquet"
    assert cli("export", "p/d", "--to", target, "--columns", "x", "--json") == 0
    assert json.loads(cli.out)["rows"] == 2
    assert pq.read_table(target).to_pydict() == {"x": [1, 2]}
    assert cli("export", "p/d", "--to", target) == 2
    assert "the file exists already" in cli.err
    assert cli("path", "p/d") == 0
    assert cli.out == f"{tmp_path}\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["weather", "-o", "w.zip"], "Write `gridmill backup weather -o w.zip`."),
        (["weather", "shops", "--output", "w.zip"], "Write `gridmill backup weather shops -o w.zip`."),
        (["p/d", "p/e", "--to", "x.csv"], "`gridmill export` writes only one version"),
        (["p/d"], "--to d.csv, d.parquet"),
        (["p/d", "--to", "x.xlsx"], "there is no"),
    ],
)
def test_export_says_what_it_needs(cli: Cli, words: list[str], text: str) -> None:
    assert cli("export", *words) in (2, 4)
    assert text in cli.err
