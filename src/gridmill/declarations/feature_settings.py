"""Reads the file with the settings of the contextual features of a service."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gridmill.declarations.yaml import parse_documents
from gridmill.domain.amounts import parse_seconds
from gridmill.domain.naming import did_you_mean
from gridmill.domain.service_features import (
    REACH_BACK_SECONDS,
    FeatureRule,
    FeatureSettings,
    OnlinePolicy,
    OnTrouble,
    check_features,
)
from gridmill.errors import InputError

_FIELDS = ("sent", "rules", "stale_after", "on_stale", "on_broken", "on_unknown_key", "reach_back")
_RULE = ("max_age", "default")
ANY_TIME = "all"
"""As `reach_back`, it means that a request may have any as-of time."""
E = TypeVar("E", bound=StrEnum)


def read_feature_settings(file: Path) -> FeatureSettings:
    """Return the settings in a YAML or JSON file. Raises InputError that names the field."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}", place="features") from error
    documents = parse_documents(text, str(file))
    content: Any = documents[0].value if documents else {}
    return _Reader(str(file)).settings(content if content is not None else {})


class _Reader:
    """Converts the values of one file."""

    def __init__(self, file: str) -> None:
        self._file = file

    def settings(self, content: Any) -> FeatureSettings:  # noqa: ANN401  any YAML
        fields = self._mapping(content, "", _FIELDS)
        sent = fields.get("sent", [])
        if not isinstance(sent, list) or not all(isinstance(one, str) for one in sent):
            self._refuse("sent", sent, "a list of names")
        rules = fields.get("rules") or {}
        policy = OnlinePolicy(
            stale_after_seconds=self._seconds(fields, "stale_after", "stale_after"),
            on_stale=self._word(fields, "on_stale", OnTrouble.SERVE),
            on_broken=self._word(fields, "on_broken", OnTrouble.REFUSE),
            on_unknown_key=self._word(fields, "on_unknown_key", OnTrouble.SERVE),
        )
        settings = FeatureSettings(
            sent=tuple(map(str, sent)),
            rules={str(name): self._rule(str(name), rule) for name, rule in self._pairs(rules, "rules")},
            policy=policy,
            reach_back_seconds=self._reach_back(fields),
        )
        check_features(settings)
        return settings

    def _rule(self, name: str, content: Any) -> FeatureRule:  # noqa: ANN401  any YAML
        place = f"rules.{name}"
        fields = self._mapping(content, place, _RULE)
        default = fields.get("default")
        if not isinstance(default, float | int | str | bool | None):
            self._refuse(f"{place}.default", default, "a number, a text, true or false")
        number = isinstance(default, int | float) and not isinstance(default, bool)
        return FeatureRule(
            max_age_seconds=self._seconds(fields, "max_age", f"{place}.max_age"),
            default=float(default) if number else default,  # type: ignore[arg-type]  # a number here
        )

    def _reach_back(self, fields: Mapping[str, Any]) -> float | None:
        if fields.get("reach_back") == ANY_TIME:
            return None
        seconds = self._seconds(fields, "reach_back", "reach_back")
        return REACH_BACK_SECONDS if seconds is None else seconds

    def _seconds(self, fields: Mapping[str, Any], name: str, place: str) -> float | None:
        value = fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self._refuse(place, value, "a time such as `2h`")
        try:
            return parse_seconds(str(value))
        except InputError as error:
            raise InputError(f"{self._file}: {place}: {error.message}", hint=error.hint) from error

    def _word(self, fields: Mapping[str, Any], name: str, otherwise: OnTrouble) -> OnTrouble:
        value = fields.get(name, otherwise.value)
        if value not in list(OnTrouble):
            self._refuse(name, value, "`refuse` or `serve`")
        return OnTrouble(value)

    def _pairs(self, content: Any, place: str) -> list[tuple[Any, Any]]:  # noqa: ANN401  any YAML
        if not isinstance(content, dict):
            self._refuse(place, content, "a mapping")
        return list(content.items())

    def _mapping(self, content: Any, place: str, names: tuple[str, ...]) -> dict[str, Any]:  # noqa: ANN401
        fields = dict(self._pairs(content, place or "the file"))
        for name in fields:
            if name not in names:
                where = f"{place}.{name}" if place else str(name)
                raise InputError(
                    f"{self._file}: {where}: there is no such field{did_you_mean(str(name), names)}",
                    hint=f"The fields are {', '.join(names)}.",
                )
        return fields

    def _refuse(self, place: str, value: object, needed: str) -> NoReturn:
        raise InputError(f"{self._file}: {place}: {str(value)[:80]!r} is not {needed}")
