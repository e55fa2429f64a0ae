"""The batch services over their simulations: the same calls for all providers."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.kit.aws_batch import IMAGES

from gridmill.clouds.aws import batch as aws_batch
from gridmill.clouds.gcp import batch as gcp_batch
from gridmill.domain.frozen import dataclass, replace
from gridmill.errors import CredentialsError
from gridmill.ports.batch import BatchPhase, BatchPort, BatchRequest
from gridmill.testing.cloud.aws_batch.records import Kind
from gridmill.testing.cloud.aws_batch.simulation import simulated_aws_batch
from gridmill.testing.cloud.ec2.catalogue import ACCOUNT
from gridmill.testing.cloud.gcp_batch.simulation import simulated_gcp_batch

REQUEST = BatchRequest(
    name="gm-0a1b2c3d-p-1-one-1",
    command=("sleep 600",),
    variables={},
    cpus=1,
    memory_bytes=1 << 30,
    gpus=0,
    limit_seconds=3600.0,
    labels={"gridmill-owner": "0a1b2c3d", "gridmill-attempt": "p-1.one.1"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A service with its simulation."""

    service: BatchPort
    account: str
    expire: Callable[[], None]


@pytest.fixture(params=["aws", "gcp"])
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    made = _aws() if request.param == "aws" else _gcp()
    yield next(made)
    next(made, None)


def _aws() -> Iterator[Provider]:
    with simulated_aws_batch(images=IMAGES) as cloud:
        cloud.add_environment("c", kind=Kind.EC2)
        cloud.add_queue("q", "c")
        settings = {
            "region": "us-east-1",
            "queue": "q",
            "image": "shell:1",
            "endpoint_url": cloud.endpoint_url,
            "access_key_id": cloud.access_key,
            "secret_access_key": cloud.secret_key,
        }
        service = aws_batch.make(settings, "site s")
        yield Provider(service=service, account=ACCOUNT, expire=lambda: None)
        service.close()


def _gcp() -> Iterator[Provider]:
    with simulated_gcp_batch(images=IMAGES) as cloud:
        settings = {
            "region": "us-central1",
            "project": cloud.project,
            "image": "shell:1",
            "endpoint_url": cloud.endpoint_url,
            "service_account_key": json.dumps(cloud.key_file()),
        }
        service = gcp_batch.make(settings, "site s")
        yield Provider(service=service, account=cloud.project, expire=cloud.expire_tokens)
        service.close()


def test_the_open_jobs_of_a_home_are_listed_without_those_of_other_homes(provider: Provider) -> None:
    service = provider.service
    assert service.account() == provider.account
    one, two = (service.submit(replace(REQUEST, name=f"{REQUEST.name}{number}")) for number in (1, 2))
    other = replace(REQUEST, name="gm-ffffffff-p-1-one-1", labels={"gridmill-owner": "ffffffff"})
    service.submit(other)
    listed = {job.id: job for job in service.open_jobs("0a1b2c3d")}
    assert set(listed) == {one, two}
    assert listed[one].name == f"{REQUEST.name}1"
    assert one in listed[one].end_command
    service.cancel(two, "no")
    while service.describe([two])[two].phase is not BatchPhase.ENDED:
        pass
    assert [job.id for job in service.open_jobs("0a1b2c3d")] == [one]
    for job in (one, service.find(other.name)):
        assert job is not None
        service.cancel(job, "no")


def test_a_token_that_the_provider_refuses_is_replaced(provider: Provider) -> None:
    provider.service.check()
    provider.expire()
    with suppress(CredentialsError):  # only Google has tokens
        provider.service.check()
    provider.service.check()
