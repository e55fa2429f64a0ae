"""Data of jobs on rented machines is transferred through a bucket, which the machine reaches without keys."""

import pytest

from gridmill.domain.frozen import replace
from gridmill.domain.states import RunState
from gridmill.transfer.bucket import BucketClient
from tests.e2e.test_cloud_site import CARRIED, Rent, net, rent  # noqa: F401  fixtures
from tests.kit.host_cloud import why_not
from tests.kit.objectstore import HOW_TO_GET_IT, KEYS, make_bucket, object_store

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is everything"),
]


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def test_inputs_and_results_pass_through_the_bucket_of_the_site(rent: Rent) -> None:  # noqa: F811
    rented = rent()
    with object_store(rented.cloud.net.gateway) as endpoint:
        if endpoint is None:
            pytest.skip(HOW_TO_GET_IT)
        make_bucket(endpoint, "exchange")
        [place] = [one for one in rented.node.grid.sites().items if one.name == "burst"]
        settings = {**place.settings, "shared": "s3://exchange/g", "endpoint": endpoint}
        rented.node.grid.add_site(replace(place, settings=settings), replace=True)
        rented.go()
        run = rented.start(CARRIED.replace("keep: 0s", "keep: 0s, staging: shared"))
        view = rented.ended(run)
        jobs = {one.job.job.name: one for one in view.jobs}
        assert view.run.state is RunState.SUCCEEDED, jobs["two"].job.message
        output = rented.settings.root / jobs["two"].artifacts[0].output.uri / "out"
        assert output.read_text().split()[:2] == ["200000", "199999"]
        bucket = BucketClient("s3://exchange/g", {"endpoint": endpoint})
        names = [name for page in bucket.names("") for name in page]
        assert [name for name in names if name.startswith("kept/")], "the input was in the bucket"
        assert not [name for name in names if not name.startswith("kept/")], "the result is deleted"
        rented.returned()
