"""A secret reaches the process that needs it, and no other process, file, log or report."""

import base64
import os
import signal
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.e2e.conftest import PATIENCE_SECONDS, Place
from tests.e2e.test_survive import pod_pids
from tests.kit.driver import control_node
from tests.kit.postgresql import PostgresqlServer

pytestmark = pytest.mark.e2e

VALUE = "q7-kJ0p@ss/w0rd-of-nobody"
FORMS = [VALUE.encode(), base64.b64encode(VALUE.encode())[:-2], b"q7-kJ0p%40ss%2Fw0rd-of-nobody"]

COMMAND = """\
pipeline: demo
jobs:
  show:
    retries: RETRIES
    command:
      run: |
        printf 'it is %.7s' "$TOKEN"; touch FOLDER/begun
        until [ -e FOLDER/go ]; do sleep 0.05; done
        printf '%s\\n' "${TOKEN#???????}"
        printf '%s' "$TOKEN" | base64
        printf '%s' "$TOKEN" > FOLDER/received
        echo '{"type": "metric", "name": "'"$TOKEN"'", "value": 1.5}' >&3
      env:
        TOKEN: {secret: token}
"""


def add(place: Place, name: str, value: str) -> None:
    file = place.folder / "value"
    file.write_text(value + "\n")
    done = place.gridmill("add", "secret", name, "--file", file)
    file.unlink()
    assert done.returncode == 0, done.stderr
    assert value not in done.stdout + done.stderr


def command(place: Place, retries: int = 0) -> Path:
    text = COMMAND.replace("FOLDER", str(place.folder)).replace("RETRIES", str(retries))
    return place.write(text.replace("${TOKEN#", "$${TOKEN#"))


def processes_with_value() -> dict[str, set[str]]:
    """The processes whose arguments or environment have the value, and the attempt in their environment."""
    found: dict[str, set[str]] = {"cmdline": set(), "environ": set()}
    for entry in Path("/proc").iterdir():
        for name, attempts in found.items():
            try:
                content = (entry / name).read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue
            if any(form in content for form in FORMS):
                words = content.split(b"\0")
                marks = [one.decode() for one in words if one.startswith(b"GRIDMILL_ATTEMPT=")]
                attempts.update(marks or [f"no attempt: {content[:100]!r}"])
    return found


def files_with_value(folder: Path) -> list[str]:
    found = []
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                content = (Path(at) / name).read_bytes()
            except OSError:
                continue  # a socket, or a file that was deleted meanwhile
            if any(form in content for form in FORMS):
                found.append(str(Path(at) / name))
    return found


def test_a_value_is_only_in_the_process_of_its_job(place: Place) -> None:
    add(place, "token", VALUE)
    run = place.start("run", command(place))
    place.wait_for("begun")
    assert processes_with_value() == {"cmdline": set(), "environ": {"GRIDMILL_ATTEMPT=demo-1.show.1"}}
    assert files_with_value(place.home) == []
    (place.folder / "go").touch()
    out, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, out + err
    assert (place.folder / "received").read_text() == VALUE
    shown = [out, err, *(place.gridmill(*words).stdout for words in SCREENS)]
    assert "it is ***" in "".join(shown)
    assert not any(form.decode() in text for form in FORMS for text in shown)
    assert files_with_value(place.home) == []
    assert (place.home / "secrets.key").stat().st_mode & 0o777 == 0o600


SCREENS = [
    ("logs", "demo"),
    ("logs", "demo", "--json"),
    ("show", "run", "demo-1", "--json"),
    ("show", "job", "demo-1/show", "--json"),
    ("show", "pipeline", "demo", "--json"),
    ("show", "secret", "token", "--json"),
    ("list", "secrets", "--json"),
]


def test_a_source_reads_a_database_with_a_password(postgresql: PostgresqlServer, place: Place) -> None:
    database = postgresql.create_database()
    postgresql.execute("CREATE TABLE sales AS SELECT x AS id FROM generate_series(1, 100) AS x", database)
    role = f"reader_{os.getpid()}"
    postgresql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{VALUE}'", database)
    postgresql.execute(f"GRANT SELECT ON sales TO {role}", database)
    try:
        address = f"postgresql://{role}:${{secret:shop-db}}@127.0.0.1:{postgresql.port}/{database}"
        text = "pipeline: shop\njobs:\n  sales:\n    sink:\n      source:\n        sql:\n"
        file = place.write(f"{text}          url: {address}\n          table: sales\n          cursor: id\n")
        refused = place.gridmill("run", file)
        assert refused.returncode == 2
        assert (
            "pipeline.yaml:7: jobs.sales.sink.source.sql.url: there is no secret 'shop-db'" in refused.stderr
        )
        add(place, "shop-db", "not the password")
        wrong = place.gridmill("run", file)
        assert wrong.returncode == 1
        assert "not the password" not in wrong.stdout + wrong.stderr
        add(place, "shop-db", VALUE)
        done = place.gridmill("run", file)
        assert done.returncode == 0, done.stdout + done.stderr
        assert place.gridmill("remove", "secret", "shop-db").returncode == 5
    finally:
        postgresql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}", database)
    table = place.home / "storage" / "sinks" / "shop" / "sales" / "table"
    assert DeltaTable(table).to_pyarrow_table().num_rows == 100
    assert files_with_value(place.home) == []
    assert not any(form.decode() in done.stdout + done.stderr for form in FORMS)


def test_a_killed_pod_costs_an_attempt_and_the_next_pod_asks_again(place: Place) -> None:
    add(place, "token", VALUE)
    run = place.start("run", command(place))
    place.wait_for("begun")
    (place.folder / "begun").unlink()
    os.kill(pod_pids(place)[0], signal.SIGKILL)
    place.wait_for("begun")
    (place.folder / "go").touch()
    out, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, out + err
    assert (place.folder / "received").read_text() == VALUE
    assert files_with_value(place.home) == []


@pytest.mark.long
@pytest.mark.parametrize("when", ["before-commit", "after-commit"])
@pytest.mark.parametrize("number", range(1, 9))
def test_a_control_node_killed_at_any_commit_sends_the_values_again(
    place: Place, when: str, number: int
) -> None:
    add(place, "token", VALUE)
    place.gridmill("down")
    (place.folder / "go").touch()
    file, log = command(place), place.folder / "log"
    settings = {"GRIDMILL_HOME": str(place.home), "GRIDMILL_FAULT": f"{when}:{number}"}
    killed = control_node(file, settings, log)
    assert killed in (0, -signal.SIGKILL), log.read_text()
    if killed:
        assert control_node(file, {**settings, "GRIDMILL_FAULT": ""}, log) == 0, log.read_text()
    assert (place.folder / "received").read_text() == VALUE, log.read_text()
    assert files_with_value(place.home) == []
