"""Reading ahead: what is read next is read while the batch before is written."""

from collections.abc import Generator, Iterable
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")

DEPTH = 2
_PATIENCE_SECONDS = 0.2


def ahead(items: Iterable[T], depth: int = DEPTH) -> Generator[T, None, None]:
    """The items in order, at most `depth` read before they are asked for; raises what `items` raises.

    Once this is closed, or not read to its end, nothing more is read.
    """
    waiting: Queue[tuple[tuple[T, ...], BaseException | None]] = Queue(depth)
    over = Event()

    def put(entry: tuple[tuple[T, ...], BaseException | None]) -> None:
        while not over.is_set():
            try:
                return waiting.put(entry, timeout=_PATIENCE_SECONDS)
            except Full:
                continue

    def read() -> None:
        try:
            for item in items:
                if over.is_set():
                    return
                put(((item,), None))
        except BaseException as error:  # noqa: BLE001  raised again where the items are used
            put(((), error))
        else:
            put(((), None))

    thread = Thread(target=read, name="ahead", daemon=True)
    thread.start()
    try:
        while True:
            several, error = waiting.get()
            if error is not None:
                raise error
            if not several:
                return
            yield from several
    finally:
        over.set()
        _drain(waiting)
        thread.join()


def _drain(waiting: Queue[tuple[tuple[T, ...], BaseException | None]]) -> None:
    try:
        while True:
            waiting.get_nowait()
    except Empty:
        return
