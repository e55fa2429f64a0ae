"""The settings of a service: what they mean for its process, and which of them are refused."""

import pytest

from gridmill.domain.frozen import replace
from gridmill.domain.service_features import FeatureSettings
from gridmill.domain.service_settings import (
    MAY_BE_UNSET,
    NO_SETTINGS,
    ServiceSettings,
    check_settings,
    is_loopback,
    merged,
    with_settings,
)
from gridmill.domain.serving import ServedVersion, ServiceOrder
from gridmill.errors import InputError

ORDER = ServiceOrder(name="rain", versions=(ServedVersion(label="w/m@1", folder="/m"),))
PROTECTED = ServiceSettings(
    host="0.0.0.0", certificate_file="/tls/crt", key_file="/tls/key", require_keys=True
)


def test_without_settings_the_order_has_its_default_values() -> None:
    assert with_settings(ORDER, NO_SETTINGS, "/logs") == ORDER


def test_settings_reach_the_order_of_the_process() -> None:
    settings = merged(
        PROTECTED,
        ServiceSettings(
            cors_origins=("https://shop.example",), max_batch=8, timeout_seconds=2.5, log_fraction=0.5
        ),
    )
    order = with_settings(ORDER, settings, "/logs")
    assert (order.host, order.certificate_file, order.key_file) == ("0.0.0.0", "/tls/crt", "/tls/key")
    assert (order.cors_origins, order.max_batch, order.timeout_seconds) == (("https://shop.example",), 8, 2.5)
    assert order.request_log is not None
    assert (order.request_log.folder, order.request_log.fraction) == ("/logs", 0.5)
    assert not order.request_log.bodies
    assert (
        with_settings(ORDER, merged(settings, ServiceSettings(log_fraction=0.0)), "/logs").request_log is None
    )


def test_a_model_may_compute_for_the_whole_time_limit_of_a_request() -> None:
    order = with_settings(ORDER, ServiceSettings(timeout_seconds=60.0), "/logs")
    assert order.hang_seconds > order.timeout_seconds


def test_an_update_changes_only_the_settings_that_it_names() -> None:
    assert merged(PROTECTED, NO_SETTINGS) is PROTECTED
    after = merged(PROTECTED, ServiceSettings(certificate_file="", key_file="", accept_open=True))
    assert not after.has_tls
    assert (after.host, after.require_keys) == ("0.0.0.0", True)


def test_an_update_returns_the_settings_that_it_unsets_to_their_defaults() -> None:
    before = replace(PROTECTED, host=None, follow_percent=10.0, max_batch=8, features=FeatureSettings())
    change = ServiceSettings(timeout_seconds=2.0, unset=("follow_percent", "max_batch", "features"))
    assert merged(before, change) == replace(PROTECTED, host=None, timeout_seconds=2.0)
    assert merged(NO_SETTINGS, ServiceSettings(unset=MAY_BE_UNSET)) == NO_SETTINGS
    with pytest.raises(InputError, match="'pods' cannot be unset"):
        merged(before, ServiceSettings(unset=("pods",)))
    with pytest.raises(InputError, match="max_batch is set and unset in one change"):
        merged(before, ServiceSettings(max_batch=2, unset=("max_batch",)))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_a_service_that_only_its_machine_can_reach_needs_neither_tls_nor_keys(host: str) -> None:
    assert is_loopback(host)
    check_settings(ServiceSettings(host=host))


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (ServiceSettings(host="0.0.0.0"), "no TLS .* and no API keys"),
        (ServiceSettings(host="::", require_keys=True), "no TLS"),
        (ServiceSettings(host="ml.example", certificate_file="/c", key_file="/k"), "no API keys"),
    ],
)
def test_an_open_service_is_refused_unless_it_is_accepted(settings: ServiceSettings, missing: str) -> None:
    with pytest.raises(InputError, match=missing) as caught:
        check_settings(settings)
    assert "--accept-open" in caught.value.hint
    check_settings(merged(settings, ServiceSettings(accept_open=True)))


def test_a_service_with_tls_and_keys_is_accepted() -> None:
    check_settings(PROTECTED)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ServiceSettings(certificate_file="/c"), "--certificate needs --key"),
        (ServiceSettings(key_file="/k"), "--key needs --certificate"),
        (ServiceSettings(cors_origins=("shop.example",)), "is not an origin"),
        (ServiceSettings(cors_origins=("https://shop.example/path",)), "is not an origin"),
        (ServiceSettings(host="http://me"), "is not an address"),
        (ServiceSettings(log_bodies=True), "only with a fraction"),
        (ServiceSettings(log_fraction=1.5), "log_requests: 1.5 is not between 0 and 1"),
        (ServiceSettings(max_batch=0), "max_batch: 0 is not between 1 and 65536"),
        (ServiceSettings(timeout_seconds=0), "timeout: 0 s is not between 0.01 s and 3600 s"),
        (ServiceSettings(max_body_bytes=1), "max_body: 1 B is not between 1 KiB and 1 GiB"),
        (ServiceSettings(timeout_seconds=float("nan")), "nan s is not between 0.01 s and 3600 s"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: ServiceSettings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_settings(settings)
