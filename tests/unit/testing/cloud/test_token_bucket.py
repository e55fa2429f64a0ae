"""Token buckets limit rates of requests."""

from gridmill.testing.cloud.token_bucket import TokenBuckets


def test_a_bucket_is_full_at_first_and_gets_tokens_at_its_rate():
    buckets = TokenBuckets()

    def take(key: str, now: float, count: int = 1) -> bool:
        return buckets.take(key, now, size=10.0, per_second=2.0, count=count)

    assert take("lists", 1000.0, 10)
    assert not take("lists", 1000.4)
    assert take("lists", 1000.5)
    assert take("changes", 1000.5)
    assert (buckets.left("lists"), buckets.left("changes"), buckets.left("none")) == (0.0, 9.0, None)


def test_a_bucket_does_not_overflow_and_a_refused_request_takes_nothing():
    buckets = TokenBuckets()
    assert not buckets.take("lists", 0.0, size=3.0, per_second=1.0, count=4)
    assert buckets.take("lists", 100.0, size=3.0, per_second=1.0, count=3)
    assert not buckets.take("lists", 100.0, size=3.0, per_second=1.0)
