"""This module defines secrets: values under a name that are stored encrypted, and references to secrets.

A declaration contains only the reference `${secret:NAME}`. In a pipeline file, `{secret: NAME}` is the same
reference. The process that needs the value of a reference receives it when it starts.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote, quote_plus

from gridmill.domain.amounts import KIB
from gridmill.domain.frozen import dataclass
from gridmill.domain.naming import check_name
from gridmill.errors import InputError

SECRET_REFERENCE = re.compile(r"\$\{secret:([^}]*)\}")
"""A reference to a secret in a text. The first group is the name of the secret."""
LEAST_CHARACTERS = 4
"""The smallest number of characters of a value. Shorter values occur by chance in logs, so masking them would
make logs unreadable."""
MOST_BYTES = 16 * KIB
"""The largest size of a value in UTF-8. Keys and certificates are smaller."""
MASK = "***"
_LINE_BYTES = 8
"""Lines of a value with fewer bytes are not masked on their own."""
_ENCODED_BYTES = 6
"""Parts of an encoded value with fewer bytes are not masked, because they occur by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret as it is stored. `sealed` is the encrypted value in base64, and `key_id` identifies the key
    that encrypted it. `version` is 1 for the first value, and increases with each new value. `created` and
    `changed` are the Unix times of the first and of the present value."""

    name: str
    version: int
    sealed: str
    key_id: str
    created: float
    changed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretView:
    """A secret without its value. `used_by` has the pipelines, active runs and sites that refer to the
    secret. `problem` is the reason why the value cannot be decrypted, or empty."""

    name: str
    version: int
    created: float
    changed: float
    used_by: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRotation:
    """The result of a rotation of the key: the id of the new key, and the number of secrets that are now
    encrypted with it."""

    key_id: str
    secrets: int


def check_secret_name(name: str) -> None:
    """Raise InputError if the name of a secret is invalid."""
    check_name("secret", name)


def check_value(name: str, value: str) -> None:
    """Raise InputError if a value is too short or too long, or if it contains NUL. The error does not contain
    the value."""
    place = f"secret {name}"
    if len(value.strip()) < LEAST_CHARACTERS:
        raise InputError(
            f"the value has {len(value.strip())} characters (spaces at its ends do not count); it must have "
            f"at least {LEAST_CHARACTERS}",
            hint="Gridmill replaces each occurrence of the value in logs by ***. A shorter value occurs by "
            "chance, so it would make logs unreadable.",
            place=place,
        )
    if len(value.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise InputError(f"the value is larger than {MOST_BYTES} bytes", place=place)
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InputError("the value is not text: it contains NUL or is not UTF-8", place=place)
    if not value.strip("*"):
        raise InputError("the value consists of * only, as masked values do", place=place)


def reference_to(name: str) -> str:
    """Return the reference to a secret."""
    return f"${{secret:{name}}}"


def names_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the secrets to which the texts refer, each once, in order."""
    found = (name for text in texts if "${secret:" in text for name in SECRET_REFERENCE.findall(text))
    return tuple(dict.fromkeys(found))


def fill_in_secrets(text: str, values: Mapping[str, str], place: str, *, in_url: bool = False) -> str:
    """Return the text in which each reference is replaced by the value of its secret.

    With `in_url`, a value inside a longer text is quoted so that it is valid inside a URL. Raises InputError
    at `place` if a value is missing.
    """
    alone = SECRET_REFERENCE.fullmatch(text) is not None

    def value(match: re.Match[str]) -> str:
        found = values.get(match[1])
        if found is None:
            raise InputError(
                f"the process did not receive the value of the secret {match[1]!r}",
                hint="Only the process of a job receives values, and only of the secrets that its job names.",
                place=place,
            )
        return quote(found, safe="") if in_url and not alone else found

    return SECRET_REFERENCE.sub(value, text)


def resolved(text: str, resolve: Callable[[str], str]) -> str:
    """Return the text in which each reference is replaced by the value that `resolve` returns."""
    return SECRET_REFERENCE.sub(lambda match: resolve(match[1]), text)


def forms_of(value: str) -> frozenset[bytes]:
    """Return the forms of a value that are masked: the value itself and its longer lines, its base64 codes
    (also as a part of a longer coded text), its quoted form in URLs, and its form in JSON texts."""
    lines = (line.strip() for line in value.splitlines()) if "\n" in value else ()
    texts = [value, value.strip(), *(line for line in lines if len(line.encode()) >= _LINE_BYTES)]
    plain = {text.encode() for text in texts if len(text) >= LEAST_CHARACTERS}
    quoted = {quote(value, safe=""), quote(value), quote_plus(value), quote(value, safe="").lower()}
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    others = {text.encode() for text in quoted | escaped} | _base64_of(value.encode())
    return frozenset(plain | {form for form in others if len(form) >= LEAST_CHARACTERS})


def _base64_of(data: bytes) -> set[bytes]:
    """Return the base64 codes of the data with all three alignments in a longer text. A code begins and ends
    with the first and last character that only the data determines."""
    codes = set()
    for before in range(3):
        padded = bytes(before) + data
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            code = encode(padded)
            first, last = -(-before * 8 // 6), len(padded) * 8 // 6
            codes.add(code[first:last])
    return {code for code in codes if len(code) >= _ENCODED_BYTES}
