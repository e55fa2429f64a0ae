"""How long a machine that exports its results to a bucket may be rented."""

import pytest

from gridmill.domain.job import JobKind
from gridmill.domain.rental_terms import rental_terms
from gridmill.domain.resource import Resource
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError


def resource(hours: str) -> Resource:
    return Resource(name="burst", type=JobKind.TRAINING, site="aws", settings={"max_hours": hours})


@pytest.mark.parametrize(("hours", "fits"), [("24", True), ("167", True), ("168", False)])
def test_signed_urls_last_until_an_hour_after_the_rental(hours: str, fits: bool) -> None:
    site = Site(name="aws", kind=SiteKind.CLOUD, settings={"export": "s3://bucket/results"})
    if fits:
        assert rental_terms(resource(hours), site).max_seconds == 3600 * float(hours)
    else:
        with pytest.raises(InputError, match="at most 7 days"):
            rental_terms(resource(hours), site)


def test_without_a_bucket_a_machine_may_be_rented_for_longer() -> None:
    site = Site(name="aws", kind=SiteKind.CLOUD)
    assert rental_terms(resource("300"), site).max_seconds == 300 * 3600
