"""Masks the values of secrets in the output of a job: each occurrence of a value, or of a coded form of it,
becomes `***` before anything is stored.

A value may be split at any byte between two reads. The masker therefore holds back the end of the output as
long as it is the beginning of a value.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gridmill.domain.frozen import replace
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.secret import MASK, forms_of

_MASK = MASK.encode()


class Masking:
    """Masks the values of the secrets of one attempt."""

    def __init__(self, values: Iterable[str]) -> None:
        self._forms = frozenset(form for value in values for form in forms_of(value))

    def stream(self) -> "StreamMasker":
        """Return a masker for one stream of bytes."""
        return StreamMasker(self._forms)

    def text(self, text: str) -> str:
        """Return a complete text with its values masked."""
        masker = self.stream()
        data = text.encode("utf-8", "replace")
        return (masker.feed(data) + masker.end()).decode("utf-8", "replace")

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of an event with the values in its texts masked."""
        return {key: self.text(one) if isinstance(one, str) else one for key, one in body.items()}

    def outcome(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """Return the outcome of an attempt with the values in its message, its hint and the names of its
        metrics masked."""
        return replace(
            outcome,
            message=self.text(outcome.message),
            hint=self.text(outcome.hint),
            metrics={self.text(name): value for name, value in outcome.metrics.items()},
        )


class StreamMasker:
    """Masks one stream of bytes, which arrives in pieces of any size.

    The output does not depend on the sizes of the pieces. All bytes that belong to an occurrence of a form
    are left out, also where occurrences overlap, and each sequence of such bytes is replaced by one `***`.
    """

    def __init__(self, forms: Iterable[bytes]) -> None:
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        self._held = b""
        self._covered = 0
        """The number of bytes at the beginning of `_held` that belong to a sequence whose `***` was
        returned."""
        self._in_sequence = False
        """Whether the byte before `_held` belongs to an occurrence."""

    def feed(self, data: bytes) -> bytes:
        """Return the masked output up to the first byte that may belong to a value which is not complete."""
        text = self._held + data
        return self._masked(text, self._open_end(text))

    def end(self) -> bytes:
        """Return the output that was held back, at the end of the stream."""
        rest = self._masked(self._held, len(self._held))
        self._in_sequence = False
        return rest

    def _open_end(self, text: bytes) -> int:
        """Return the first position at which a form begins that the end of the text cuts off; the length of
        the text if there is none."""
        first = len(text)
        for form in self._forms:
            at = max(0, len(text) - len(form) + 1)
            while (at := text.find(form[:1], at, first)) >= 0:
                if form.startswith(text[at:]):
                    first = at
                    break
                at += 1
        return first

    def _masked(self, text: bytes, until: int) -> bytes:
        """Return the masked text up to a position, and holds back the rest. Occurrences that begin before
        the position and end after it are complete."""
        pieces: list[bytes] = []
        at, in_sequence = self._covered, self._in_sequence
        for begin, end in self._sequences(text):
            if begin >= until:
                break
            if begin > at or not in_sequence:
                pieces += [text[at:begin], _MASK]
            at, in_sequence = max(at, end), True
        if at < until:
            pieces.append(text[at:until])
            at, in_sequence = until, False
        self._held, self._covered = text[until:], at - until
        self._in_sequence = in_sequence
        return b"".join(pieces)

    def _sequences(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield the begin and the end of each sequence of bytes that belong to occurrences, in order."""
        begin = end = -1
        for first, last in sorted(self._occurrences(text)):
            if first > end:
                if end >= 0:
                    yield begin, end
                begin = first
            end = max(end, last)
        if end >= 0:
            yield begin, end

    def _occurrences(self, text: bytes) -> Iterator[tuple[int, int]]:
        for form in self._forms:
            at = text.find(form)
            while at >= 0:
                yield at, at + len(form)
                at = text.find(form, at + 1)
