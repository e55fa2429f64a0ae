"""Advice from the command line, the client and over HTTP, on a grid in memory."""

import json
from pathlib import Path

import pytest
from tests.unit.cli.test_cli import Cli

from gridmill.api.app import make_app
from gridmill.domain.advice import Advice
from gridmill.domain.run import Run
from gridmill.domain.states import RunState
from gridmill.domain.views import RunView
from gridmill.errors import ConflictError, JobError, NotFoundError
from gridmill.http.server import serve
from gridmill.scheduler.advice import advise as advised
from gridmill.sdk.client import Client
from gridmill.sdk.discovery import OpenGrid, home_settings
from gridmill.sdk.grid_http import over_tcp
from gridmill.testing.fake_advising import ADVISED, known_of, parallel_attempt
from gridmill.testing.fake_grid import FakeGrid


class Learning(FakeGrid):
    """Knows nothing of ADVISED until it is probed; each probe ends as `ends` says."""

    ends = RunState.SUCCEEDED

    def advise(self, name: str) -> Advice:
        measured = [parallel_attempt(n, workers=w, work_seconds=60.0, share=s) for n, w, s in self.probed]
        found = advised(known_of(*measured))
        if found is None:
            raise ConflictError("no attempt has measured its workers yet")
        return found

    def probe(self, name: str, *, workers: int, share: float) -> RunView:
        self.probed.append((len(self.probed) + 1, workers, share))
        run = Run(
            id=f"weather-{len(self.probed)}",
            pipeline="weather",
            order=1,
            state=self.ends,
            created=0.0,
            probe="p",
        )
        self._views[run.id] = RunView(run=run, jobs=())
        return self._views[run.id]


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capfd)


def client_of(grid: FakeGrid, home: Path) -> Client:
    return Client(home_settings(home), dial=lambda: OpenGrid(grid=grid, close=lambda: None))


def test_it_is_told_in_words_and_a_table(cli: Cli) -> None:
    assert cli("advise", ADVISED) == 0
    for text in (
        "workers: ",
        "twice the workers give",
        "1 measured",
        "recommended",
        "Amdahl's law, serial",
    ):
        assert text in cli.out
    assert "`gridmill advise weather/predict --probe` runs these" in cli.out


def test_json_has_all_of_it(cli: Cli) -> None:
    assert cli("advise", ADVISED, "--json") == 0
    found = json.loads(cli.out)
    assert found["law"]["kind"] == "amdahl"
    assert [line["workers"] for line in found["forecasts"]][:3] == [1, 2, 4]


def test_an_unknown_job_is_one_error(cli: Cli) -> None:
    assert cli("advise", "weather/none") != 0
    assert cli.err.startswith("error: there is no job 'weather/none'")


def test_three_probes_are_enough(tmp_path: Path) -> None:
    grid = Learning()
    grid.probed = []
    told: list[tuple[int, float]] = []
    found = client_of(grid, tmp_path).advise(ADVISED, probe=True, on_probe=lambda *what: told.append(what))
    assert [(workers, round(share, 2)) for workers, share in told] == [(1, 0.05), (8, 0.13), (17, 0.28)]
    assert [one.workers for one in found.measured] == [1, 8, 17]


def test_a_probe_that_fails_is_said(tmp_path: Path) -> None:
    grid = Learning()
    grid.probed, grid.ends = [], RunState.FAILED
    with pytest.raises(JobError, match="probe weather-1 failed"):
        client_of(grid, tmp_path).advise(ADVISED, probe=True)


def test_a_probe_is_not_the_newest_run_of_its_pipeline(tmp_path: Path) -> None:
    grid = Learning()
    grid.probed = []
    grid.probe(ADVISED, workers=1, share=0.1)
    with pytest.raises(NotFoundError):
        client_of(grid, tmp_path).status("weather")


def test_it_is_the_same_over_http() -> None:
    server = serve(make_app(FakeGrid()))
    try:
        grid = over_tcp(server.address, None)
        assert grid.advise(ADVISED) == FakeGrid().advise(ADVISED)
        with pytest.raises(NotFoundError):
            grid.probe("weather/none", workers=2, share=0.1)
        grid.close()
    finally:
        server.stop()
