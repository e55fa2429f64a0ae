"""What is set of a cluster: read at the setting, and refused where it could never work."""

import pytest

from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError
from gridmill.sites.farm.site import check_site, read


def cluster(**settings: str) -> Site:
    return Site(name="far", kind=SiteKind.CLUSTER, address="gpu1:8700", settings=settings)


def test_what_is_not_said_is_as_usual() -> None:
    said = read(cluster())
    assert (said.lease_seconds, said.checkpoints_seconds, said.rate) == (3600.0, 30.0, None)
    said = read(cluster(lease="20s", checkpoints="1s", rate="20MiB"))
    assert (said.lease_seconds, said.checkpoints_seconds, said.rate) == (20.0, 1.0, 20.0 * 2**20)
    check_site(cluster(export="s3://bucket/x", shared="gs://other", endpoint="https://minio", keep="1d"))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("lease", "soon", "not a duration"),
        ("lease", "5s", "the minimum is 10s"),
        ("checkpoints", "0", "the minimum is 1s"),
        ("rate", "0", "the rate 0 permits no transfer"),
        ("rate", "fast", "not a size"),
        ("keep", "long", "not a duration"),
        ("export", "minio/x", "not the address of a bucket"),
        ("endpoint", "minio:9000", "not the address"),
        ("leas", "1h", "no setting 'leas'"),
    ],
)
def test_what_could_never_work_is_told_at_the_setting(name: str, value: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        check_site(cluster(**{name: value}))
    assert caught.value.place == f"site far: settings.{name}"
    assert caught.value.hint


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(InputError, match="gpu1:port"):
        check_site(Site(name="far", kind=SiteKind.CLUSTER, address="gpu1:port"))
