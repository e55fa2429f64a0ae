"""What a service must survive: slow and broken clients, huge bodies, models that fail, hang or leak."""

import gzip
import http.client
import json
import os
import resource
import signal
import socket
import ssl
import time
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.served_models import linear_model, order_of, row
from tests.kit.services import Load, Service, wait_for

pytestmark = pytest.mark.e2e
BODY = {"rows": [row()]}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("abuse")
    with Service(folder / "s", order_of(linear_model(folder / "m"), max_body_bytes=1 << 20)) as service:
        yield service
        pids = service.ready_pids()
        assert service.report().restarts == 0, service.log()
        assert len(pids) == 1
        assert service.stop() == 0


def answer(port: int, content: bytes) -> bytes:
    """What the service sends for these bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        with suppress(OSError):
            client.sendall(content)
            client.shutdown(socket.SHUT_WR)
        data = b""
        # the service may close the connection before it has read everything
        with suppress(ConnectionResetError):
            while piece := client.recv(1 << 16):
                data += piece
        return data


def test_a_body_of_100_megabytes_is_refused_and_costs_no_memory(service):
    before = service.report().replicas[0].memory_bytes
    for chunked in (False, True):
        connection = http.client.HTTPConnection("127.0.0.1", service.report().port, timeout=60)
        block = b" " * (1 << 20)
        connection.request(
            "POST", "/predict", (block for _ in range(100)), _length(chunked), encode_chunked=chunked
        )
        response = connection.getresponse()
        assert response.status == 413
        response.read()
        connection.close()
    assert service.call("/predict", BODY)[0] == 200
    wait_for("a new report", lambda: service.report().written_at > time.time() - 0.5)
    assert service.report().replicas[0].memory_bytes < before + (64 << 20)


def _length(chunked: bool) -> dict[str, str]:
    return {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(100 << 20)}


def test_thousands_of_idle_connections_do_not_keep_others_from_an_answer(service):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10_000 if hard == resource.RLIM_INFINITY else min(10_000, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 400), hard))
    try:
        with ExitStack() as open_clients:
            for _ in range(wanted):
                client = socket.create_connection(("127.0.0.1", service.report().port), timeout=30)
                open_clients.enter_context(client)
            assert service.call("/predict", BODY)[0] == 200
        assert service.call("/predict", BODY)[0] == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_requests_that_are_never_complete_do_not_hold_up_others(service):
    port = service.report().port
    with ExitStack() as open_clients:
        for begin in (
            b"POST /predict HTTP/1.1\r\n",
            b"POST /predict HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",
        ):
            for _ in range(400):
                client = socket.create_connection(("127.0.0.1", port), timeout=30)
                open_clients.enter_context(client)
                client.sendall(begin)
        assert service.call("/predict", BODY)[0] == 200


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 200_000 + b"\r\n\r\n",
        b"POST /predict HTTP/9.9\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(service, content):
    data = answer(service.report().port, content)
    assert not data or data.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), data[:200]
    assert service.call("/v2/health/ready")[0] == 200


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(["temp", "wind speed", "city", "rows", "inputs", "outputs", "parameters", "x"])
BODIES = (
    st.binary(max_size=200)
    | JSON_VALUES.map(lambda value: json.dumps(value).encode())
    | st.lists(st.dictionaries(NAMES, JSON_VALUES, max_size=4), max_size=3).map(
        lambda rows: json.dumps({"rows": rows}).encode()
    )
    | st.lists(
        st.fixed_dictionaries(
            {
                "name": NAMES,
                "shape": JSON_VALUES | st.just([1]),
                "datatype": st.sampled_from(["FP64", "BYTES", "BOOL", "x"]),
            },
            optional={
                "data": JSON_VALUES,
                "parameters": st.fixed_dictionaries({"binary_data_size": JSON_VALUES}),
            },
        ),
        max_size=4,
    ).map(lambda tensors: json.dumps({"inputs": tensors}).encode())
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Content-Type": st.sampled_from(["application/json", "application/x-ndjson", "text/csv", ""]),
        "Content-Encoding": st.sampled_from(["gzip", "deflate", "br", "identity"]),
        "Accept-Encoding": st.sampled_from(["gzip", "*;q=0", ",;,"]),
        "Inference-Header-Content-Length": st.sampled_from(["0", "5", "20", "-1", "999", "x"]),
        "X-Request-Id": st.text(
            st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=9
        ),
    },
)
PATHS = st.sampled_from(
    [
        "/predict",
        "/predict?version=%00",
        "/predict?version=1&version=9",
        "/v2/models/weather/infer",
        "/v2/models/weather/versions/1/infer",
        "/v2/models/%2e%2e/infer",
        "/v2/repository/index",
        "/%ff/%00",
    ]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=PATHS, body=BODIES, headers=HEADERS, packed=st.booleans())
def test_no_input_makes_the_server_fail(service, path, body, headers, packed):
    connection = http.client.HTTPConnection("127.0.0.1", service.report().port, timeout=30)
    content = gzip.compress(body) if packed and headers.get("Content-Encoding") == "gzip" else body
    try:
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        connection.request("POST", path, content, encoded)
        response = connection.getresponse()
        response.read()
        assert response.status < 500
    finally:
        connection.close()


def test_a_replica_that_stops_responding_is_replaced_alone(tmp_path):
    order = order_of(linear_model(tmp_path / "m"), replicas=2, hang_seconds=8.0)
    with Service(tmp_path / "s", order) as service:
        stopped, other = sorted(service.ready_pids())
        os.kill(stopped, signal.SIGSTOP)
        wait_for("a successor", lambda: len(service.ready_pids() - {stopped}) == 2)
        assert other in service.ready_pids()
        assert "no sign of life" in service.report().last_failure
        assert service.call("/predict", BODY)[0] == 200


def test_a_replica_above_its_memory_limit_is_replaced_without_a_failed_request(tmp_path):
    model = linear_model(tmp_path / "m")
    with Service(tmp_path / "s", order_of(model)) as service:
        needed = service.report().replicas[0].memory_bytes
        # the limit is just below what a replica needs, so that each replica is replaced when it is ready
        limited = replace(service.order, generation=2, memory_bytes=int(needed * 0.9))
        pids = service.ready_pids()
        with Load(service.report().port, BODY) as load:
            service.update(limited)
            wait_for("two replacements", lambda: pids.update(service.ready_pids()) or len(pids) >= 3)
        assert load.failures == []
        assert set(load.statuses) == {200}


@pytest.mark.soak
def test_the_memory_of_a_replica_does_not_grow_under_load(tmp_path):
    order = order_of(linear_model(tmp_path / "m"))
    with Service(tmp_path / "s", order) as service:

        def resident() -> int:
            return service.report().replicas[0].memory_bytes

        with Load(service.report().port, {"rows": [row()] * 20}, clients=8) as load:
            load.wait_for_more(20_000)
            settled = resident()
            load.wait_for_more(60_000)
            assert resident() < settled * 1.05
        assert load.failures == []
        assert set(load.statuses) == {200}


def test_a_service_with_a_certificate_answers_over_tls(tmp_path):
    pytest.importorskip("cryptography")
    certificate, key = _certificate(tmp_path)
    order = order_of(linear_model(tmp_path / "m"), certificate_file=certificate, key_file=key)
    with Service(tmp_path / "s", order) as service:
        report = service.report()
        assert report.address.startswith("https://")
        context = ssl.create_default_context(cafile=certificate)
        connection = http.client.HTTPSConnection("localhost", report.port, context=context, timeout=30)
        connection.request("POST", "/predict", json.dumps(BODY))
        assert connection.getresponse().status == 200
        connection.close()
        with pytest.raises((OSError, http.client.HTTPException)):
            service.call("/predict", BODY)


def _certificate(folder):
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(folder / "cert.pem"), str(folder / "key.pem")
