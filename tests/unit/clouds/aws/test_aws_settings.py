import pytest

from gridmill.clouds.aws.settings import read_settings
from gridmill.errors import InputError


def _read(**settings):
    return read_settings(settings, {"aws-key": "very-secret\n"}.__getitem__)


def test_the_access_key_is_read_from_the_secret_and_never_shown():
    settings = _read(access_key_id="AKIA1", secret_access_key="aws-key")
    assert settings.access_key == "very-secret"
    assert "very-secret" not in repr(settings)


def test_regions_are_names_or_beginnings_of_names():
    exact, prefix = _read(regions="us-east-1, eu-west-2"), _read(regions="us-")
    assert exact.are_exact
    assert exact.home_region == "us-east-1"
    assert exact.permits("eu-west-2")
    assert not exact.permits("eu-west-1")
    assert not prefix.are_exact
    assert prefix.home_region == "us-east-1"
    assert prefix.permits("us-west-2")
    assert not prefix.permits("eu-west-1")
    assert _read().permits("ap-south-1")


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"access_key_id": "AKIA1"}, "settings.access_key_id"),
        ({"secret_access_key": "aws-key"}, "settings.secret_access_key"),
        ({"access_key_id": "A", "secret_access_key": "aws-key", "profile": "p"}, "settings.profile"),
        ({"regions": "US east"}, "settings.regions"),
        ({"subnet": "10.0.0.0/24"}, "settings.subnet"),
        ({"security_group": "default"}, "settings.security_group"),
        ({"ssh_from": "192.0.2.300/24"}, "settings.ssh_from"),
        ({"address": "both"}, "settings.address"),
        ({"instance_role": "maybe"}, "settings.instance_role"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_place(settings, place):
    with pytest.raises(InputError) as error:
        _read(**settings)
    assert error.value.place == place
    assert error.value.hint
