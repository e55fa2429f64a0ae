"""Completion of names: from a control node, from a home's records, and in silence where there is neither."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import Cli

from gridmill.domain.artifact import Artifact, ArtifactKind, Output
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.run import JobRun, Run
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import JobState, RunState
from gridmill.plugins import find
from gridmill.ports.store import Put


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(tmp_path, capfd)
    for _ in range(2):
        assert made("run", made.file) == 0
    model = Output(kind=ArtifactKind.MODEL, uri="x")
    made.fake._artifacts["demo/m@1"] = Artifact(
        id="demo/m@1", name="demo/m", number=1, output=model, fingerprint="f"
    )
    return made


def complete(cli: Cli, line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("_GRIDMILL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    cli()
    assert cli.err == ""
    return cli.out.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("gridmill logs ", ["demo-2", "demo-1"]),
        ("gridmill logs demo-1 f", ["first"]),
        ("gridmill stop demo-2 ", ["first", "second"]),
        ("gridmill show job demo-2 s", ["second"]),
        ("gridmill show model ", ["demo/m"]),
        ("gridmill show model demo/m@", ["demo/m@1"]),
        ("gridmill show files demo/", ["demo/second", "demo/first"]),
        ("gridmill show site ", ["local"]),
        ("gridmill remove pipeline d", ["demo"]),
        ("gridmill remove run ", ["demo-2", "demo-1"]),
        ("gridmill list runs --state st", ["stopping", "stopped"]),
        ("gridmill list runs --pipeline ", ["demo"]),
        ("gridmill compare ", ["demo/m"]),
        ("gridmill show nonsense ", []),
    ],
)
def test_names(cli: Cli, line: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(complete(cli, line, monkeypatch)) == sorted(names)


def test_a_pipeline_is_a_file_or_a_name(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.home / "sub").mkdir()
    (cli.home / "notes.txt").touch()
    assert {f"{cli.file}", f"{cli.home}/sub/"} <= set(complete(cli, f"gridmill run {cli.home}/", monkeypatch))
    assert complete(cli, f"gridmill plan {cli.home}/n", monkeypatch) == []
    assert complete(cli, "gridmill run de", monkeypatch) == ["demo"]


def recorded(home: Path) -> None:
    """A home with records, where no control node is up."""
    home.mkdir()
    store = find("stores", "sqlite")(home / "store.db")
    job = Job(name="load", command=CommandSpec(run="true"))
    run = Run(id="w-1", pipeline="w", order=1, state=RunState.SUCCEEDED, created=1.0)
    job_run = JobRun(
        id="w-1/load", run_id="w-1", pipeline="w", job=job, order=0, state=JobState.SUCCEEDED, resource="r"
    )
    made = [
        Artifact(
            id=f"w/load@{n}", name="w/load", number=n, fingerprint="f", output=Output(kind=kind, uri=str(n))
        )
        for n, kind in ((1, ArtifactKind.SINK), (2, ArtifactKind.SINK))
    ]
    nouns = [Pipeline(name="w", jobs=(job,)), run, job_run, *made, Site(name="far", kind=SiteKind.RAY)]
    store.commit([Put(noun=noun, expected=0) for noun in nouns])
    store.close()


def in_process(home: Path, line: str, shell: str = "bash", *options: str) -> tuple[str, str]:
    """What a process of its own writes, and the modules of ours that it loaded."""
    code = (
        "import sys, atexit\nfrom gridmill.__main__ import main\n"
        "loaded = lambda: print(*(m for m in sys.modules if m.startswith('gridmill.')), file=sys.stderr)\n"
        "atexit.register(loaded)\nmain()"
    )
    words = line.split(" ")
    given = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": line}
    given |= {"_GRIDMILL_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "GRIDMILL_HOME": str(home), **given},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout, ended.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_a_home_without_a_control_node_load_no_control_node(tmp_path: Path, shell: str) -> None:
    recorded(tmp_path / "home")
    out, loaded = in_process(tmp_path / "home", "gridmill logs w", shell)
    assert "w-1" in out
    assert "gridmill.stores.sql" in loaded
    assert not [
        name for name in ("gridmill.control", "gridmill.bootstrap.node", "gridmill.pod") if name in loaded
    ]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("gridmill logs w-1 ", ["load"]),
        ("gridmill show sink ", ["w/load"]),
        ("gridmill show sink w/load@", ["w/load@1", "w/load@2"]),
        ("gridmill show model ", []),
        ("gridmill show site ", ["far"]),
        ("gridmill run w", ["w"]),
    ],
)
def test_each_noun_of_the_records(tmp_path: Path, line: str, names: list[str]) -> None:
    recorded(tmp_path / "home")
    assert in_process(tmp_path / "home", line)[0].split() == names


def test_it_is_silent_and_makes_nothing_without_a_home(tmp_path: Path) -> None:
    out, err = in_process(tmp_path / "none", "gridmill logs ")
    assert out.strip() == ""
    assert all(word.startswith("gridmill") for word in err.split())
    assert not (tmp_path / "none").exists()


def test_it_is_silent_with_a_broken_store_and_with_a_socket_that_nobody_answers(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "store.db").write_text("no database")
    (home / "control.sock").touch()
    out, err = in_process(home, "gridmill logs ")
    assert out.strip() == ""
    assert all(word.startswith("gridmill") for word in err.split())
