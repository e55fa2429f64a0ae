"""Offers of machines and accounts of providers from the command line, on a grid in memory."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.cli.test_cli import Cli

from gridmill.cli.offer_files import COLUMNS, read_offers
from gridmill.cli.offers import OfferFilter, chosen
from gridmill.domain.machine import Offer, Quota
from gridmill.errors import InputError
from gridmill.ports.cloud import AccountCheck

GIB = 2**30
G5 = Offer(
    provider="aws",
    region="us-east-1",
    zones=("us-east-1a", "us-east-1b"),
    instance_type="g5.xlarge",
    cpus=4,
    memory_bytes=16 * GIB,
    gpus=1,
    gpu_model="A10G",
    gpu_memory_bytes=24 * GIB,
    price_micros=1_006_000,
    spot_price_micros=450_000,
    read=1e9,
)
G4 = replace(
    G5,
    instance_type="g4dn.xlarge",
    gpu_memory_bytes=16 * GIB,
    price_micros=526_000,
    spot_price_micros=None,
)
P5 = replace(G5, instance_type="p5.48xlarge", region="eu-west-1", gpus=8, price_micros=None)
M5 = replace(G5, instance_type="m5.large", gpus=0, gpu_model="", gpu_memory_bytes=0, price_micros=96_000)
ALL = (G5, P5, G4, M5)


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(tmp_path, capfd)
    made.fake.kept_offers = ALL
    return made


def types(**conditions: object) -> list[str]:
    return [one.instance_type for one in chosen(ALL, OfferFilter(**conditions))]


def test_the_cheapest_offer_is_first_and_an_unknown_price_is_last():
    assert types() == ["m5.large", "g4dn.xlarge", "g5.xlarge", "p5.48xlarge"]
    assert types(spot=True) == ["g5.xlarge", "m5.large", "p5.48xlarge", "g4dn.xlarge"]


def test_offers_are_filtered_and_an_unknown_price_exceeds_each_limit():
    assert types(gpus=1) == ["g4dn.xlarge", "g5.xlarge", "p5.48xlarge"]
    assert types(gpu_memory_bytes=24 * 10**9) == ["g5.xlarge", "p5.48xlarge"]
    assert types(region="us-", gpus=1, max_price_micros=1_000_000) == ["g4dn.xlarge"]
    assert types(spot=True, max_price_micros=10**9, gpus=1) == ["g5.xlarge", "p5.48xlarge"]
    assert types(instance_type="g5.xlarge") == ["g5.xlarge"]


def test_offers_are_shown_with_their_prices_and_the_time_of_the_prices(cli: Cli):
    assert cli("offers", "--gpus", "1") == 0
    lines = cli.out.splitlines()
    assert "1.01 USD" in lines[2]
    assert "unknown" in lines[1]
    assert lines[-1].startswith("prices per hour, as of 2001-09-0")
    assert cli("offers", "--gpus", "1", "-n", "1") == 0
    assert "showing 1 of 3 offers" in cli.err
    assert [one["instance_type"] for one in cli.json("offers", "aws", "--max-price", "0.1")] == ["m5.large"]
    assert cli("offers", "--gpus", "16") == 0
    assert "4 offers did not meet the conditions" in cli.err
    assert cli("offers", "--max-price", "cheap") == 2
    assert "'cheap' is not an amount of money" in cli.err


def test_the_reason_why_there_are_no_offers_is_named(cli: Cli, tmp_path: Path):
    cli.fake.kept_offers = ()
    assert cli("offers", "aws", "--region", "mars-", "--instance-type", "g9.huge") == 0
    assert "no offers of aws for g9.huge in the region mars-; to list all: gridmill offers" in cli.err
    file = tmp_path / "offers.csv"
    file.write_text("")
    assert cli("offers", "--import", file) == 0
    assert f"{file} has none" in " ".join(cli.err.split())
    assert cli("offers") == 0
    assert "to add a provider: gridmill add cloudprovider" in cli.err


def test_a_csv_file_is_read_without_a_provider(cli: Cli, tmp_path: Path):
    file = tmp_path / "offers.csv"
    file.write_text(
        "provider,region,instance_type,cpus,memory,gpus,gpu_model,gpu_memory,price,spot_price,zones\n"
        "aws,us-east-1,g5.xlarge,4,16GiB,1,A10G,24GiB,1.006,0.45,us-east-1a us-east-1b\n"
        "lab,here,box,8,32GiB,,,,,,\n"
    )
    assert cli("offers", "--import", file) == 0
    assert "g5.xlarge" in cli.out
    first, second = read_offers(file)
    assert first == replace(G5, read=None)
    assert (second.zones, second.gpus, second.price_micros, second.architecture) == (
        ("here",),
        0,
        None,
        "x86_64",
    )
    assert cli("offers", "aws", "--import", file) == 2


def test_the_printed_json_can_be_read_again(cli: Cli, tmp_path: Path):
    file = tmp_path / "offers.json"
    file.write_text(json.dumps(cli.json("offers")))
    assert set(read_offers(file)) == {replace(one, read=None) for one in ALL}


def test_a_json_file_may_have_the_names_of_the_columns(tmp_path: Path):
    file = tmp_path / "offers.json"
    row = {"provider": "lab", "region": "here", "instance_type": "box", "cpus": 8, "memory": "32GiB"}
    file.write_text(json.dumps([row]))
    (offer,) = read_offers(file)
    assert (offer.cpus, offer.memory_bytes, set(row) <= set(COLUMNS)) == (8, 32 * GIB, True)


HEAD = "provider,region,instance_type,cpus,memory,price"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (f"{HEAD}\naws,r,t,4,16GiB,1\naws,r,t,four,16GiB,1\n", ":3: cpus", "'four' is not a whole number"),
        (f"{HEAD}\naws,r,t,4,many,1\n", ":2: memory", "'many' is not a size"),
        (f"{HEAD}\naws,r,t,4,16GiB,-1\n", ":2: price", "'-1' is not an amount"),
        (f"{HEAD}\naws,r,,4,16GiB,1\n", ":2: instance_type", "is missing"),
        (f"{HEAD}\naws,r,t,4\n", ":2", "another number of fields"),
        (f"{HEAD},prize\naws,r,t,4,16GiB,1,2\n", ":2", "'prize' is not a field"),
        ("[1]", ": offer 1", "not an object"),
        ('[{"memory_bytes": "x"}]', ": offer 1", "not a Offer"),
        ("[{", "", "not JSON"),
    ],
)
def test_an_invalid_file_is_refused_with_the_line_and_the_field(tmp_path: Path, text, place, words):
    file = tmp_path / "offers.txt"
    file.write_text(text)
    with pytest.raises(InputError, match=words) as error:
        read_offers(file)
    assert error.value.place == f"{file}{place}"


def test_a_provider_is_checked_stored_listed_and_removed(cli: Cli):
    cli.fake.kept_check = AccountCheck(
        account="1234",
        missing_rights=("ec2:TerminateInstances",),
        quotas=(
            Quota(region="us-east-1", name="P, on demand", limit=0, unit="vCPUs", types=("p",), used=0),
            Quota(region="us-east-1", name="G and VT, spot", limit=8, unit="vCPUs", types=("g",), spot=True),
        ),
    )
    assert cli("add", "cloudprovider", "aws", "--region", "us-", "--profile", "work") == 0
    assert "account 1234" in cli.out
    assert "missing right: ec2:TerminateInstances" in cli.err
    assert "ask the provider for a higher quota" in cli.out
    assert cli("list", "cloudproviders") == 0
    assert "work" in cli.out
    site = cli.json("show", "cloudprovider", "aws")
    assert (site["kind"], site["settings"]) == (
        "cloud",
        {"provider": "aws", "regions": "us-", "profile": "work"},
    )
    assert cli("add", "cloudprovider", "second", "--kind", "aws") == 0
    assert cli("remove", "cloudprovider", "aws") == 0
    assert [one["name"] for one in cli.json("list", "cloudproviders")] == ["second"]
    assert cli("show", "cloudprovider", "local") != 0


def test_the_secret_of_lambda_is_its_api_key(cli: Cli):
    assert cli("add", "cloudprovider", "lambda", "--secret", "lambda-key") == 0
    site = cli.json("show", "cloudprovider", "lambda")
    assert site["settings"] == {"provider": "lambda", "api_key": "lambda-key"}
    assert cli("list", "cloudproviders") == 0
    assert "secret lambda-key" in cli.out


def test_options_of_providers_are_refused_for_other_nouns(cli: Cli):
    assert cli("add", "site", "lab", "--kind", "slurm", "--region", "us-") == 2
    assert "a site has no --region" in cli.err
    assert cli("add", "site", "lab", "--kind", "aws") == 2
    assert "'aws' is not a kind of site" in cli.err
    assert cli("configure", "project", "p", "--max-hours", "4") == 2
    assert "--max-hours" in cli.err


def test_the_conditions_for_renting_are_settings_of_the_resource(cli: Cli):
    assert cli("add", "cloudprovider", "aws") == 0
    options = ["--instance-type", "g5.xlarge", "--region", "us-", "--max-price", "1.50", "--max-hours", "4"]
    more = [
        "--spot",
        "--gpu-memory",
        "24GB",
        "--max-cost",
        "10",
        "--dead-man",
        "10m",
        "--keep-on-failure",
        "30m",
    ]
    rest = ["--accept-no-self-end", "--image", "ami-1", "--disk", "200GB"]
    words = ("configure", "resource", "burst", "--type", "training", "--gpus", "1", "--at", "aws")
    made = cli.json(*words, *options, *more, *rest)["resource"]
    assert made["settings"] == {
        "instance_type": "g5.xlarge",
        "region": "us-",
        "max_price": "1.50",
        "max_hours": "4",
        "spot": "true",
        "gpu_memory": "24GB",
        "max_cost": "10",
        "dead_man": "10m",
        "keep_on_failure": "30m",
        "accept_no_self_end": "true",
        "image": "ami-1",
        "disk": "200GB",
    }


def test_the_conditions_for_renting_are_altered_one_by_one(cli: Cli):
    assert cli("add", "cloudprovider", "aws") == 0
    words = ("configure", "resource", "burst", "--type", "training", "--gpus", "1", "--at", "aws")
    assert cli(*words, "--region", "us-", "--spot", "--max-price", "1.50") == 0
    alter = ("alter", "resource", "burst")
    made = cli.json(*alter, "--max-price", "2", "--no-spot", "--keep-on-failure", "30m")["resource"]
    # false, because the site may have the setting `spot: true`
    settings = {"region": "us-", "max_price": "2", "keep_on_failure": "30m"}
    assert made["settings"] == {**settings, "spot": "false"}
    made = cli.json(*alter, "--region", "", "--accept-no-self-end", "--spot")["resource"]
    assert made["settings"] == {
        "max_price": "2",
        "keep_on_failure": "30m",
        "spot": "true",
        "accept_no_self_end": "true",
    }
    assert cli("alter", "sink", "p/s", "--max-hours", "4") == 2
    assert "a sink has no --max-hours" in cli.err
