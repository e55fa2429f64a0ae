"""The examples whose sources are servers, against real ones: all at first, then what is new, then nothing."""

import datetime
import ipaddress
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.e2e.conftest import Place, a_place
from tests.kit import objectstore, redisserver
from tests.kit.markdown import ROOT
from tests.kit.postgresql import PostgresqlServer

pytestmark = pytest.mark.e2e


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path) as it:
        yield it


def take(place: Place, example: str) -> Path:
    """A copy of the example, so that what its scripts make is not left in the tree."""
    return Path(shutil.copytree(ROOT / "examples" / example, place.folder / example))


def script(file: Path, *words: object, **env: str) -> None:
    done = subprocess.run(
        [sys.executable, file, *map(str, words)],
        cwd=file.parent,
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def load(place: Place, example: Path, *words: str, **env: str) -> dict[str, tuple[str, int | None]]:
    """Run the example; what each job became, and how many rows its version has."""
    done = place.json("run", example / "pipeline.yaml", *words, **env)
    assert done["run"]["state"] == "succeeded", [one["job"]["message"] for one in done["jobs"]]
    return {
        one["job"]["job"]["name"]: (one["job"]["state"], one["artifacts"][0]["output"]["rows"])
        for one in done["jobs"]
    }


def holds(folder: Path, secret: str) -> bool:
    """Whether any file below holds the text."""
    return any(secret.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def follow_shop(place: Place, example: Path, url: tuple[str, ...], *words: str, **env: str) -> None:
    script(example / "make_shop.py", *url)
    assert load(place, example, *words, **env)["sales"] == ("succeeded", 200)
    script(example / "make_shop.py", *url)
    again = load(place, example, *words, **env)
    assert again["sales"] == ("succeeded", 400)
    assert again["shops"] == ("unchanged", 3)
    assert again["revenue"] == ("succeeded", 4), "two cities, two days"


def test_a_database_in_a_file(place: Place):
    example = take(place, "sql")
    follow_shop(place, example, ())
    assert {state for state, _ in load(place, example).values()} == {"unchanged"}


@pytest.mark.long
def test_the_same_in_postgresql_by_its_url(place: Place, postgresql: PostgresqlServer):
    url = postgresql.url(postgresql.create_database())
    shown = url.replace(postgresql.password, "${env:SHOP_PASSWORD}")
    env = {"SHOP_PASSWORD": postgresql.password}
    follow_shop(place, take(place, "sql"), (url,), "--set", f"url={shown}", **env)
    assert not holds(place.home, postgresql.password)


def certificate(folder: Path) -> Path:
    """A self-signed one for 127.0.0.1, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a server of the tests")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    signed = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now - day, now + day
        )
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "server.pem"
    file.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.mark.long
@pytest.mark.parametrize("kind", ["http", "https"])
def test_a_file_of_a_web_server(place: Place, kind: str):
    example = take(place, "http")
    pem = certificate(place.folder) if kind == "https" else None
    env = {"WEATHER_TOKEN": "a-token-of-the-tests"} | ({"SSL_CERT_FILE": str(pem)} if pem else {})
    log = place.folder / "requests"
    words = [sys.executable, example / "serve.py", example / "data", "0", *([pem] if pem else [])]
    with (
        log.open("w") as to,
        subprocess.Popen(words, env=os.environ | env, stdout=subprocess.PIPE, stderr=to, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address.startswith(f"{kind}://")
            for number in range(2 if pem else 3):
                look_at_the_weather(place, example, number, ("--set", f"server={address}"), env)
        finally:
            server.terminate()
    answers = [line.split('" ')[1][:3] for line in log.read_text().splitlines()]
    assert answers == ["200", "304", "200"][: 2 if pem else 3]
    assert not holds(place.home, "a-token-of-the-tests")


def look_at_the_weather(
    place: Place, example: Path, number: int, words: tuple[str, ...], env: dict[str, str]
) -> None:
    """All rows at first; then none is new; then one is."""
    if number == 2:
        with (example / "data" / "weather.csv").open("a") as file:
            file.write("coast,2026-01-03T00:00:00Z,1.5\n")
    state, rows, days = [("succeeded", 32, 4), ("unchanged", 32, 4), ("succeeded", 33, 5)][number]
    assert load(place, example, *words, **env) == {"weather": (state, rows), "daily": (state, days)}


@pytest.mark.long
def test_objects_of_a_store_that_speaks_s3(place: Place):
    example = take(place, "objects")
    with objectstore.object_store() as endpoint:
        if endpoint is None:
            pytest.skip(objectstore.HOW_TO_GET_IT)
        objectstore.make_bucket(endpoint, "lake-of-tests")
        words = ("--set", "bucket=lake-of-tests", "--set", f"endpoint={endpoint}")
        put, env = ("lake-of-tests", endpoint), objectstore.KEYS
        script(example / "put_events.py", *put, "2026-01-30", "2026-01-31", **env)
        assert load(place, example, *words, **env)["events"] == ("succeeded", 1000)
        script(example / "put_events.py", *put, "2026-02-01", **env)
        assert load(place, example, *words, **env) == {
            "events": ("succeeded", 1500),
            "users": ("succeeded", 40),
        }


@pytest.mark.long
def test_entries_of_a_stream(place: Place):
    example = take(place, "stream")
    with redisserver.redis_server(place.folder) as port:
        if port is None:
            pytest.skip(redisserver.HOW_TO_GET_IT)
        env = {"REDIS_PASSWORD": redisserver.PASSWORD}
        words = ("--set", f"url=redis://:${{env:REDIS_PASSWORD}}@127.0.0.1:{port}/0")
        url = f"redis://:{redisserver.PASSWORD}@127.0.0.1:{port}/0"
        for rows in (700, 1400):
            script(example / "add_clicks.py", url, 700)
            done = load(place, example, *words, **env)
            assert done == {"clicks": ("succeeded", rows), "spent": ("succeeded", rows)}
