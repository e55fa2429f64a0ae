"""Parses the settings of sites and of accounts, which are texts. An error names the setting and the place."""

import re
from collections.abc import Mapping
from ipaddress import ip_network

from gridmill.domain.amounts import parse_seconds
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

PROGRAM = re.compile(r"[\w.+-]+|/[^\x00-\x1f\x7f]+")
"""The name of a program, or its absolute path."""
REGION = re.compile(r"[a-z0-9-]+")
"""The name of a region, or the beginning of a name."""


def words(text: str) -> tuple[str, ...]:
    """Splits a text at commas, without empty words."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingTexts:
    """Settings by name. `owner` is the site whose settings they are, such as `site aws`; it is empty for the
    settings of an account. All methods raise InputError if a setting is invalid. `usual` is the value of a
    setting that is missing."""

    texts: Mapping[str, str]
    owner: str = ""

    def wrong(self, name: str, problem: str, hint: str) -> InputError:
        """Returns the error for a setting."""
        place = f"{self.owner}: settings.{name}" if self.owner else f"settings.{name}"
        return InputError(problem, hint=hint, place=place)

    def one(self, name: str, form: re.Pattern[str], usual: str = "", example: str = "") -> str:
        """Returns a text of a form. The text can be empty if `usual` is empty."""
        text = self.texts.get(name, usual).strip()
        if (text or usual) and not form.fullmatch(text):
            hint = f"Write for example {example}." if example else f"The default is {usual}."
            raise self.wrong(name, f"{text!r} is not valid", hint)
        return text

    def many(
        self, name: str, form: re.Pattern[str], example: str, problem: str = "is not valid"
    ) -> tuple[str, ...]:
        """Returns texts of a form, which are separated by commas."""
        values = words(self.texts.get(name, ""))
        for value in values:
            if not form.fullmatch(value):
                raise self.wrong(name, f"{value!r} {problem}", f"Write for example {example}.")
        return values

    def networks(self, name: str, usual: str = "") -> tuple[str, ...]:
        """Returns networks of IPv4 or IPv6 with their lengths, which are separated by commas. If there is a
        usual network, at least one network must be given, because none would mean all."""
        hint = "Write for example 203.0.113.7/32."
        found = words(self.texts.get(name, usual))
        if usual and not found:
            raise self.wrong(name, "there is no network", hint)
        try:
            return tuple(str(ip_network(word)) for word in found)
        except ValueError as error:
            raise self.wrong(name, str(error), hint) from error

    def choice(self, name: str, usual: str, other: str) -> str:
        """Returns one of two texts."""
        value = self.texts.get(name) or usual
        if value not in (usual, other):
            raise self.wrong(name, f"{value!r} is neither {usual} nor {other}", f"Write for example {usual}.")
        return value

    def flag(self, name: str) -> bool:
        """Returns whether a setting is true. The default is false."""
        return self.choice(name, "false", "true") == "true"

    def number(self, name: str, usual: str, least: int, most: int) -> int:
        """Returns a whole number from `least` to `most`."""
        text = self.texts.get(name, usual)
        if not text.isdecimal() or not least <= int(text) <= most:
            problem = f"{text!r} is not a whole number from {least} to {most}"
            raise self.wrong(name, problem, f"The default is {usual}.")
        return int(text)

    def seconds(self, name: str, usual: str, *, least: float = 0.0) -> float:
        """Returns a duration in seconds."""
        try:
            seconds = parse_seconds(self.texts.get(name, usual))
        except InputError as error:
            raise self.wrong(name, error.message, error.hint) from error
        if seconds < least:
            raise self.wrong(name, f"is less than {least:g} s", f"The default is {usual}.")
        return seconds
