"""The commands of services: options without an effect are refused, errors name the service, and a first API
key is in effect when its command ends."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from test_cli import Cli

from gridmill.cli.service_texts import describe_service
from gridmill.domain.drift import VersionDrift
from gridmill.domain.frozen import replace
from gridmill.domain.service import Service, ServiceState, ServiceView
from gridmill.domain.service_keys import NewServiceKey
from gridmill.domain.service_settings import NO_SETTINGS, ServiceSettings
from gridmill.domain.serving import ServiceReport
from gridmill.domain.serving import ServiceState as ProcessState
from gridmill.errors import NotFoundError
from gridmill.testing.fake_grid import FakeGrid

REPORT = ServiceReport(
    name="rain",
    pid=1,
    state=ProcessState.READY,
    generation=1,
    seen_generation=1,
    address="http://127.0.0.1:4000",
    host="127.0.0.1",
    port=4000,
    started_at=1.0,
    written_at=1.0,
)
RAIN = Service(name="rain", model="w/m@1", version="w/m@1", port=4000, report=REPORT)


class ServingGrid(FakeGrid):
    """A grid with one service. An update is in effect when the service was looked at twice."""

    def __init__(self) -> None:
        super().__init__()
        self.rain = RAIN
        self.looks = 0
        self.settings = NO_SETTINGS

    def service(self, name: str) -> ServiceView:
        if name != "rain":
            raise NotFoundError(f"there is no service {name!r}")
        self.looks += 1
        if self.looks > 2:
            report = replace(REPORT, generation=self.rain.generation)
            self.rain = replace(self.rain, report=report)
        state = ServiceState.RUNNING if self.rain.is_in_effect else ServiceState.UPDATING
        return ServiceView(service=self.rain, state=state, url=self.rain.url, ready=1)

    def update_service(
        self, name: str, *, settings: ServiceSettings = NO_SETTINGS, **other: object
    ) -> ServiceView:
        self.settings = settings
        return self.service(name)

    def add_service_key(self, name: str, key: str) -> NewServiceKey:
        settings = ServiceSettings(require_keys=self.rain.settings.require_keys is not False)
        self.rain = replace(self.rain, settings=settings, generation=2)
        return NewServiceKey(service=name, name=key, key="gms_1", created=0.0)


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(tmp_path, capfd)
    made.fake = ServingGrid()
    return made


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "a=1"), "--set is an option of runs"),
        (("--force",), "--force is an option of runs"),
        (("--only", "a"), "--only is an option of runs"),
        (("--detach",), "gridmill start service rain --no-wait"),
    ],
)
def test_an_option_of_runs_is_refused_with_a_service(
    cli: Cli, options: tuple[str, ...], message: str
) -> None:
    assert cli("start", "service", "rain", *options) == 2
    assert message in cli.err


@pytest.mark.parametrize(
    "words",
    [
        ("update", "service", "rain", "--weight", "nan"),
        ("update", "service", "rain", "--follow-weight", "nan"),
        ("update", "service", "rain", "--log-requests", "nan"),
        ("update", "service", "rain", "--rate", "inf"),
        ("configure", "resource", "servers", "--cpus", "inf"),
        ("configure", "project", "research", "--share", "nan"),
    ],
)
def test_a_number_that_is_not_finite_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli(*words) == 2
    assert f"{words[-1]} is not a finite number" in cli.err


def test_an_empty_value_unsets_a_setting(cli: Cli) -> None:
    assert isinstance(cli.fake, ServingGrid)
    empty = ("--follow-weight", "", "--timeout", "", "--queue-limit", "", "--features", "", "--host", "")
    assert cli("update", "service", "rain", *empty, "--max-batch", "8", "--certificate", "") == 0
    unset = ("host", "follow_percent", "queue_limit", "timeout_seconds", "features")
    assert cli.fake.settings == ServiceSettings(max_batch=8, certificate_file="", key_file="", unset=unset)
    assert cli("update", "service", "rain", "--follow-weight", "5", "--log-requests", "") == 0
    assert cli.fake.settings == ServiceSettings(follow_percent=5.0, unset=("log_fraction",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--follow-weight", "101"), "101 is not from 0 to 100"),
        (("--follow-weight", "-1"), "-1 is not from 0 to 100"),
        (("--max-batch", "0"), "0 is not at least 1"),
        (("--queue-limit", "many"), "'many' is not a number"),
    ],
)
def test_a_number_outside_its_range_is_refused(cli: Cli, words: tuple[str, ...], message: str) -> None:
    assert cli("update", "service", "rain", *words) == 2
    assert message in cli.err


def test_the_error_of_logs_names_the_service(cli: Cli) -> None:
    assert cli("logs", "service", "nope") == 4
    assert "there is no service 'nope'" in cli.err


def test_a_first_api_key_is_in_effect_when_the_command_ends(cli: Cli) -> None:
    assert cli("add", "key", "rain/shop") == 0
    assert cli.out == "gms_1\n"
    assert isinstance(cli.fake, ServingGrid)
    assert cli.fake.rain.is_in_effect


def test_a_key_of_a_service_that_requires_none_has_a_warning(cli: Cli) -> None:
    assert isinstance(cli.fake, ServingGrid)
    cli.fake.rain = replace(RAIN, settings=ServiceSettings(require_keys=False))
    assert cli("add", "key", "rain/shop") == 0
    assert "service rain does not require API keys: gridmill update service rain --require-keys" in cli.err


def test_the_drift_of_each_version_is_named() -> None:
    drifts = (VersionDrift(label="w/m@1"), VersionDrift(label="w/m@2"))
    report = replace(REPORT, drift=drifts)
    service = replace(RAIN, report=report, canary="w/m@2", canary_percent=10.0)
    parts = list(
        describe_service(ServiceView(service=service, state=ServiceState.RUNNING, ready=1, since=1.0))
    )
    output = StringIO()
    Console(file=output, width=200).print(*parts)
    assert "w/m@2: unknown: 0 of at least 500 rows" in output.getvalue()


@pytest.mark.parametrize(("fraction", "text"), [(1.0, "100 % of requests"), (0.0005, "0.05 % of requests")])
def test_the_logged_part_of_the_requests_is_a_short_percentage(fraction: float, text: str) -> None:
    service = replace(RAIN, settings=ServiceSettings(log_fraction=fraction))
    output = StringIO()
    Console(file=output, width=200).print(
        *describe_service(ServiceView(service=service, state=ServiceState.RUNNING, ready=1, since=1.0))
    )
    assert text in output.getvalue()


def test_the_end_of_an_earlier_process_is_shown() -> None:
    view = ServiceView(
        service=RAIN, state=ServiceState.RUNNING, last_end="started 2 times; the process before: x"
    )
    output = StringIO()
    Console(file=output, width=200).print(*describe_service(view))
    assert "started 2 times; the process before: x" in output.getvalue()
