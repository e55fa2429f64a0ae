"""The part of `add` for providers of rented machines, and the tables of their rights and quotas."""

from typing import Annotated

import typer

from gridmill.cli.session import emit, print_error, session, show
from gridmill.cli.tables import table
from gridmill.domain.frozen import dataclass
from gridmill.domain.machine import Quota
from gridmill.domain.naming import check_name
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import InputError
from gridmill.ports.cloud import AccountCheck
from gridmill.sdk.client import Client

Region = Annotated[
    str | None,
    typer.Option(
        metavar="REGION",
        help="For a cloud provider: regions that may be used, or beginnings of their names, separated by "
        "commas, for example us-. Default: all.",
        show_default=False,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="For AWS: profile of ~/.aws with the credentials.",
        show_default=False,
    ),
]
AccessKeyId = Annotated[
    str | None,
    typer.Option(metavar="ID", help="For AWS: id of the access key.", show_default=False),
]
SecretName = Annotated[
    str | None,
    typer.Option(
        "--secret",
        metavar="NAME",
        help="For a cloud provider: name of the secret (`gridmill add secret NAME`) with the access"
        " key (aws), the JSON key of a service account (gcp) or the API key (lambda).",
        show_default=False,
    ),
]
_SECRETS = {"gcp": "service_account_key", "lambda": "api_key"}
"""The setting that contains the name of the secret, by the kind of the provider."""
_PAGES = {
    "aws": "Rent machines from Amazon EC2",
    "gcp": "Rent machines from Google Compute Engine",
    "lambda": "Rent machines from Lambda Cloud",
}
"""The page of the documentation that lists the rights, by the kind of the provider."""
HEAD = ("cloud provider", "kind", "regions", "credentials", "machines at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """The options of `add cloudprovider`."""

    region: str | None
    profile: str | None
    access_key_id: str | None
    secret: str | None

    def settings(self, kind: str) -> dict[str, str]:
        """Return the settings of a provider of this kind for the given options."""
        given = {
            "regions": self.region,
            "profile": self.profile,
            "access_key_id": self.access_key_id,
            _SECRETS.get(kind, "secret_access_key"): self.secret,
        }
        return {name: value for name, value in given.items() if value}

    def check_none(self, noun: str) -> None:
        """Raise InputError if an option is given for another noun."""
        for name, value in (
            ("--region", self.region),
            ("--profile", self.profile),
            ("--access-key-id", self.access_key_id),
            ("--secret", self.secret),
        ):
            if value is not None:
                raise InputError(
                    f"a {noun} has no {name}", place=name, hint="gridmill add cloudprovider aws --region us-"
                )


def add_provider(
    context: typer.Context, name: str, kind: str | None, settings: dict[str, str], as_json: bool
) -> None:
    """Check an account at a provider, store it as a site, and print its rights and quotas. If the provider
    refuses the credentials, nothing is stored."""
    check_name("cloud provider", name)
    site = Site(name=name, kind=SiteKind.CLOUD, settings={"provider": kind or name, **settings})
    with session(context) as client:
        check = client.check_account(site)
        stored = _stored(client, site)
    if as_json:
        return emit({"site": stored, "check": check})
    print(f"cloud provider {name} ({stored.settings['provider']}): account {check.account}")
    print_check(check, name, stored.settings["provider"])
    return None


def _stored(client: Client, site: Site) -> Site:
    """Store the site. If a cloud provider with this name exists, its settings are replaced."""
    existing = next((one for one in client.list_sites() if one.name == site.name), None)
    is_same_kind = existing is not None and existing.kind is SiteKind.CLOUD
    return client.grid.add_site(site, replace=is_same_kind)


def print_check(check: AccountCheck, name: str, kind: str) -> None:
    """Print the missing rights and the quotas of an account at a provider of this kind, and how to get the
    rights."""
    for note in check.notes:
        print_error(f"note: {note}")
    for right in check.missing_rights:
        print_error(f"missing right: {right}")
    if check.missing_rights:
        page = f"see `{_PAGES[kind]}` in the documentation" if kind in _PAGES else "see its documentation"
        print_error(f"add them to the policy or the role of the credentials: {page}")
    rows = [quota_row(quota) for quota in sorted(check.quotas, key=_order)]
    if not rows:
        return print_error("the quotas are unknown: Gridmill finds out when it rents a machine")
    show(table("region", "machines", "rental", "used", "quota", "", rows=rows))
    print(f"to see what can be rented: gridmill offers {name} --gpus 1")
    return None


def _order(quota: Quota) -> tuple[str, bool, str]:
    return quota.region, quota.spot, quota.name


def quota_row(quota: Quota) -> tuple[object, ...]:
    """Return the table cells of a quota, with what to do if it permits no machine."""
    used = "?" if quota.used is None else f"{quota.used:,.0f}"
    name = quota.name.removesuffix(", spot").removesuffix(", on demand")
    rental = "spot" if quota.spot else "on demand"
    return quota.region, name, rental, used, f"{quota.limit:,.0f} {quota.unit}", _advice(quota)


def _advice(quota: Quota) -> str:
    if quota.limit <= 0:
        return "no machine can be rented: ask the provider for a higher quota"
    if quota.used is not None and quota.used >= quota.limit:
        return "in use completely"
    return ""


def provider_row(site: Site) -> tuple[object, ...]:
    """Return the table cells of a cloud provider."""
    settings = site.settings
    key = settings.get("access_key_id", "")
    secret = next((settings[name] for name in _SECRETS.values() if settings.get(name)), "")
    named = settings.get("profile") or (f"secret {secret}" if secret else "")
    credentials = named or (f"key {key}" if key else "from the environment")
    return (
        site.name,
        settings.get("provider", ""),
        settings.get("regions") or "all",
        credentials,
        settings.get("max_machines", "8"),
    )
