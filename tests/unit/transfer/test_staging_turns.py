"""Who is at small files, and who waits for whom."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from gridmill.transfer.chunk_manifest import FairScheduler

LONG_SECONDS = 600.0


def held(turns, files=10_000):
    """Another thread has its turn: sets the event to end it."""
    begun, end = threading.Event(), threading.Event()

    def hold():
        with turns.turn(files):
            begun.set()
            end.wait(LONG_SECONDS)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert begun.wait(LONG_SECONDS)
    return end, thread


def test_one_after_the_other():
    turns = FairScheduler(LONG_SECONDS)
    inside, most = [], []

    def one(_):
        with turns.turn(10_000):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.001)
            inside.pop()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(one, range(40)))
    assert max(most) == 1


def test_whoever_hangs_holds_nobody_up_for_long():
    end, thread = held(FairScheduler())
    with FairScheduler(0.01).turn(1):
        assert thread.is_alive()
    end.set()
    thread.join()


def test_where_files_are_waited_for_nobody_waits_for_a_turn():
    slow = FairScheduler(LONG_SECONDS)
    with slow.turn(1):
        time.sleep(0.05)  # as a disk
    end, thread = held(FairScheduler())
    with slow.turn(1):
        assert thread.is_alive()
    end.set()
    thread.join()


def test_a_turn_ends_also_by_an_error():
    turns = FairScheduler(LONG_SECONDS)

    def fail():
        with turns.turn(1):
            raise ValueError

    with ThreadPoolExecutor(1) as threads:
        assert isinstance(threads.submit(fail).exception(), ValueError)
    with turns.turn(1):
        pass
