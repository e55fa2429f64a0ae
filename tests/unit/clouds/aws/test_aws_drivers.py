import pytest

from gridmill.clouds.aws.drivers import (
    FITS,
    Driver,
    DriverFamily,
    KernelModule,
    check_driver,
    driver_of,
    family_of,
    misfit,
    needs_providers_dns,
)
from gridmill.clouds.aws.images import newest_image, search_for
from gridmill.errors import RefusedError

TESLA, GRID, GAMING = DriverFamily.TESLA, DriverFamily.GRID, DriverFamily.GAMING


@pytest.mark.parametrize(
    ("instance_type", "families"),
    [
        ("g7e.2xlarge", {TESLA, GRID, GAMING}),
        ("g6f.large", {GRID}),
        ("gr6f.4xlarge", {GRID}),
        ("g6e.xlarge", {TESLA, GRID, GAMING}),
        ("g6.xlarge", {TESLA, GRID, GAMING}),
        ("gr6.4xlarge", {TESLA, GRID}),
        ("g5.xlarge", {TESLA, GRID, GAMING}),
        ("g4dn.xlarge", {TESLA, GRID, GAMING}),
        ("g3.4xlarge", {TESLA, GRID}),
        ("g3s.xlarge", {TESLA, GRID}),
        ("p3.2xlarge", {TESLA}),
        ("p4d.24xlarge", {TESLA}),
        ("p5.48xlarge", {TESLA}),
    ],
)
def test_the_driver_families_of_each_family_of_types(instance_type, families):
    assert {one for one in DriverFamily if not misfit(Driver(family=one), instance_type)} == families


@pytest.mark.parametrize(
    ("family", "version", "instance_type", "fits"),
    [
        (GRID, 16, "g3.4xlarge", True),
        (GRID, 17, "g3.4xlarge", False),
        (GRID, 18, "g3s.xlarge", False),
        (GRID, 17, "g5.xlarge", True),
        (GRID, 14, "g4dn.xlarge", True),
        (GRID, 13, "g4dn.xlarge", False),
        (GAMING, 495, "g5.xlarge", True),
        (GAMING, 470, "g5.xlarge", False),
        (GAMING, 550, "g3.4xlarge", False),
        (GAMING, 550, "p3.2xlarge", False),
        (TESLA, 470, "g5.xlarge", True),
    ],
)
def test_the_versions_that_a_type_and_imdsv2_need(family, version, instance_type, fits):
    assert (misfit(Driver(family=family, version=version), instance_type) == "") is fits


def test_amd_and_arm_machines_are_not_kinds_of_g4dn_and_g5():
    tesla = Driver(family=TESLA)
    assert "AMD" in misfit(tesla, "g4ad.xlarge")
    assert "arm64" in misfit(tesla, "g5g.xlarge")
    assert misfit(tesla, "g5g.xlarge", "arm64") == ""
    assert misfit(tesla, "g5.xlarge", "arm64") != ""


def test_old_gpus_need_the_proprietary_module_and_new_ones_the_open_module():
    open_module = Driver(family=TESLA, module=KernelModule.OPEN)
    proprietary = Driver(family=TESLA, module=KernelModule.PROPRIETARY)
    for old in ("g3.4xlarge", "p2.xlarge", "p3.2xlarge"):
        assert misfit(open_module, old)
        assert not misfit(proprietary, old)
    assert not misfit(open_module, "p6-b200.48xlarge")
    assert misfit(proprietary, "p6-b200.48xlarge")


def test_grid_on_g3_needs_the_name_server_of_aws():
    assert needs_providers_dns(Driver(family=GRID, version=16), "g3.4xlarge")
    assert not needs_providers_dns(Driver(family=TESLA), "g3.4xlarge")
    assert not needs_providers_dns(Driver(family=GRID, version=17), "g5.xlarge")


def test_a_type_without_a_row_is_not_judged():
    assert misfit(Driver(family=GRID), "m5.large") == ""
    assert family_of("p6-b200.48xlarge") == "p6-b200"
    assert family_of("nonsense") == ""


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        (
            "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20260105",
            Driver(family=TESLA, module=KernelModule.OPEN),
        ),
        (
            "Deep Learning Base Proprietary Nvidia Driver GPU AMI (Ubuntu 20.04) 20240101",
            Driver(family=TESLA, module=KernelModule.PROPRIETARY),
        ),
        ("ubuntu with GRID driver 17", Driver(family=GRID, version=17)),
        ("nvidia-gaming-driver-470", Driver(family=GAMING, version=470)),
        ("ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server", None),
        ("our gridmill image", None),
    ],
)
def test_the_name_of_an_image_states_its_driver(name, driver):
    assert driver_of(name) == driver


def test_the_tag_of_an_image_counts_more_than_its_name():
    assert driver_of("Deep Learning AMI", "GRID 16") == Driver(family=GRID, version=16)


def test_an_image_that_does_not_fit_is_refused_before_renting():
    with pytest.raises(RefusedError, match="GRID 17 does not support g3"):
        check_driver("GRID 17 workstation", "", "g3.4xlarge", "x86_64")
    assert check_driver("our image", "", "g3.4xlarge", "x86_64") is None


def test_every_family_with_gpus_has_an_image_or_needs_one():
    for family, fit in FITS.items():
        if TESLA not in fit.drivers:
            with pytest.raises(RefusedError, match="GRID"):
                search_for(f"{family}.xlarge")
            continue
        search = search_for(f"{family}.xlarge")
        assert (search.owner, search.architecture) == ("amazon", fit.architecture)
        assert ("Proprietary" in search.names[0]) is fit.needs_proprietary
        assert ("ARM64" in search.names[0]) is (fit.architecture == "arm64")
        for name in search.names:
            driver = driver_of(name)
            assert driver is not None
            assert not misfit(driver, f"{family}.xlarge", fit.architecture)
    with pytest.raises(RefusedError, match="AMD"):
        search_for("g4ad.xlarge")


@pytest.mark.parametrize(
    ("instance_type", "architecture"),
    [("m5.large", "x86_64"), ("c7gn.large", "arm64"), ("t4g.micro", "arm64"), ("a1.large", "arm64")],
)
def test_a_type_without_gpus_gets_ubuntu_for_its_processor(instance_type, architecture):
    assert search_for(instance_type).architecture == architecture


def test_the_newest_image_of_the_first_name_counts():
    def image(name, day):
        return {"Name": name, "CreationDate": f"2026-01-{day:02}T00:00:00.000Z"}

    old, new, other = image("noble-1", 1), image("noble-2", 2), image("jammy-3", 3)
    assert newest_image(("noble-*", "jammy-*"), [old, other, new]) == new
    assert newest_image(("trusty-*", "jammy-*"), [old, other, new]) == other
    assert newest_image(("trusty-*",), [old]) is None
