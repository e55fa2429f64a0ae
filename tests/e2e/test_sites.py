"""A second site: another machine, pretended on this one, whose real pods dial in over TLS."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gridmill.bootstrap.node import EmbeddedNode, embed
from gridmill.declarations import read_pipeline
from gridmill.domain.run import JobRun
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import FINISHED_RUNS, JobState, RunState
from gridmill.domain.views import RunView
from gridmill.errors import ConflictError, GridmillError, InputError, NotFoundError, PipelineError
from gridmill.settings import Settings, read_settings
from tests.e2e.conftest import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e

PIPELINE = """
pipeline: away
at: next
jobs:
  there: {command: "cat said.txt; echo home $GRIDMILL_HOME_IS_NOT_TOLD; pwd"}
  here: {command: pwd, at: local, needs: there}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings({"GRIDMILL_HOME": str(tmp_path / "home"), "GRIDMILL_GRACE": "1"})


def a_site(tmp_path: Path, **settings: str) -> Site:
    return Site(name="next", kind=SiteKind.SIMULATED, settings={"home": str(tmp_path / "next"), **settings})


def project(tmp_path: Path, text: str = PIPELINE) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "said.txt").write_text("carried along\n")
    (folder / "pipeline.yaml").write_text(text)
    return folder / "pipeline.yaml"


def run_of(settings: Settings, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "gridmill", "--home", str(settings.home), "run", str(file), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GRIDMILL_GRACE": "1"},
    )


def waited_for(node: EmbeddedNode, run_id: str) -> RunView:
    until = time.monotonic() + PATIENCE_SECONDS
    while (view := node.grid.run(run_id)).run.state not in FINISHED_RUNS:
        assert time.monotonic() < until, "the run does not end"
        node.grid.events(run_id, after="7" + 15 * "f", wait_seconds=0.05)
    return view


def jobs(view: RunView) -> dict[str, JobRun]:
    return {one.job.job.name: one.job for one in view.jobs}


def test_a_job_runs_where_it_is_to_with_its_code(settings: Settings, tmp_path: Path) -> None:
    node = embed(settings)
    added = node.grid.add_site(a_site(tmp_path))
    assert added.nodes
    assert added.nodes[0].capacity.cpus > 0
    node.close()
    done = run_of(settings, project(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"]["state"] == "succeeded"
    logs = subprocess.run(
        [sys.executable, "-P", "-m", "gridmill", "--home", str(settings.home), "logs", "away"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "there | carried along" in logs
    assert f"there | {tmp_path / 'next'}" in logs
    assert f"here | {settings.home}" in logs


def test_pods_elsewhere_outlive_the_control_node(settings: Settings, tmp_path: Path) -> None:
    """The next one listens at the same address with the same certificate, and takes the result."""
    flag = tmp_path / "go"
    waits = f"until [ -e {flag} ]; do sleep 0.05; done"
    text = f"pipeline: away\njobs: {{long: {{at: next, command: '{waits}'}}}}\n"
    node = embed(settings)
    node.grid.add_site(a_site(tmp_path))
    run_id = node.grid.start_run(read_pipeline(project(tmp_path, text))).run.id
    until = time.monotonic() + PATIENCE_SECONDS
    while jobs(node.grid.run(run_id))["long"].state != JobState.RUNNING:
        assert time.monotonic() < until
        time.sleep(0.02)
    node.close(tear_down=False)
    again = embed(settings)
    flag.touch()
    view = waited_for(again, run_id)
    assert view.run.state == RunState.SUCCEEDED
    assert jobs(view)["long"].attempts == 1
    again.close()


def test_a_pod_killed_elsewhere_is_seen_and_the_job_run_again(settings: Settings, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    first = f"[ -e {flag} ] || {{ touch {flag}; exec sleep 300; }}"
    text = f"pipeline: away\njobs:\n  long: {{at: next, command: '{first}; echo done'}}\n"
    node = embed(settings)
    node.grid.add_site(a_site(tmp_path))
    run_id = node.grid.start_run(read_pipeline(project(tmp_path, text))).run.id
    until = time.monotonic() + PATIENCE_SECONDS
    while not (pids := list((tmp_path / "next" / "pods").glob("*/pid"))):
        assert time.monotonic() < until
        time.sleep(0.02)
    while not flag.exists() or jobs(node.grid.run(run_id))["long"].state != JobState.RUNNING:
        assert time.monotonic() < until
        time.sleep(0.02)
    os.kill(int(pids[0].read_text().split()[0]), signal.SIGKILL)
    view = waited_for(node, run_id)
    assert view.run.state == RunState.SUCCEEDED
    assert jobs(view)["long"].attempts == 2
    node.close()


def test_a_site_is_changed_and_removed_only_when_it_is_free(settings: Settings, tmp_path: Path) -> None:
    node = embed(settings)
    site = a_site(tmp_path)
    assert node.grid.add_site(site) == node.grid.add_site(site)
    with pytest.raises(ConflictError, match="other settings"):
        node.grid.add_site(a_site(tmp_path, home=str(tmp_path / "third")))
    changed = node.grid.add_site(a_site(tmp_path, home=str(tmp_path / "third")), replace=True)
    assert changed.settings["home"] == str(tmp_path / "third")
    run_id = node.grid.start_run(read_pipeline(project(tmp_path))).run.id
    waited_for(node, run_id)
    with pytest.raises(ConflictError, match="deployment default-command-next-1 is running"):
        node.grid.remove_site("next")
    node.grid.release("default-command-next-1")
    until = time.monotonic() + PATIENCE_SECONDS
    while any(one.site == "next" for one in node.grid.deployments().items):
        assert time.monotonic() < until
        time.sleep(0.02)
    node.grid.remove_site("next")
    assert [one.name for one in node.grid.sites().items] == ["local"]
    node.close()


@pytest.mark.parametrize(
    ("site", "error", "said"),
    [
        (Site(name="next", kind=SiteKind.SIMULATED), InputError, "has no home"),
        (Site(name="next", kind=SiteKind.SIMULATED, settings={"hom": "x"}), InputError, "no setting 'hom'"),
        (Site(name="No", kind=SiteKind.SIMULATED), InputError, "cannot be the name of a site"),
        (Site(name="here", kind=SiteKind.LOCAL), InputError, "cannot be added"),
        (Site(name="farm", kind=SiteKind.CLOUD), InputError, "settings.provider: '' is not a known provider"),
    ],
)
def test_what_cannot_be_added_is_said(
    settings: Settings, site: Site, error: type[GridmillError], said: str
) -> None:
    node = embed(settings)
    with pytest.raises(error, match=said):
        node.grid.add_site(site)
    with pytest.raises(ConflictError, match="cannot be removed"):
        node.grid.remove_site("local")
    with pytest.raises(NotFoundError, match="no site 'x'"):
        node.grid.remove_site("x")
    assert len(node.grid.sites().items) == 1
    node.close()


def test_a_job_at_a_site_nobody_added_is_refused(settings: Settings, tmp_path: Path) -> None:
    node = embed(settings)
    with pytest.raises(PipelineError, match="there is no site 'next'"):
        node.grid.start_run(read_pipeline(project(tmp_path)))
    assert node.grid.runs().items == ()
    node.close()


def test_a_resource_at_another_site_than_the_job_is_refused(settings: Settings, tmp_path: Path) -> None:
    text = """
pipeline: away
resources: {small: {type: command}}
jobs: {one: {command: pwd, resource: small, at: next}}
"""
    node = embed(settings)
    node.grid.add_site(a_site(tmp_path))
    with pytest.raises(PipelineError, match="its resource 'small' is at site 'local'"):
        node.grid.start_run(read_pipeline(project(tmp_path, text)))
    node.close()
