"""The credentials of the buckets of a cloud site, as references to secrets.

They are settings of the site whose names begin with `bucket_`. If a site has none of them, and the bucket is
at the provider of the machines, the keys of the provider are used. Otherwise, the credentials come from the
environment of the control node.
"""

from collections.abc import Iterator, Mapping

from gridmill.domain.secret import SECRET_REFERENCE
from gridmill.domain.site import Site
from gridmill.domain.source import CREDENTIALS, check_credential
from gridmill.errors import InputError
from gridmill.transfer.signed_urls import check_bucket

_PROVIDERS = {"s3": "aws", "gs": "gcp"}
"""The provider whose buckets have the scheme."""
_OPTIONAL = "session_token"
SETTINGS: Mapping[str, str] = {
    f"bucket_{name}": f"the `{name}` of {scheme}:// buckets, as ${{secret:NAME}} (default: the key of the "
    "provider, else the environment)"
    for scheme, names in CREDENTIALS.items()
    for name in names
}
"""The settings with credentials, with their descriptions."""


def check_buckets(site: Site) -> None:
    """Raises InputError if the URL of a bucket is not valid, if a secret is written down, or if a key is not
    complete."""
    for name in ("export", "shared"):
        if url := site.settings.get(name):
            check_bucket(url, f"site {site.name}: settings.{name}")
    for scheme, names in CREDENTIALS.items():
        own = _own(site, scheme)
        for name in names:
            place = f"site {site.name}: settings.bucket_{name}"
            check_credential(name, own.get(name), place)
            if own and name not in own and name != _OPTIONAL:
                raise InputError(
                    f"the key of the bucket has no {name}",
                    hint=f"Set bucket_{name}, or remove the other settings that begin with bucket_.",
                    place=place,
                )


def bucket_credentials(site: Site) -> dict[str, str]:
    """Returns the credentials of the buckets by their names in CREDENTIALS. Secrets are references. The
    result lacks the credentials that come from the environment."""
    found: dict[str, str] = {}
    for scheme in CREDENTIALS:
        found |= _own(site, scheme) or dict(_of_provider(site, scheme))
    return found


def _own(site: Site, scheme: str) -> dict[str, str]:
    texts = ((name, site.settings.get(f"bucket_{name}", "")) for name in CREDENTIALS[scheme])
    return {name: text for name, text in texts if text}


def _of_provider(site: Site, scheme: str) -> Iterator[tuple[str, str]]:
    """Yields the keys of the provider, unless the bucket is at another server. The settings of a provider
    contain the plain names of secrets."""
    if site.settings.get("provider") != _PROVIDERS[scheme] or site.settings.get("endpoint"):
        return
    for name in CREDENTIALS[scheme]:
        text = site.settings.get(name, "")
        is_plain = name == "access_key_id" or SECRET_REFERENCE.search(text) is not None
        if text:
            yield name, text if is_plain else f"${{secret:{text}}}"
