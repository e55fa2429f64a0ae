"""Asks the control node for the values of the secrets that an attempt needs, before the attempt starts.

The values are encrypted for a key pair that exists only in the memory of this pod. They are never part of an
order, so no file of the pod contains them. If the pod ends before the attempt has started, its key is lost,
and the next pod asks again.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import SecretRequest, SecretValues, Start, secret_context
from gridmill.errors import InputError

if TYPE_CHECKING:
    from gridmill.auth.cipher import Receiver


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyStart:
    """A Start message, and the values of the secrets that its job names. If the values could not be
    received, `trouble` is the reason."""

    start: Start
    values: Mapping[str, str]
    trouble: InputError | None = None


class SecretRequests:
    """The attempts that wait for values of secrets."""

    def __init__(self) -> None:
        self._waiting: dict[str, Start] = {}
        self._receiver: Receiver | None = None

    def ask(self, start: Start) -> SecretRequest:
        """Returns the message that asks for the values of an attempt, and holds back the start of the
        attempt. May be repeated for the same attempt. Raises InputError if this machine cannot decrypt
        values."""
        receiver = self._key_pair()
        self._waiting[start.order.attempt_id] = start
        return SecretRequest(
            attempt_id=start.order.attempt_id, token=start.order.token, public_key=receiver.public_key
        )

    def receive(self, message: SecretValues) -> ReadyStart | None:
        """Returns the start that waited for these values, or None if none waited."""
        start = self._waiting.pop(message.attempt_id, None)
        if start is None or self._receiver is None:
            return None
        try:
            context = secret_context(start.order.attempt_id, start.order.token)
            values = json.loads(self._receiver.open(message.sealed, context))
        except (InputError, ValueError) as error:
            trouble = InputError(f"its secrets cannot be decrypted: {error}")
            return ReadyStart(start=start, values={}, trouble=trouble)
        missing = [name for name in start.order.job.secrets if name not in values]
        lacking = f"the control node did not send the secrets {', '.join(missing)}"
        return ReadyStart(start=start, values=values, trouble=InputError(lacking) if missing else None)

    def drop(self, attempt_id: str) -> None:
        """Starts the attempt no more. May be repeated."""
        self._waiting.pop(attempt_id, None)

    def _key_pair(self) -> "Receiver":
        if self._receiver is None:
            try:
                # imported here, because it loads the package cryptography, which most pods do not need
                from gridmill.auth.cipher import Receiver
            except ModuleNotFoundError as error:
                raise InputError(
                    "the job uses secrets, and its pod has no package `cryptography` to decrypt them",
                    hint="pip install cryptography",
                ) from error
            self._receiver = Receiver()
        return self._receiver
