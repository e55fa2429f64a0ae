"""The buckets of a cloud site have keys of their own, those of the provider, or those in the environment."""

import pytest

from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError
from gridmill.sites.cloud.bucket_settings import bucket_credentials, check_buckets
from gridmill.sites.cloud.settings import check_site

AWS = {"provider": "aws", "export": "s3://bucket/p"}
PROVIDER_KEY = {"access_key_id": "AKIA", "secret_access_key": "aws-key"}
OWN_KEY = {"bucket_access_key_id": "AKIB", "bucket_secret_access_key": "${secret:s3-key}"}


def site(**settings: str) -> Site:
    return Site(name="aws", kind=SiteKind.CLOUD, settings=settings)


@pytest.mark.parametrize(
    ("settings", "credentials"),
    [
        (AWS, {}),
        (AWS | PROVIDER_KEY, {"access_key_id": "AKIA", "secret_access_key": "${secret:aws-key}"}),
        (AWS | OWN_KEY, {"access_key_id": "AKIB", "secret_access_key": "${secret:s3-key}"}),
        (AWS | PROVIDER_KEY | OWN_KEY, {"access_key_id": "AKIB", "secret_access_key": "${secret:s3-key}"}),
        # the key of AWS does not open a bucket at another server
        (AWS | PROVIDER_KEY | {"endpoint": "http://10.0.0.5:9000"}, {}),
        ({"provider": "lambda", "api_key": "key", "export": "s3://b"}, {}),
        (
            {"provider": "lambda", "api_key": "key", "export": "s3://b"} | OWN_KEY,
            {"access_key_id": "AKIB", "secret_access_key": "${secret:s3-key}"},
        ),
        (
            {"provider": "gcp", "export": "gs://b", "service_account_key": "gcp-key"},
            {"service_account_key": "${secret:gcp-key}"},
        ),
    ],
)
def test_the_credentials_of_the_bucket(settings, credentials):
    assert bucket_credentials(site(**settings)) == credentials


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bucket_secret_access_key": "wJalr", "bucket_access_key_id": "AKIB"}, "is written down"),
        ({"bucket_access_key_id": "AKIB"}, "the key of the bucket has no secret_access_key"),
        ({"bucket_secret_access_key": "${secret:s3-key}"}, "has no access_key_id"),
        ({"export": "s3:/bucket"}, r"settings\.export"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        check_buckets(site(**(AWS | settings)))
    assert "wJalr" not in str(caught.value)


def test_a_cloud_site_has_these_settings():
    check_site(site(**AWS, **OWN_KEY))
    check_site(site(**AWS, **OWN_KEY, bucket_session_token="${secret:token}"))
    with pytest.raises(InputError, match="bucket_secret"):
        check_site(site(**AWS, bucket_secret="${secret:s3-key}"))
