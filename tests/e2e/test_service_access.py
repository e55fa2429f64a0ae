"""A service of a home with TLS, API keys, CORS and a canary, as a client of another program uses it."""

import http.client
import json
import os
import ssl
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from gridmill.transport.certificate import make_certificate
from tests.e2e.conftest import Place, eventually
from tests.e2e.test_services import BODY, versions_of_a_model
from tests.kit.ports import free_port
from tests.kit.services import Load

pytestmark = pytest.mark.e2e


def status_of(
    port: int, certificate: Path, headers: dict[str, str], method: str = "POST"
) -> tuple[int, dict]:
    """The status and the headers of an answer over TLS."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    try:
        connection.request(method, "/predict", json.dumps(BODY), headers)
        response = connection.getresponse()
        response.read()
        return response.status, dict(response.headers)
    finally:
        connection.close()


def test_an_open_service_has_tls_and_keys_and_a_removed_key_is_refused(place: Place, tmp_path: Path) -> None:
    versions_of_a_model(place)
    port = free_port()
    start = ("start", "service", "rain", "--model", "w/m@1", "--host", "0.0.0.0", "--port", str(port))
    refused = place.gridmill(*start)
    assert refused.returncode != 0
    assert "no TLS (--certificate FILE --key FILE) and no API keys (--require-keys)" in refused.stderr
    assert "--accept-open" in refused.stderr

    certificate, key = make_certificate(tmp_path, time.time())
    tls = ("--certificate", str(certificate), "--key", str(key))
    cors = ("--cors", "https://shop.example", "--require-keys", "--max-body", "64KiB")
    view = place.json(*start, *tls, *cors)
    assert (view["state"], view["url"]) == ("running", f"https://0.0.0.0:{port}")
    assert status_of(port, certificate, {})[0] == 401

    made = place.gridmill("add", "key", "rain/shop")
    value = made.stdout.strip()
    assert value.startswith("gms_")
    assert len(value) == 4 + 64
    assert "not shown again" in made.stderr
    with_key = {"Authorization": f"Bearer {value}", "Origin": "https://shop.example"}
    assert eventually(lambda: status_of(port, certificate, with_key)[0] == 200)
    answered = status_of(port, certificate, with_key)[1]
    assert answered["access-control-allow-origin"] == "https://shop.example"
    shown = place.gridmill("show", "service", "rain").stdout
    assert "shop" in shown
    for folder in (place.home, tmp_path):
        found = [path for path in folder.rglob("*") if path.is_file() and value.encode() in _bytes(path)]
        assert found == []

    other = place.json("add", "key", "rain/app")["key"]
    assert place.gridmill("remove", "key", "rain/shop").returncode == 0
    assert eventually(lambda: status_of(port, certificate, with_key)[0] == 401)
    assert status_of(port, certificate, {"X-API-Key": other})[0] == 200
    assert place.json("stop", "service", "rain")["state"] == "stopped"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes() if os.access(path, os.R_OK) else b""
    except OSError:
        return b""


def test_a_canary_gets_its_share_and_no_request_fails_until_it_is_promoted_and_rolled_back(
    place: Place,
) -> None:
    versions_of_a_model(place)
    view = place.json("start", "service", "rain", "--model", "w/m@1")
    port = view["service"]["port"]
    with Load(port, BODY, clients=2) as load:
        shared = place.json("update", "service", "rain", "--canary", "w/m@2", "--weight", "50")
        assert (shared["state"], shared["service"]["canary"]) == ("running", "w/m@2")
        begin = len(load.versions)
        load.wait_for_more(60)
        assert set(load.versions[begin + 4 :]) == {"w/m@1", "w/m@2"}
        metrics = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
        counted = {
            version for version in ("w/m@1", "w/m@2") if f'requests_total{{version="{version}"' in metrics
        }
        assert counted == {"w/m@1", "w/m@2"}
        promoted = place.json("promote", "service", "rain")
        assert (promoted["service"]["version"], promoted["service"]["canary"]) == ("w/m@2", "")
        begin = len(load.versions)
        load.wait_for_more(20)
        assert set(load.versions[begin + 4 :]) == {"w/m@2"}
        assert place.json("rollback", "service", "rain")["service"]["version"] == "w/m@1"
    assert load.failures == []
    assert set(load.statuses) == {200}
    assert place.json("stop", "service", "rain")["state"] == "stopped"
