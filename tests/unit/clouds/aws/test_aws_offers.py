import json
from datetime import UTC, datetime

from gridmill.clouds.aws.offers import micros_of, offers_of, on_demand_prices, spot_prices
from gridmill.clouds.offer_cache import CachedOffers, OfferCache

G5 = {
    "InstanceType": "g5.xlarge",
    "SupportedUsageClasses": ["on-demand", "spot"],
    "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
    "VCpuInfo": {"DefaultVCpus": 4},
    "MemoryInfo": {"SizeInMiB": 16384},
    "InstanceStorageInfo": {"TotalSizeInGB": 250},
    "GpuInfo": {
        "Gpus": [{"Name": "A10G", "Manufacturer": "NVIDIA", "Count": 1, "MemoryInfo": {"SizeInMiB": 24576}}]
    },
}
G4AD = {
    **G5,
    "InstanceType": "g4ad.xlarge",
    "GpuInfo": {"Gpus": [{**G5["GpuInfo"]["Gpus"][0], "Manufacturer": "AMD"}]},
}
M5 = {key: value for key, value in G5.items() if key not in ("GpuInfo", "InstanceStorageInfo")}
M5["InstanceType"] = "m5.large"


def _product(name, price, unit="Hrs"):
    dimension = {"unit": unit, "pricePerUnit": {"USD": price}}
    return json.dumps(
        {
            "product": {"attributes": {"instanceType": name}},
            "terms": {"OnDemand": {"term": {"priceDimensions": {"rate": dimension}}}},
        }
    )


def test_an_offer_has_the_sizes_and_prices_of_its_type():
    zones = {
        "g5.xlarge": ("us-east-1a", "us-east-1b"),
        "m5.large": ("us-east-1a",),
        "g4ad.xlarge": ("us-east-1a",),
    }
    offers = offers_of("us-east-1", [M5, G5, G4AD], zones, {"g5.xlarge": 1_006_000}, {"m5.large": 30_000})
    g5, m5 = offers
    assert (g5.instance_type, g5.gpus, g5.gpu_model) == ("g5.xlarge", 1, "A10G")
    assert g5.gpu_memory_bytes == 24 * 2**30
    assert g5.memory_bytes == 16 * 2**30
    assert g5.disk_bytes == 250 * 10**9
    assert g5.zones == ("us-east-1a", "us-east-1b")
    assert (g5.price_micros, g5.spot_price_micros) == (1_006_000, None)
    assert (m5.gpus, m5.gpu_memory_bytes, m5.price_micros, m5.spot_price_micros) == (0, 0, None, 30_000)


def test_a_type_that_no_zone_offers_is_left_out():
    assert offers_of("us-east-1", [G5], {}, {}, {}) == ()


def test_a_price_is_exact_and_a_missing_or_zero_price_is_unknown():
    assert micros_of("1.0060000000") == 1_006_000
    assert micros_of("0.0000000001") == 1
    assert [micros_of(text) for text in ("0.0000000000", "", "free", "NaN", "-1")] == [None] * 5


def test_prices_on_demand_come_from_hourly_terms():
    products = [
        _product("g5.xlarge", "1.006"),
        _product("m5.large", "0.096"),
        _product("t3.micro", "5", "Quantity"),
    ]
    assert on_demand_prices(products) == {"g5.xlarge": 1_006_000, "m5.large": 96_000}


def test_the_spot_price_is_the_newest_of_each_zone_and_the_highest_of_the_region():
    def row(zone, price, day):
        at = datetime(2026, 1, day, tzinfo=UTC)
        return {"InstanceType": "g5.xlarge", "AvailabilityZone": zone, "SpotPrice": price, "Timestamp": at}

    history = [row("a", "0.9", 1), row("a", "0.4", 3), row("b", "0.5", 2), row("b", "0.8", 1)]
    assert spot_prices(history) == {"g5.xlarge": 500_000}


def test_cached_offers_are_read_again_and_a_damaged_cache_counts_as_missing(tmp_path):
    offers = offers_of("us-east-1", [G5], {"g5.xlarge": ("us-east-1a",)}, {}, {})
    cached = CachedOffers(read=5.0, offers=offers)

    def cache() -> OfferCache:
        return OfferCache("aws", str(tmp_path / "cache"), kept_seconds=10.0)

    first = cache()
    first.keep("us-east-1", cached)
    assert cache().get("us-east-1", 6.0) == cached
    assert cache().get("us-west-2", 6.0) is None
    (tmp_path / "cache" / "aws-us-east-1.json").write_text('{"read": 5')
    assert cache().get("us-east-1", 6.0) is None
    assert first.get("us-east-1", 6.0) == cached


def test_offers_that_are_too_old_or_of_the_future_are_not_used():
    cache = OfferCache("aws", "", kept_seconds=10.0)
    cached = CachedOffers(read=100.0, offers=())
    cache.keep("us-east-1", cached)
    assert [cache.get("us-east-1", now) for now in (99.0, 100.0, 109.0, 110.0)] == [
        None,
        cached,
        cached,
        None,
    ]
