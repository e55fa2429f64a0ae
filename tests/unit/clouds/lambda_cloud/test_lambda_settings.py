import pytest

from gridmill.clouds.lambda_cloud.settings import ENDPOINT, KNOWN, known_settings, read_settings
from gridmill.errors import InputError

SECRETS = {"lambda-key": "secret_a_1\n", "machines": "secret_b_2", "bad": "two words"}


def read(environment=None, **settings):
    return read_settings(settings, SECRETS.__getitem__, environment or {})


def test_the_key_comes_from_a_secret_or_the_environment():
    assert read(api_key="lambda-key").api_key == "secret_a_1"
    assert read({"LAMBDA_API_KEY": "k"}).api_key == "k"
    assert read({"LAMBDA_API_KEY": "k"}, api_key="lambda-key").api_key == "secret_a_1"
    assert read().api_key == ""
    with pytest.raises(InputError, match="spaces"):
        read(api_key="bad")


def test_no_key_is_printed():
    parsed = read(api_key="lambda-key", self_terminate="machines")
    assert parsed.machine_key == "secret_b_2"
    assert "secret_" not in repr(parsed)
    assert "secret_" not in parsed.account


def test_the_account_is_named_after_its_key_unless_it_has_a_name():
    first, again = read(api_key="lambda-key"), read(api_key="lambda-key")
    assert first.account == again.account != read(api_key="machines").account
    assert read(api_key="machines", account="lab").account == "lab"


def test_regions_are_beginnings_of_names():
    parsed = read(regions="us-, europe-central-1")
    assert parsed.permits("us-east-1")
    assert not parsed.permits("asia-south-1")
    assert read().permits("anywhere")
    with pytest.raises(InputError, match="beginning of a region"):
        read(regions="us east")


@pytest.mark.parametrize("url", ["cloud.lambda.ai", "ftp://x", "https://x/api/v1"])
def test_an_endpoint_is_the_url_of_a_server(url):
    with pytest.raises(InputError, match="URL of a server"):
        read(endpoint_url=url)
    assert read().endpoint_url == ENDPOINT
    assert read(endpoint_url="http://127.0.0.1:8/").endpoint_url == "http://127.0.0.1:8"
    assert known_settings() is KNOWN
