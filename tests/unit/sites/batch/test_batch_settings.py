"""The settings of a batch site."""

import pytest

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError
from gridmill.sites.batch.settings import BatchSettings, bucket_options, read

SETTINGS = {"service": "aws", "bucket": "s3://bucket/prefix", "cpus": "4", "memory": "16GiB", "gpus": "2"}


def parsed(**more: str) -> BatchSettings:
    return read(Site(name="s", kind=SiteKind.BATCH, settings={**SETTINGS, **more}))


def test_a_job_costs_its_largest_part_of_a_machine() -> None:
    known = parsed(price_per_hour="3.06")
    assert known.price_of(Amounts(cpus=1, memory_bytes=8 * GIB), is_whole=False) == 1_530_000
    assert known.price_of(Amounts(cpus=1, memory_bytes=GIB, gpus=2), is_whole=False) == 3_060_000
    assert known.price_of(Amounts(cpus=1, memory_bytes=GIB), is_whole=True) == 3_060_000
    assert parsed().price_of(Amounts(cpus=1, memory_bytes=GIB), is_whole=False) is None


@pytest.mark.parametrize(
    ("more", "region"),
    [
        ({}, "eu-central-1"),
        ({"bucket_region": "us-west-2"}, "us-west-2"),
        ({"bucket_endpoint": "https://store.example.com"}, ""),
        ({"bucket": "gs://bucket/prefix"}, ""),
    ],
)
def test_requests_to_the_bucket_are_signed_for_its_region(more: dict[str, str], region: str) -> None:
    site = Site(name="s", kind=SiteKind.BATCH, settings={**SETTINGS, "region": "eu-central-1", **more})
    assert read(site).bucket_region == region
    assert bucket_options(site, read(site)).get("region", "") == region


def test_a_shared_root_may_have_spaces() -> None:
    assert parsed(shared_root="/mnt/my data/ä/").shared_root == "/mnt/my data/ä"


@pytest.mark.parametrize(
    "wrong",
    [
        {"shared_root": "data"},
        {"shared_root": "/a/../b"},
        {"shared_root": "/a\nb"},
        {"price_per_hour": "three"},
        {"currency": "dollars"},
        {"bucket_region": "Frankfurt!"},
        {"time_limit": "15d", "service": "gcp", "region": "europe-west4"},
        {"time_limit": "15d", "platform": "FARGATE"},
    ],
)
def test_a_wrong_setting_is_refused_with_its_place(wrong: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        parsed(**wrong)
    assert caught.value.place == f"site s: settings.{next(iter(wrong))}"
