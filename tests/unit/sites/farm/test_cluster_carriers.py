"""Which ways there are between home and a farm, and what is refused before anything waits for it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gridmill.control.steps.run_lifecycle import check_resource_settings
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.route import Staging
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError, UnavailableError
from gridmill.sdk.client import make_resource
from gridmill.sites.farm.carrier_choice import HOLDS, BucketEndpoints, BucketPrefix, check
from gridmill.sites.farm.staging import HomeAttemptData


def cluster(**settings: str) -> Site:
    return Site(name="far", kind=SiteKind.CLUSTER, settings=settings)


def resource(staging: Staging | None) -> Resource:
    return Resource(name="trainer", type=JobKind.TRAINING, site="far", staging=staging)


def test_where_nothing_is_carried_staging_is_refused() -> None:
    for kind in (SiteKind.LOCAL, SiteKind.SLURM, SiteKind.RAY):
        site = Site(name="far", kind=kind)
        check_resource_settings(resource(None), site)
        with pytest.raises(InputError, match=f"{kind} site") as told:
            check_resource_settings(resource(Staging.DIRECT), site)
        assert told.value.place == "resource trainer: staging"


def test_a_cluster_without_a_bucket_says_how_it_gets_one() -> None:
    check_resource_settings(resource(None), cluster())
    check_resource_settings(resource(Staging.DIRECT), cluster())
    check_resource_settings(resource(Staging.EXPORT), cluster(export="s3://bucket"))
    with pytest.raises(InputError, match="no bucket") as told:
        check_resource_settings(resource(Staging.EXPORT), cluster())
    assert "configure site far --export" in told.value.hint
    with pytest.raises(InputError, match="no bucket") as told:
        check_resource_settings(resource(Staging.SHARED), cluster(export="s3://bucket"))
    assert "configure site far --shared" in told.value.hint


@pytest.mark.parametrize(
    "settings",
    [
        {"export": "bucket"},
        {"export": "s3://b/../c"},
        {"shared": "s3:/bucket"},
        {"endpoint": "10.0.0.1:9000"},
        {"endpoint": "https://key:secret@10.0.0.1:9000"},
        {"keep": "long"},
    ],
)
def test_a_setting_that_cannot_be_is_told_with_its_place(settings: dict[str, str]) -> None:
    with pytest.raises(InputError) as told:
        check(cluster(**settings))
    assert told.value.place == f"site far: settings.{next(iter(settings))}"


def test_what_is_direct_goes_through_the_farm_itself(tmp_path: Path) -> None:
    farm = object()
    carriers = BucketEndpoints(farm, cluster(), "me", tmp_path)  # type: ignore[arg-type]
    assert carriers.endpoint(Staging.DIRECT, {}) is farm
    with pytest.raises(InputError, match="staging: export"):
        carriers.endpoint(Staging.EXPORT, {})
    HomeAttemptData(farm, tmp_path, tmp_path, tmp_path / "far/carried", carriers=carriers).close()  # type: ignore[arg-type]


@pytest.mark.parametrize("end", [BucketEndpoints.clear, BucketEndpoints.close])
def test_a_transfer_that_is_late_keeps_nothing_where_all_was_given_up(
    tmp_path: Path, end: Callable[[BucketEndpoints], None]
) -> None:
    root, lot = f"file://{tmp_path}/bucket", BucketPrefix(url=f"file://{tmp_path}/bucket/kept/me")
    carriers = BucketEndpoints(object(), cluster(), "me", tmp_path / "far")  # type: ignore[arg-type]
    carriers._site.settings["shared"] = root  # type: ignore[index]  # the settings take none that is a folder
    carriers.endpoint(Staging.SHARED, {})
    with HOLDS.clearing(lot) as free:
        assert not free
    end(carriers)
    with pytest.raises(UnavailableError, match="changed or removed") as told:
        carriers.endpoint(Staging.SHARED, {})
    assert "continues automatically" in told.value.hint
    with HOLDS.clearing(lot) as free:
        assert free


def test_how_long_chunks_are_kept_is_said() -> None:
    assert check(cluster()) == 30 * 86400
    assert check(cluster(keep="12h")) == 12 * 3600


def test_a_way_is_read_by_its_name() -> None:
    fields = {"name": "r", "type": "training", "staging": "export"}
    assert make_resource(fields).staging == Staging.EXPORT
    with pytest.raises(InputError, match="carrier-pigeon"):
        make_resource({**fields, "staging": "carrier-pigeon"})
