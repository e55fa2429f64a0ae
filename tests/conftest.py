"""Fixtures that several folders of tests share, and the order of the files."""

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gridmill.telemetry import turn_off_telemetry
from tests.kit import at_end, left_behind
from tests.kit import mariadb as mariadb_kit
from tests.kit.left_behind import kinds_of_open_files, open_descriptors
from tests.kit.mariadb import MariadbServer, mariadb_server
from tests.kit.postgresql import HOW_TO_GET_IT, PostgresqlServer, postgresql_server

turn_off_telemetry()  # some tests import libraries before Gridmill

os.environ.setdefault("GRIDMILL_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
"""The folder of published data sets beside this repository; `.ci/run` and other clones name another."""

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""More threads than processors learn at once here: those that wait must not burn what others need."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
"""Tests start thousands of Pythons: where this is set, each of them would compile what it imports."""

settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")
"""How long an example takes says how busy the machine is; a test that passed draws the same again."""

LONGEST_FIRST = (
    "e2e/test_cluster.py",
    "e2e/test_sql_types.py",
    "docs/test_runs.py",
    "e2e/test_database_histories.py",
    "e2e/test_cluster_survives.py",
    "e2e/test_manifests.py",
    "e2e/test_ray_hosts.py",
    "e2e/test_sources_sql.py",
    "e2e/test_staging_bucket.py",
    "e2e/test_survive.py",
    "contract/test_site_ray.py",
    "e2e/test_farm.py",
    "e2e/test_program.py",
    "e2e/test_pod.py",
    "unit/jobs/dataset/test_dataset_label_clock.py",
    "e2e/test_on_postgresql.py",
    "e2e/test_crash.py",
    "unit/jobs/dataset/test_dataset_feeds.py",
    "e2e/test_slurm.py",
    "e2e/test_training_gang.py",
    "e2e/test_advise.py",
    "e2e/test_training_resumed.py",
    "e2e/test_join.py",
    "e2e/test_one_after_the_other.py",
    "e2e/test_parts.py",
    "e2e/test_custom.py",
)
"""Files that take minutes. Workers take whole files in this order: none is left alone with one at the end."""


_BEGAN = time.monotonic()
_RUN = pytest.StashKey[left_behind.Run]()
_LEFT = pytest.StashKey[list[str]]()
_OPEN = pytest.StashKey[int]()
MOST_LEFT_OPEN = 100
"""What a file of tests may leave open: servers that all tests share, and libraries, open a few files."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The time that a run may take on a machine of unknown speed."""
    parser.addoption(
        "--minutes", type=float, help="skip the tests that would start after this number of minutes"
    )
    parser.addoption(
        "--first",
        type=int,
        help="begin with the file of this number, counted from 0, instead of the longest file",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips the tests that would start too late, before the fixtures of the session are created."""
    minutes = item.config.getoption("minutes")
    if minutes is not None and time.monotonic() - _BEGAN > minutes * 60:
        pytest.skip(f"the {minutes:g} minutes of this run are over")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """A file whose tests leave many files or connections open fails: in a long run, they add up."""
    yield
    if nextitem is not None and nextitem.path == item.path:
        return
    before = item.session.stash.get(_OPEN, open_descriptors())
    if open_descriptors() > before + MOST_LEFT_OPEN:
        gc.collect()
    item.session.stash[_OPEN] = now = open_descriptors()
    if now > before + MOST_LEFT_OPEN:
        pytest.fail(f"the tests of {item.path.name} left {now - before} files open: {kinds_of_open_files()}")


def pytest_configure(config: pytest.Config) -> None:
    """The whole run, of which xdist's workers are parts, has a temporary folder of its own."""
    if left_behind.RUN in os.environ:
        return
    config.stash[_RUN] = run = left_behind.begin()
    if config.option.basetemp is None:
        config.option.basetemp = str(run.folder / "pytest")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """What tests left behind fails the run, whatever they said."""
    _end_forkserver()  # also that of one of xdist's workers, which the whole run may outlive
    at_end.STACK.close()
    gc.collect()  # models that tests have loaded end their processes
    run = session.config.stash.get(_RUN, None)
    if run is None:
        return
    session.config.stash[_LEFT] = left = run.left()
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    run.end(keep=session.testsfailed > 0)


def _end_forkserver() -> None:
    """What `multiprocessing` ends and removes only when this process ends."""
    if (forks := sys.modules.get("multiprocessing.forkserver")) is not None:
        forks._forkserver._stop()
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        util._run_finalizers()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The names of what was left behind, and where the files of tests that failed are."""
    run = config.stash.get(_RUN, None)
    if run is None:
        return
    for one in config.stash.get(_LEFT, []):
        terminalreporter.write_line(f"LEFT BEHIND {one}", red=True)
    if not run.alone:
        terminalreporter.write_line(
            "another run of the tests was in progress: not looked for files that both may have left"
        )
    if run.folder.exists():
        terminalreporter.write_line(f"what the failed tests wrote is in {run.folder}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """A run that ended before its session began leaves no folder either."""
    run = config.stash.get(_RUN, None)
    if run is not None and _LEFT not in config.stash:
        run.end(keep=False)
    if run is not None:
        os.environ.pop(left_behind.RUN, None)


def pytest_collection() -> None:
    """Importing all tests makes much and throws little away: not looked through for rubbish meanwhile."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays until the end, and is not looked through ever after."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files, then those that start real processes, then the quick ones. `--first` begins with
    another file and ends with the one before it, so that runs with `--minutes` skip different tests."""
    _give_each_an_id(items)
    folder = Path(__file__).parent
    if (first := config.getoption("first")) is not None:
        files = sorted({item.path for item in items})
        turns = {path: (number - first) % len(files) for number, path in enumerate(files)}
        items.sort(key=lambda item: turns[item.path])
        return

    def place(item: pytest.Item) -> tuple[int, bool]:
        name = item.path.relative_to(folder).as_posix()
        at = LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)
        return at, "unit" in item.path.relative_to(folder).parts

    items.sort(key=place)


def _give_each_an_id(items: Sequence[pytest.Item]) -> None:
    """Add the operation to the ids of the tests that schemathesis makes. With pytest 9.2, they have one id,
    and of tests with one id, pytest-xdist runs one, and says nothing about the others."""
    for item in items:
        _, bracket, operation = item.name.partition("[")
        if bracket and item.id.params is None:
            item._id = item.id.with_params(operation.removesuffix("]"))
    counts = Counter(item.nodeid for item in items)
    if alike := [one for one, count in counts.items() if count > 1]:
        raise pytest.UsageError(f"only one of the tests with this id would run: {alike[0]}")


@pytest.fixture(scope="session")
def _postgresql() -> Iterator[PostgresqlServer | None]:
    with postgresql_server() as server:
        yield server


@pytest.fixture
def postgresql(_postgresql: PostgresqlServer | None) -> PostgresqlServer:
    """A private PostgreSQL server, one for all tests of this process; skips where there is none."""
    if _postgresql is None:
        pytest.skip(HOW_TO_GET_IT)
    return _postgresql


@pytest.fixture
def postgresql_url(postgresql: PostgresqlServer) -> str:
    """The URL of a new, empty database of it, with the password."""
    return postgresql.url(postgresql.create_database())


@pytest.fixture(scope="session")
def _mariadb() -> Iterator[MariadbServer | None]:
    with mariadb_server() as server:
        yield server


@pytest.fixture
def mariadb(_mariadb: MariadbServer | None) -> MariadbServer:
    """A private MariaDB server, one for all tests of this process; skips where there is none."""
    if _mariadb is None:
        pytest.skip(mariadb_kit.HOW_TO_GET_IT)
    return _mariadb
