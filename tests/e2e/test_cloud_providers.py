"""The commands for providers of rented machines, in real processes, against a simulated EC2."""

from collections.abc import Iterator

import pytest

from gridmill.testing.cloud.ec2.simulation import EC2Simulation, simulated_ec2
from tests.e2e.conftest import Place
from tests.kit.markdown import ROOT

pytestmark = pytest.mark.e2e


@pytest.fixture
def ec2() -> Iterator[EC2Simulation]:
    with simulated_ec2() as simulation:
        yield simulation


def ok(place: Place, *words: object) -> str:
    done = place.gridmill(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def account(ec2: EC2Simulation) -> tuple[str, ...]:
    key, url = ec2.access_key, ec2.endpoint_url
    return ("--access-key-id", key, "--secret", "aws-key", "--set", f"endpoint_url={url}")


def test_an_account_is_checked_and_its_machines_are_offered(place: Place, ec2: EC2Simulation):
    key = place.folder / "key"
    key.write_text(ec2.secret_key)
    ok(place, "add", "secret", "aws-key", "--file", key)
    ec2.deny("ec2:TerminateInstances", "pricing:*")
    ec2.faults.quotas["L-417A185B@us-east-1"] = 0
    added = place.gridmill("add", "cloudprovider", "aws", "--region", "us-east-1", *account(ec2))
    assert added.returncode == 0, added.stderr
    assert "missing right: ec2:TerminateInstances" in added.stderr
    assert "no machine can be rented: ask the provider" in added.stdout
    assert "aws-key" in ok(place, "show", "cloudprovider", "aws")
    ec2.deny()
    offers = ok(place, "offers", "aws", "--instance-type", "g5.xlarge")
    assert "g5.xlarge" in offers
    assert "prices per hour, as of" in offers
    asked = len(ec2.requests)
    assert ok(place, "offers", "aws", "--instance-type", "g5.xlarge") == offers
    actions = [action for _, _, action in ec2.requests[asked:]]
    assert "DescribeInstanceTypes" not in actions, "the offers are cached for a day"
    ok(
        place,
        "configure", "resource", "burst", "--type", "training", "--gpus", 1, "--at", "aws",
        "--instance-type", "g5.xlarge", "--region", "us-", "--max-price", "1.50", "--max-hours", 4,
    )  # fmt: skip
    planned = ok(place, "plan", ROOT / "examples/rented/pipeline.yaml")
    assert "model: g5.xlarge in us-east-1" in planned, "no control node runs, and the offers are read"
    wrong = place.gridmill("alter", "resource", "burst", "--set", "max_price=1,50")
    assert wrong.returncode == 2
    assert "resource burst: settings.max_price" in wrong.stderr
    ok(place, "remove", "resource", "burst")
    ok(place, "remove", "cloudprovider", "aws")
    assert not ec2.machines()


def test_a_region_that_does_not_exist_and_quotas_that_permit_nothing_are_named(
    place: Place, ec2: EC2Simulation
):
    key = place.folder / "key"
    key.write_text(ec2.secret_key)
    ok(place, "add", "secret", "aws-key", "--file", key)
    wrong = place.gridmill("add", "cloudprovider", "aws", "--region", "mars-", *account(ec2))
    assert wrong.returncode == 8
    assert "the provider offers no machines in the regions 'mars-'" in wrong.stderr
    assert "No region begins with this text" in wrong.stderr
    ec2.faults.quotas["*"] = 0
    ok(place, "add", "cloudprovider", "aws", "--region", "us-east-1", *account(ec2))
    ok(place, "configure", "resource", "burst", "--type", "training", "--gpus", 1, "--at", "aws")
    planned = " ".join(ok(place, "plan", ROOT / "examples/rented/pipeline.yaml").split())
    assert "warning: the quota of 0 vCPUs in us-east-1 permits no g4dn.xlarge" in planned
    ec2.faults.quotas.clear()
    ok(place, "alter", "resource", "burst", "--set", "budget=0")
    planned = " ".join(ok(place, "plan", ROOT / "examples/rented/pipeline.yaml").split())
    assert "warning: the budget of resource burst for" in planned
    assert "is used up" in planned


def test_refused_credentials_store_nothing(place: Place, ec2: EC2Simulation):
    key = place.folder / "key"
    key.write_text("this-is-not-the-key")
    ok(place, "add", "secret", "aws-key", "--file", key)
    added = place.gridmill("add", "cloudprovider", "aws", "--region", "us-east-1", *account(ec2))
    assert added.returncode == 8
    assert "AWS answered" in added.stderr
    assert "`gridmill add secret NAME` replaces the value of a secret" in added.stderr
    assert "not-the-key" not in added.stderr + added.stdout
    assert "there are no cloudproviders" in place.gridmill("list", "cloudproviders").stderr
