"""What a farm refuses of what its source says does not hold up the rest."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from gridmill.codec import decode_passed, encode_passed
from gridmill.errors import GridmillError, InputError
from gridmill.model.amounts import Amounts
from gridmill.model.job import CommandSpec, Job
from gridmill.model.message import Ack, Order, Start, Stop
from gridmill.sites.cluster.relay import _Session


class Older:
    """A farm that does not know some of what is said. `place`: of what it says then."""

    def __init__(self) -> None:
        self.said: list[tuple[int, bytes]] = []
        self.place = ""

    def open_relay(self) -> str:
        return "s"

    def say(self, session: str, number: int, lines: Sequence[bytes]) -> None:
        if any(b"of-tomorrow" in line for line in lines):
            raise InputError("not a Start", place=self.place)
        self.said += [(number, line) for line in lines]


class Refusals:
    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    def refuse(self, attempt_id: str, why: GridmillError) -> None:
        self.refused[attempt_id] = why.message


def start(name: str) -> bytes:
    order = Order(
        attempt_id=name,
        token="t",
        run_id="r",
        pipeline="p",
        job=Job(name="j", command=CommandSpec(run="true")),
        given=Amounts(cpus=1, memory_bytes=1),
        root="",
        output_uri="",
    )
    return encode_passed(1, Start(order=order))


@pytest.fixture
def farm() -> Older:
    return Older()


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture
def session(farm: Older, refusals: Refusals) -> Iterator[_Session]:
    with ThreadPoolExecutor(1) as pool:
        yield _Session(farm, None, refusals, pool, threading.Event())  # type: ignore[arg-type]


def test_an_attempt_that_a_farm_does_not_understand_ends_and_others_begin(
    farm: Older, refusals: Refusals, session: _Session
) -> None:
    lines = [start("a"), start("of-tomorrow"), encode_passed(2, Ack(number=1))]
    last = session._told(1, lines)
    assert [line for _, line in farm.said] == [lines[0], lines[2]]
    numbers = [number for number, _ in farm.said]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] <= last
    assert refusals.refused == {"of-tomorrow": "the farm refuses it: not a Start"}
    _, stop = decode_passed(session._to_say.get_nowait() or b"")
    assert isinstance(stop, Stop)
    assert stop.attempt_id == "of-tomorrow"


def test_a_farm_that_refuses_us_is_dialled_again(farm: Older, refusals: Refusals, session: _Session) -> None:
    farm.place = "Authorization"
    with pytest.raises(InputError):
        session._told(1, [start("of-tomorrow")])
    assert refusals.refused == {}
