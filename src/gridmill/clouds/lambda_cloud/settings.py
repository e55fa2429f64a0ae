"""The settings of an account at Lambda Cloud: its API key, its regions, and how machines end themselves."""

import hashlib
import os
import re
from collections.abc import Callable, Mapping

from gridmill.domain.frozen import dataclass
from gridmill.domain.setting_texts import REGION, SettingTexts
from gridmill.errors import InputError

KNOWN: Mapping[str, str] = {
    "regions": "regions, or beginnings of their names, separated by commas (default: all)",
    "api_key": "the name of the secret with the API key (default: the environment variable LAMBDA_API_KEY)",
    "account": "a name for the account (default: derived from the API key)",
    "self_terminate": "the name of a secret with an API key that each machine gets, to end itself",
    "endpoint_url": "the URL of a server that has the API of Lambda Cloud, for tests",
}
"""The settings of an account, with their descriptions."""


def known_settings() -> Mapping[str, str]:
    """Return the settings of an account, with their descriptions."""
    return KNOWN


ENDPOINT = "https://cloud.lambda.ai"
KEY_VARIABLE = "LAMBDA_API_KEY"
"""The environment variable with the API key, as in the documentation of Lambda Cloud."""
_URL = re.compile(r"https?://[^\s/]+/?")
_KEY = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LambdaSettings:
    """The parsed settings. `regions` are names or beginnings of names of regions; an empty tuple means all
    regions. `api_key` is the key itself. `machine_key` is the key that each machine gets; if it is empty,
    machines cannot end themselves."""

    api_key: str = ""
    regions: tuple[str, ...] = ()
    name: str = ""
    machine_key: str = ""
    endpoint_url: str = ENDPOINT

    def __repr__(self) -> str:
        return f"LambdaSettings(account={self.account!r}, regions={self.regions!r})"

    @property
    def account(self) -> str:
        """The name of the account. Lambda Cloud has no request that returns one."""
        return self.name or f"key-{hashlib.sha256(self.api_key.encode()).hexdigest()[:12]}"

    def permits(self, region: str) -> bool:
        """Return whether machines may be rented in the region."""
        return not self.regions or region.startswith(self.regions)


def read_settings(
    settings: Mapping[str, str],
    resolve: Callable[[str], str],
    environment: Mapping[str, str] = os.environ,
) -> LambdaSettings:
    """Parse the settings. `resolve` returns the value of a secret with a given name. Raises InputError."""
    texts = SettingTexts(texts=settings)
    key, machine_key = settings.get("api_key", ""), settings.get("self_terminate", "")
    return LambdaSettings(
        api_key=_key("api_key", resolve(key) if key else environment.get(KEY_VARIABLE, "")),
        regions=texts.many(
            "regions", REGION, "us- or europe-central-1", "is not the beginning of a region's name"
        ),
        name=settings.get("account", "").strip(),
        machine_key=_key("self_terminate", resolve(machine_key)) if machine_key else "",
        endpoint_url=_endpoint(settings),
    )


def _key(name: str, value: str) -> str:
    key = value.strip()
    if key and not _KEY.fullmatch(key):
        raise InputError(
            "the API key contains spaces or characters that are not ASCII",
            hint="Copy the key again from https://cloud.lambda.ai/api-keys, then `gridmill add secret NAME`.",
            place=f"settings.{name}",
        )
    return key


def _endpoint(settings: Mapping[str, str]) -> str:
    url = settings.get("endpoint_url") or ENDPOINT
    if not _URL.fullmatch(url):
        raise InputError(
            f"{url!r} is not the URL of a server",
            hint=f"Write for example {ENDPOINT}.",
            place="settings.endpoint_url",
        )
    return url.rstrip("/")
