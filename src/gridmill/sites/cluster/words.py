"""What pods that are gone said last, and what it tells of, comes home beside: others are looked at
meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Lock

from gridmill.errors import UnavailableError
from gridmill.model.event import PodEvent
from gridmill.sites.cluster.asked import Asked, is_unavailable

Words = tuple[PodEvent, ...]
_AT_ONCE = 4
_MOMENT_SECONDS = 1.0
"""Most have made nothing, or little: it is here before anybody has to ask again."""


class LastWords:
    """Of the pods of one farm. Safe to call from several threads."""

    def __init__(self, bring: Callable[[str, Words], Words]) -> None:
        """`bring` makes of what a pod had journalled what is to be believed of it, once all that it tells of
        is here; when it raises UnavailableError it is asked again."""
        self._bring = bring
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="gridmill-words")
        self._coming: dict[str, Asked[Words]] = {}
        self._lock = Lock()

    def here(self, journalled: Mapping[str, Words]) -> frozenset[str]:
        """Of these pods, by what they had journalled, those whose last words can be taken now. Raises
        UnavailableError once it is closed."""
        with self._lock:
            for pod, words in journalled.items():
                if pod not in self._coming:
                    self._coming[pod] = Asked(partial(self._submit, pod, words), is_unavailable)
            asked = {pod: self._coming[pod] for pod in journalled}
        wait([one.future for one in asked.values()], _MOMENT_SECONDS)
        with self._lock:
            return frozenset(pod for pod, one in asked.items() if one.is_there())

    def _submit(self, pod: str, words: Words) -> Future[Words]:
        try:
            return self._pool.submit(self._bring, pod, words)
        except RuntimeError as error:
            raise UnavailableError("nothing more is brought home here") from error

    def take(self, pod: str) -> Words | None:
        """What is to be believed of that pod; None where it is not here. Raises what `bring` did."""
        with self._lock:
            found = self._coming.get(pod)
            if found is None or not found.is_there():
                return None
            del self._coming[pod]
        return None if found.future.cancelled() else found.future.result()

    def drop(self, pods: Sequence[str]) -> None:
        """Nobody asks for these any more."""
        with self._lock:
            for pod in pods:
                self._coming.pop(pod, None)

    def close(self) -> None:
        """Bring nothing more. May be repeated."""
        self._pool.shutdown(wait=False, cancel_futures=True)
