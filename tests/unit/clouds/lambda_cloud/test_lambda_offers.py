from gridmill.clouds.lambda_cloud.offers import REGIONS, free_regions, offers_of
from gridmill.domain.amounts import GIB


def described(name, gpu="A10 (24 GB PCIe)", regions=("us-east-1",), gpus=1, **more):
    """A type as `GET /api/v1/instance-types` describes it."""
    specs = {"vcpus": 30, "memory_gib": 200, "storage_gib": 1400, "gpus": gpus}
    one = {
        "name": name,
        "description": f"{gpus}x {gpu}",
        "gpu_description": gpu,
        "price_cents_per_hour": 75,
        "specs": specs,
        **more,
    }
    free = [{"name": region, "description": "somewhere"} for region in regions]
    return {name: {"instance_type": one, "regions_with_capacity_available": free}}


def offers(types, prefix=""):
    return offers_of(types, lambda region: region.startswith(prefix), 5.0)


def test_a_type_is_offered_in_the_regions_that_have_a_free_machine():
    found = offers(described("gpu_1x_a10", regions=("us-west-1", "us-east-1")))
    assert [offer.region for offer in found] == ["us-east-1", "us-west-1"]
    (offer,) = offers(described("gpu_1x_a10", regions=("us-west-1", "us-east-1")), "us-w")
    assert (offer.zones, offer.price_micros, offer.read) == (("us-west-1",), 750_000, 5.0)
    assert (offer.gpu_model, offer.gpu_memory_bytes) == ("A10", 24 * GIB)
    assert (offer.cpus, offer.memory_bytes, offer.disk_bytes) == (30, 200 * GIB, 1400 * GIB)
    assert offer.spot_price_micros is None


def test_a_type_without_a_free_machine_is_offered_in_one_region():
    types = described("gpu_8x_h100_sxm5", "H100 (80 GB SXM5)", regions=(), gpus=8)
    assert [offer.region for offer in offers(types)] == [REGIONS[0]]
    assert [offer.region for offer in offers(types, "europe-")] == ["europe-central-1"]
    assert offers(types, "no-such") == ()
    assert free_regions(types["gpu_8x_h100_sxm5"]) == frozenset()


def test_types_without_gpus_and_with_gpus_of_unknown_memory():
    (offer,) = offers(described("cpu_4x_general", "N/A", gpus=0))
    assert (offer.gpus, offer.gpu_model, offer.gpu_memory_bytes) == (0, "", 0)
    assert offers(described("gpu_1x_new", "NEW")) == ()
    assert (
        offers(described("gpu_1x_new", "NEW", description="1x NEW (32 GB)"))[0].gpu_memory_bytes == 32 * GIB
    )


def test_the_processors_are_those_that_are_stated_or_known_from_the_name():
    assert offers(described("gpu_1x_gh200", "GH200 (96 GB)"))[0].architecture == "arm64"
    assert offers(described("gpu_1x_a100", architecture="arm64"))[0].architecture == "arm64"
    assert offers(described("gpu_1x_gh200", architecture="x86_64"))[0].architecture == "x86_64"
    assert offers(described("gpu_1x_a10"))[0].architecture == "x86_64"


def test_a_price_of_zero_is_unknown():
    assert offers(described("gpu_1x_a10", price_cents_per_hour=0))[0].price_micros is None
