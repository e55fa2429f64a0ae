"""The credentials of a farm's bucket come from secrets, and a new value opens the bucket again."""

from pathlib import Path

import pytest

from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError, NotFoundError
from gridmill.sites.farm.carrier_choice import BucketEndpoints, BucketPrefix
from gridmill.sites.farm.site import check_site

SETTINGS = {
    "export": "s3://bucket/p",
    "access_key_id": "AKIA",
    "secret_access_key": "${secret:s3-key}",
}


def farm(**changes: str) -> Site:
    return Site(name="far", kind=SiteKind.CLUSTER, settings={**SETTINGS, **changes})


def test_credentials_are_resolved_for_each_use(tmp_path: Path):
    values = {"s3-key": "first-value"}
    endpoints = BucketEndpoints(object(), farm(), "me", tmp_path, values.__getitem__)  # type: ignore[arg-type]
    lot = BucketPrefix(url="s3://bucket/p")
    assert endpoints._credentials(lot) == {"access_key_id": "AKIA", "secret_access_key": "first-value"}
    assert endpoints._credentials(BucketPrefix(url="gs://bucket/p")) == {}
    opened = endpoints._bucket(lot)
    assert endpoints._bucket(lot) is opened
    values["s3-key"] = "second-value"
    assert endpoints._bucket(lot) is not opened


def test_without_secrets_the_error_names_the_secret(tmp_path: Path):
    endpoints = BucketEndpoints(object(), farm(), "me", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match="s3-key"):
        endpoints._bucket(BucketPrefix(url="s3://bucket/p"))


@pytest.mark.parametrize("name", ["secret_access_key", "session_token", "service_account_key"])
def test_a_key_that_is_written_down_is_refused(name: str):
    with pytest.raises(InputError, match=rf"settings\.{name}: the value of {name} is written down") as caught:
        check_site(farm(**{name: "wJalrXUtnFEMI"}))
    assert "gridmill add secret" in caught.value.hint
    assert "wJalrXUtnFEMI" not in str(caught.value)
    check_site(farm())
