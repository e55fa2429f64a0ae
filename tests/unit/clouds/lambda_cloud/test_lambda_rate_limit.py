import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gridmill.clouds.lambda_cloud.rate_limit import CALL_SECONDS, LAUNCH_SECONDS, RateLimit
from gridmill.clouds.lambda_cloud.requests import LambdaRequests, RateError
from gridmill.clouds.lambda_cloud.settings import LambdaSettings
from gridmill.errors import UnavailableError


class Time:
    """A clock that pauses move forward."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses = []
        self._lock = threading.Lock()

    def pause(self, seconds: float) -> None:
        with self._lock:
            self.pauses.append(seconds)
            self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def rate_limit(time: Time) -> RateLimit:
    """Makes a rate limit whose first call and first launch are permitted now."""
    made = RateLimit(lambda: time.now, time.pause)
    time.now += LAUNCH_SECONDS
    return made


def test_one_call_per_second(rate_limit, time):
    began = time.now
    for _ in range(4):
        rate_limit.wait("x")
    assert time.now - began == pytest.approx(3 * CALL_SECONDS)
    time.now += 100
    rate_limit.wait("x")
    assert len(time.pauses) == 3


def test_a_launch_that_was_held_back_counts_as_not_sent(rate_limit):
    rate_limit.hold(100.0, is_launch=True)
    requests = LambdaRequests(LambdaSettings(api_key="k"), rate_limit=rate_limit)
    with pytest.raises(RateError, match="next"):
        requests.post("/instance-operations/launch", {}, is_launch=True)


def test_a_new_process_leaves_the_time_that_an_earlier_one_needs():
    time = Time()
    RateLimit(lambda: time.now, time.pause).wait("x")
    assert time.now == CALL_SECONDS
    RateLimit(lambda: time.now, time.pause).wait("x", is_launch=True)
    assert time.now == CALL_SECONDS + LAUNCH_SECONDS


def test_the_time_between_launches_is_that_between_their_requests(rate_limit, time):
    sent = []
    for _ in range(3):
        rate_limit.wait("x")
        rate_limit.wait("x")
        rate_limit.wait("x", is_launch=True)
        sent.append(time.now)
    assert [round(later - earlier, 6) for earlier, later in itertools.pairwise(sent)] == [LAUNCH_SECONDS] * 2


def test_a_call_waits_for_a_second_after_a_launch(rate_limit, time):
    began = time.now
    rate_limit.wait("x", is_launch=True)
    rate_limit.wait("x")
    assert time.now - began == pytest.approx(CALL_SECONDS)


def test_launches_far_in_the_future_fail_while_calls_are_sent(rate_limit, time):
    go_on, in_pause = threading.Event(), threading.Semaphore(0)

    def pause(seconds: float) -> None:
        in_pause.release()
        assert go_on.wait(30)
        time.pause(seconds)

    rate_limit.wait("x", is_launch=True)
    rate_limit.pause = pause
    with ThreadPoolExecutor(2) as threads:
        launches = []
        for _ in range(2):
            launches.append(threads.submit(rate_limit.wait, "x", is_launch=True))
            assert in_pause.acquire(timeout=30)
        with pytest.raises(UnavailableError, match="permitted in 38 s"):
            rate_limit.wait("lambda POST /launch", is_launch=True)
        go_on.set()
        for launch in launches:
            launch.result(30)
    assert time.now >= 3 * LAUNCH_SECONDS


def test_threads_get_turns_one_after_the_other():
    time = Time()
    rate_limit = RateLimit(lambda: 0.0, time.pause)
    with ThreadPoolExecutor(20) as threads:
        list(threads.map(rate_limit.wait, ["x"] * 20))
    assert sorted(time.pauses) == pytest.approx([number * CALL_SECONDS for number in range(1, 21)])


def test_after_a_refusal_no_call_is_sent_for_the_named_time(rate_limit, time):
    began = time.now
    rate_limit.hold(20.0)
    rate_limit.wait("x")
    assert time.now - began == 20.0
    rate_limit.hold(25.0, is_launch=True)
    rate_limit.wait("x")
    assert time.now - began == pytest.approx(20.0 + CALL_SECONDS)
    rate_limit.wait("x", is_launch=True)
    assert time.now - began == pytest.approx(45.0)
    rate_limit.hold(600.0)
    with pytest.raises(UnavailableError, match="600 s"):
        rate_limit.wait("x")
