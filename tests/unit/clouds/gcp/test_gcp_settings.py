import pytest
from tests.kit.google_api import PROJECT, service_account_key

from gridmill.clouds.gcp.settings import KNOWN, known_settings, read_settings
from gridmill.errors import InputError


def _read(**settings):
    return read_settings(settings, {"gcp-key": service_account_key(), "text": "no JSON"}.__getitem__)


def test_the_project_is_that_of_the_key_unless_it_is_set_and_the_key_is_never_shown():
    settings = _read(service_account_key="gcp-key")
    assert settings.project == PROJECT
    assert "PRIVATE KEY" in settings.key
    assert "PRIVATE KEY" not in repr(settings)
    assert _read(service_account_key="gcp-key", project="other-project").project == "other-project"
    assert _read().project == ""


def test_a_secret_that_is_no_key_is_explained():
    with pytest.raises(InputError, match="not the JSON key") as caught:
        _read(service_account_key="text")
    assert "no JSON" not in str(caught.value)
    assert "gridmill add secret" in caught.value.hint


def test_regions_are_names_or_beginnings_of_names():
    settings = _read(regions="us-, europe-west4")
    assert settings.permits("us-central1")
    assert settings.permits("europe-west4")
    assert not settings.permits("europe-west1")
    assert _read().permits("asia-east1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("project", "Not A Project"),
        ("regions", "us_central1"),
        ("service_account", "nobody"),
        ("network", "-"),
        ("subnetwork", "a/b/c"),
        ("network_tags", "Tag"),
        ("ssh_from", "everywhere"),
        ("address", "both"),
    ],
)
def test_an_invalid_setting_is_named(name, value):
    with pytest.raises(InputError) as caught:
        _read(**{name: value})
    assert caught.value.place == f"settings.{name}"
    assert value in caught.value.message


def test_each_setting_has_a_description():
    assert known_settings() is KNOWN
    assert all(KNOWN.values())
