from collections.abc import Mapping

import pytest

from gridmill.domain.job import JobKind
from gridmill.domain.lease import RentalTerms
from gridmill.domain.rental_terms import parse_micros, rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError


def _terms(of_resource: Mapping[str, str], of_site: Mapping[str, str] | None = None) -> RentalTerms:
    site = Site(name="aws", kind=SiteKind.CLOUD, settings=of_site or {})
    resource = Resource(name="burst", type=JobKind.TRAINING, site="aws", gpus=1, settings=of_resource)
    return rental_terms(resource, site)


def test_all_settings_are_parsed_with_their_units():
    terms = _terms(
        {
            "instance_type": "g5.xlarge",
            "gpu_memory": "24GB",
            "region": "us-",
            "spot": "true",
            "max_price": "1.50",
            "max_cost": "10",
            "currency": "EUR",
            "max_hours": "4",
            "dead_man": "10m",
            "keep_on_failure": "30m",
            "accept_no_self_end": "yes",
            "image": "ami-0123456789abcdef0",
            "disk": "200GB",
        }
    )
    assert terms == RentalTerms(
        instance_type="g5.xlarge",
        gpu_memory_bytes=24 * 10**9,
        region="us-",
        spot=True,
        max_price_micros=1_500_000,
        max_cost_micros=10_000_000,
        currency="EUR",
        max_seconds=4 * 3600.0,
        dead_man_seconds=600.0,
        keep_on_failure_seconds=1800.0,
        accept_no_self_end=True,
        image="ami-0123456789abcdef0",
        disk_bytes=200 * 10**9,
    )


def test_a_resource_without_settings_has_the_default_terms():
    assert _terms({}) == RentalTerms()


def test_settings_of_the_resource_replace_settings_of_the_site_and_an_empty_one_removes_them():
    site = {
        "region": "eu-",
        "max_price": "2",
        "image": "ami-1",
        "regions": "eu-west-1,eu-west-2",
        "profile": "x",
    }
    terms = _terms({"region": "us-", "image": ""}, site)
    assert (terms.region, terms.max_price_micros, terms.image) == ("us-", 2_000_000, "")


@pytest.mark.parametrize(("text", "seconds"), [("4", 14400), ("0.5", 1800), ("90m", 5400), ("2h", 7200)])
def test_max_hours_without_a_unit_are_hours(text, seconds):
    assert _terms({"max_hours": text}).max_seconds == seconds


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("max_price", "1,50"),
        ("max_price", "-1"),
        ("max_price", "NaN"),
        ("max_price", "Infinity"),
        ("max_price", "0.0000001"),
        ("max_price", "1e99"),
        ("max_hours", "0"),
        ("max_hours", "forever"),
        ("dead_man", "5s"),
        ("keep_on_failure", "25h"),
        ("region", "US east"),
        ("currency", "usd"),
        ("spot", "maybe"),
        ("gpu_memory", "24"),
        ("disk", "100"),
        ("instance_type", "g5.xlarge; reboot"),
    ],
)
def test_an_invalid_value_is_refused_with_its_place_and_a_hint(name, text):
    with pytest.raises(InputError) as of_resource:
        _terms({name: text})
    assert of_resource.value.place == f"resource burst: settings.{name}"
    assert of_resource.value.hint
    with pytest.raises(InputError) as of_site:
        _terms({}, {name: text})
    assert of_site.value.place == f"site aws: settings.{name}"


def test_an_unknown_setting_of_the_resource_is_refused_with_the_near_name():
    with pytest.raises(InputError, match="no setting 'max_prize'") as error:
        _terms({"max_prize": "1"})
    assert "`max_price`" in error.value.hint
    assert error.value.place == "resource burst: settings.max_prize"


def test_money_is_exact():
    assert parse_micros("0.1") == 100_000
    assert parse_micros("0") == 0
    assert parse_micros("32.772999") == 32_772_999
