from tests.kit.google_api import PROJECT, GoogleApi, refusal, settings

from gridmill.clouds.gcp.gpus import GPUS, gpu_of_sku, types_with
from gridmill.clouds.gcp.offers import Offers, ZoneTypes, offers_of
from gridmill.clouds.gcp.prices import Prices, part_of, price_of
from gridmill.clouds.gcp.requests import GcpRequests
from gridmill.domain.amounts import GIB

BASE = f"/compute/v1/projects/{PROJECT}"
SKUS = "GET /v1/services/6F81-5844-456A/skus"


def sku(description, dollars, *, spot=False, unit="h", regions=("us-central1",)):
    whole, _, part = f"{dollars:.9f}".partition(".")
    price = {"currencyCode": "USD", "units": whole, "nanos": int(part)}
    expression = {"usageUnit": unit, "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}]}
    return {
        "description": description,
        "category": {"usageType": "Preemptible" if spot else "OnDemand"},
        "serviceRegions": list(regions),
        "pricingInfo": [{"pricingExpression": expression}],
    }


CATALOG = [
    sku("N1 Predefined Instance Core running in Americas", 0.03),
    sku("N1 Predefined Instance Ram running in Americas", 0.004, unit="GiBy.h"),
    sku("Spot Preemptible N1 Predefined Instance Core running in Americas", 0.006, spot=True),
    sku("Spot Preemptible N1 Predefined Instance Ram running in Americas", 0.001, spot=True, unit="GiBy.h"),
    sku("N1 Custom Instance Core running in Americas", 9.0),
    sku("N1 Sole Tenancy Instance Core running in Americas", 9.0),
    sku("Commitment v1: N1 Cpu in Americas for 1 Year", 9.0),
    sku("Nvidia Tesla T4 GPU running in Americas", 0.35),
    sku("Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas", 0.1, spot=True),
    sku("G2 Instance Core running in Americas", 0.025),
    sku("G2 Instance Ram running in Americas", 0.003, unit="GiBy.h"),
    sku("Nvidia L4 GPU running in Americas", 0.56),
    sku("Nvidia L4 GPU attached to DWS Defined Duration VMs running in Americas", 9.0),
    sku("A2 Instance Core running in Americas", 0.03),
    sku("A2 Instance Ram running in Americas", 0.004, unit="GiBy.h"),
    sku("Nvidia Tesla A100 80GB GPU running in Americas", 3.9),
    sku("SSD backed Local Storage", 0.073, unit="GiBy.mo"),
]
N1 = {"name": "n1-standard-4", "guestCpus": 4, "memoryMb": 15360}
G2 = {
    "name": "g2-standard-8",
    "guestCpus": 8,
    "memoryMb": 32768,
    "accelerators": [{"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 1}],
    "architecture": "X86_64",
}
A2 = {
    "name": "a2-ultragpu-1g",
    "guestCpus": 12,
    "memoryMb": 174080,
    "accelerators": [{"guestAcceleratorType": "nvidia-a100-80gb", "guestAcceleratorCount": 1}],
    "bundledLocalSsds": {"partitionCount": 1},
}
NEW = {**G2, "name": "z9-gpu-1", "accelerators": [{"guestAcceleratorType": "x1", "guestAcceleratorCount": 1}]}
ARM = {"name": "t2a-standard-1", "guestCpus": 1, "memoryMb": 4096}


def _prices(skus=CATALOG):
    prices = Prices()
    prices.add(skus)
    return prices


def _offers(prices=None):
    zones = [
        ZoneTypes(
            zone="us-central1-a", types=(N1, G2, A2, NEW, ARM), accelerators=frozenset({"nvidia-tesla-t4"})
        ),
        ZoneTypes(zone="us-central1-b", types=(N1,)),
    ]
    return {one.instance_type: one for one in offers_of("us-central1", zones, prices or _prices())}


def test_a_price_is_the_sum_of_the_prices_of_the_parts():
    offers = _offers()
    assert offers["n1-standard-4"].price_micros == 4 * 30_000 + 15 * 4_000
    assert offers["n1-standard-4"].spot_price_micros == 4 * 6_000 + 15 * 1_000
    assert offers["g2-standard-8"].price_micros == 8 * 25_000 + 32 * 3_000 + 560_000
    assert offers["n1-standard-4+2xnvidia-tesla-t4"].price_micros == 180_000 + 2 * 350_000


def test_local_ssds_of_a_type_are_a_part_of_its_price():
    ssd = 375 * 73_000 / 730
    assert _offers()["a2-ultragpu-1g"].price_micros == 12 * 30_000 + 170 * 4_000 + 3_900_000 + ssd
    without = _prices([one for one in CATALOG if "SSD" not in one["description"]])
    assert _offers(without)["a2-ultragpu-1g"].price_micros is None


def test_a_price_with_an_unknown_part_is_unknown():
    offers = _offers()
    assert offers["g2-standard-8"].spot_price_micros is None
    assert offers["t2a-standard-1"].price_micros is None


def test_sizes_zones_and_gpus_of_offers():
    offers = _offers()
    attached, built_in = offers["n1-standard-4+1xnvidia-tesla-t4"], offers["g2-standard-8"]
    assert offers["n1-standard-4"].zones == ("us-central1-a", "us-central1-b")
    assert attached.zones == ("us-central1-a",)
    assert (attached.gpus, attached.gpu_model, attached.gpu_memory_bytes) == (1, "T4", 16 * GIB)
    assert (built_in.gpus, built_in.gpu_model, built_in.gpu_memory_bytes) == (1, "L4", 24 * GIB)
    assert built_in.memory_bytes == 32 * GIB
    assert offers["t2a-standard-1"].architecture == "arm64"
    assert "z9-gpu-1" not in offers


def test_only_prices_of_whole_machines_are_read():
    assert part_of("Spot Preemptible N2D AMD Instance Core running in Americas") == "core n2d"
    assert part_of("Compute optimized Ram running in Americas") == "ram c2"
    assert part_of("T2A Arm Instance Ram running in Iowa") == "ram t2a"
    assert part_of("A3Plus Instance Core running in Americas") == "core a3plus"
    assert part_of("N2 Custom Extended Instance Ram running in Americas") == ""
    assert part_of("Licensing Fee for Windows") == ""
    assert gpu_of_sku("Nvidia H100 80GB Plus GPU running in Americas") == "nvidia-h100-mega-80gb"


def test_a_price_in_another_currency_or_unit_is_unknown():
    euro = sku("x", 1.0)
    euro["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"]["currencyCode"] = "EUR"
    assert price_of(euro) is None
    assert price_of(sku("x", 1.0, unit="By")) is None
    assert price_of(sku("x", 0.0)) is None
    assert price_of({"description": "x"}) is None


def test_only_documented_numbers_of_gpus_are_attached():
    types = types_with("nvidia-tesla-v100")
    assert "n1-standard-8+1xnvidia-tesla-v100" in types
    assert "n1-standard-16+1xnvidia-tesla-v100" not in types
    assert "n1-standard-96+8xnvidia-tesla-v100" in types
    assert all(types_with(name) for name in GPUS)


def _api(**more):
    zone = f"GET {BASE}/zones/us-central1-a"
    return GoogleApi(
        {
            f"{zone}/machineTypes": {"items": [G2, {**N1, "deprecated": {"state": "DEPRECATED"}}]},
            f"{zone}/acceleratorTypes": {},
            SKUS: [{"skus": CATALOG[:9], "nextPageToken": "2"}, {"skus": CATALOG[9:]}],
            **more,
        }
    )


def test_offers_are_asked_once_a_day(tmp_path):
    api, now = _api(), [1000.0]
    requests, zones = GcpRequests(settings(), transport=api.transport), {"us-central1": ("us-central1-a",)}
    offers = Offers(requests, str(tmp_path), lambda: now[0])
    (first,) = offers.in_regions(zones)
    assert (first.instance_type, first.read) == ("g2-standard-8", 1000.0)
    assert first.price_micros is not None
    before = len(api.calls)
    assert offers.in_regions(zones) == Offers(requests, str(tmp_path), lambda: now[0]).in_regions(zones)
    assert offers.in_regions(zones, "other") == ()
    assert len(api.calls) == before
    now[0] += 90_000.0
    api.answers[SKUS] = refusal(403, "accessNotConfigured")
    (later,) = offers.in_regions(zones)
    assert later.price_micros is None
    requests.close()


def test_offers_without_prices_are_not_cached(tmp_path):
    api = _api(**{SKUS: refusal(503, "backendError")})
    requests = GcpRequests(settings(), transport=api.transport)
    offers, zones = Offers(requests, str(tmp_path)), {"us-central1": ("us-central1-a",)}
    assert offers.in_regions(zones)[0].price_micros is None
    api.answers[SKUS] = {"skus": CATALOG}
    assert offers.in_regions(zones)[0].price_micros is not None
    requests.close()
