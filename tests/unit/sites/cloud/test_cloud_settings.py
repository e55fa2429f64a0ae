import pytest

from gridmill.control.steps.run_lifecycle import check_resource_settings
from gridmill.domain.job import JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.route import Staging
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError
from gridmill.plugins import find
from gridmill.sites.cloud.machine import place_of
from gridmill.sites.cloud.settings import check_resource, read


def site(**settings: str) -> Site:
    return Site(name="burst", kind=SiteKind.CLOUD, settings={"provider": "simulated", **settings})


def test_defaults():
    parsed = read(site())
    assert (parsed.max_machines, parsed.python, parsed.least_driver) == (8, "/opt/gridmill/bin/python", "525")
    assert (parsed.boot_timeout_seconds, parsed.allowed_addresses) == (600.0, ("0.0.0.0/0",))
    find("checks", "cloud")(site(region="us-", max_price="1.50"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("provider", "acme"),
        ("provider", ""),
        ("max_machines", "0"),
        ("max_machines", "many"),
        ("python", "python; reboot"),
        ("base_python", "python; reboot"),
        ("extras", "a b"),
        ("boot_timeout", "soon"),
        ("least_driver", "new"),
        ("ssh_from", "everywhere"),
        ("max_price", "cheap"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_place(name, text):
    with pytest.raises(InputError) as error:
        read(site(**{name: text}))
    assert error.value.place == f"site burst: settings.{name}"


def test_the_path_of_a_python_may_have_spaces_and_letters_of_all_languages():
    path = "/home/a user/späces;/bin/python"
    assert read(site(python=path, base_python=path)).python == path


def test_a_resource_for_sinks_is_refused_and_its_terms_are_checked():
    with pytest.raises(InputError, match="loaded at home"):
        check_resource(Resource(name="r", type=JobKind.SINK, site="burst"), site())
    with pytest.raises(InputError, match="no setting"):
        check_resource(
            Resource(name="r", type=JobKind.TRAINING, site="burst", settings={"colour": "red"}), site()
        )


def test_an_unknown_setting_of_a_site_is_refused_with_the_setting_that_was_meant():
    with pytest.raises(InputError, match="a cloud site has no setting 'max_prize'") as error:
        read(site(max_prize="1.50"))
    assert error.value.place == "site burst: settings.max_prize"
    assert error.value.hint.startswith("Did you mean `max_price`?")
    with pytest.raises(InputError, match="no setting 'regoins'") as error:
        read(Site(name="a", kind=SiteKind.CLOUD, settings={"provider": "aws", "regoins": "us-"}))
    assert error.value.hint.startswith("Did you mean `regions`?")


def test_every_setting_of_a_provider_and_of_rentals_is_accepted():
    for name in find("cloud_settings", "aws")():
        text = {"ssh_from": "192.0.2.0/24"}.get(name, "x")
        read(Site(name="a", kind=SiteKind.CLOUD, settings={"provider": "aws", name: text}))
    read(site(rate="20MiB", checkpoints="1m", export="s3://bucket/prefix", budget="200"))


def test_data_may_pass_through_a_bucket_of_the_site():
    resource = Resource(name="trainer", type=JobKind.TRAINING, site="burst", staging=Staging.SHARED)
    check_resource_settings(resource, site(shared="s3://bucket"))
    with pytest.raises(InputError, match="no bucket for `staging: shared`") as error:
        check_resource_settings(resource, site(export="s3://bucket"))
    assert error.value.place == "resource trainer: staging"
    assert "configure site burst --shared" in error.value.hint


def test_an_installation_with_other_settings_is_not_used():
    some = (
        {"extras": "data,tls"},
        {"extras": "data,tls,objects"},
        {"extras": ""},
        {"base_python": "python3.11"},
    )
    places = {place_of(read(site(**settings)), "hash") for settings in some}
    assert len(places) == len(some)
    assert place_of(read(site(extras="tls,data")), "hash") in places, "the order of extras has no meaning"
    assert place_of(read(site(extras="data,tls")), "other") not in places
