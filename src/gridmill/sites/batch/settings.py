"""The settings of a batch site."""

import math
import re
from collections.abc import Mapping

from gridmill.domain.amounts import Amounts, parse_bytes
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import JobKind
from gridmill.domain.rental_terms import parse_micros
from gridmill.domain.resource import Resource
from gridmill.domain.setting_texts import PROGRAM, REGION, SettingTexts
from gridmill.domain.site import Site
from gridmill.domain.source import CREDENTIALS, check_credential
from gridmill.errors import InputError, NotFoundError
from gridmill.plugins import find
from gridmill.transfer.signed_urls import check_bucket

SETTINGS: Mapping[str, str] = {
    "service": "the batch service: aws or gcp",
    "bucket": "the place for data, such as s3://BUCKET/PREFIX or gs://BUCKET/PREFIX",
    "bucket_endpoint": "the server of the bucket (default: the server of the provider)",
    "bucket_region": "the region of an S3 bucket (default: the region of the jobs at AWS)",
    "cpus": "the CPUs of the largest job (default: 4)",
    "memory": "the memory of the largest job (default: 15GiB)",
    "gpus": "the GPUs of the largest job (default: 0)",
    "max_machines": "the largest number of jobs of the largest size at the same time (default: 100)",
    "python": "the Python of the image that contains Gridmill (default: python3)",
    "queue_timeout": "the time after which a queued job is cancelled and fails (default: 24h)",
    "time_limit": "the time after which the service ends a running job (default: 7d)",
    "poll": "the time between two requests for the states of jobs (default: 5s)",
    "checkpoints": "the time between two uploads of checkpoints (default: 60s)",
    "keep": "the time for which unused data stays in the bucket (default: 14d)",
    "spot": "true: request Spot machines, if the service permits this choice for each job (default: false)",
    "price_per_hour": "the price per hour of a machine of the largest size, such as 3.06 (default: unknown)",
    "currency": "the currency of price_per_hour (default: USD)",
    "shared_root": "the path, in the container, of the storage root of this home on a shared file system",
}
"""The settings of every batch site, besides the settings of its service and of its bucket."""
_OF_RESOURCES = frozenset({"time_limit", "queue_timeout", "spot", "price_per_hour"})
_CONTAINER_BYTES = 256 << 20
_CURRENCY = re.compile(r"[A-Z]{3}")
_MOST_JOBS = 5000
_LONGEST_SECONDS = 14 * 86_400.0
"""The longest time of a job at Google Cloud Batch ("Quotas and limits") and on Fargate ("Job timeouts")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """The parsed settings of a batch site, see `SETTINGS`. `largest` is the size of the largest job.
    `price_micros` is the price per hour of a machine of this size in micro-units of `currency`, or None."""

    service: str
    bucket: str
    bucket_endpoint: str
    bucket_region: str
    largest: Amounts
    max_machines: int
    python: str
    queue_timeout_seconds: float
    time_limit_seconds: float
    poll_seconds: float
    checkpoints_seconds: float
    keep_seconds: float
    shared_root: str
    spot: bool
    price_micros: int | None
    currency: str

    def price_of(self, size: Amounts, *, is_whole: bool) -> int | None:
        """Return the price per hour, in micro-units, of the part of a machine that a job of this size uses,
        or of a whole machine. The part is the largest of the parts of its CPUs, memory and GPUs. The price is
        None if it is unknown."""
        if self.price_micros is None:
            return None
        parts = (
            size.cpus / self.largest.cpus,
            size.memory_bytes / self.largest.memory_bytes,
            size.gpus / self.largest.gpus if self.largest.gpus else 0.0,
        )
        return self.price_micros if is_whole else math.ceil(self.price_micros * min(1.0, max(parts)))


def memory_request(memory_bytes: int) -> int:
    """Returns the memory in bytes to request for a job, which includes the processes of Gridmill in the
    container."""
    return memory_bytes + _CONTAINER_BYTES


def read(site: Site) -> BatchSettings:
    """Parses the settings of the site. Raises InputError if a setting is invalid."""
    service, texts = site.settings.get("service", ""), _texts(site)
    try:
        find("batches", service)
    except NotFoundError as error:
        raise texts.wrong("service", f"{service!r} is not a known batch service", error.hint) from error
    for name in (name for names in CREDENTIALS.values() for name in names):
        check_credential(name, site.settings.get(name), f"site {site.name}: settings.{name}")
    return BatchSettings(
        service=service,
        bucket=_bucket(site),
        bucket_endpoint=_endpoint(site),
        bucket_region=_bucket_region(site),
        largest=Amounts(
            cpus=float(texts.number("cpus", "4", 1, 1000)),
            memory_bytes=_memory(site),
            gpus=texts.number("gpus", "0", 0, 64),
        ),
        max_machines=texts.number("max_machines", "100", 1, _MOST_JOBS),
        python=texts.one("python", PROGRAM, "python3"),
        queue_timeout_seconds=texts.seconds("queue_timeout", "24h", least=1.0),
        time_limit_seconds=_time_limit(site),
        poll_seconds=texts.seconds("poll", "5s", least=0.05),
        checkpoints_seconds=texts.seconds("checkpoints", "60s", least=0.05),
        keep_seconds=texts.seconds("keep", "14d", least=60.0),
        shared_root=_shared_root(site),
        spot=texts.flag("spot"),
        price_micros=_price(site),
        currency=_currency(site),
    )


def for_resource(site: Site, settings: Mapping[str, str]) -> BatchSettings:
    """Returns the settings of the site, in which the settings of a resource replace those of the same
    name. Raises InputError."""
    return read(replace(site, settings={**site.settings, **settings}))


def bucket_options(site: Site, parsed: BatchSettings) -> Mapping[str, str]:
    """Returns the options of the bucket in the settings of the site. Values of secrets are references."""
    names = CREDENTIALS.get(parsed.bucket.partition("://")[0], ())
    options = {name: site.settings[name] for name in names if name in site.settings}
    if parsed.bucket_region:
        options["region"] = parsed.bucket_region
    return {"endpoint": parsed.bucket_endpoint, **options} if parsed.bucket_endpoint else options


def check_resource(resource: Resource, site: Site) -> None:
    """Raises InputError if a resource cannot be used at the site. A sink is always loaded in the home."""
    if resource.type == JobKind.SINK:
        raise InputError(
            f"a sink is loaded at home, not at the batch site {site.name}",
            hint="Remove `site` from the resource. Jobs at the batch site get the table by a transfer.",
            place=f"resource {resource.name}: site",
        )
    for name in resource.settings:
        if name not in _OF_RESOURCES:
            raise InputError(
                f"a resource at a batch site has no setting {name!r}",
                hint=f"A resource can have: {', '.join(sorted(_OF_RESOURCES))}.",
                place=f"resource {resource.name}: settings.{name}",
            )
    for_resource(site, resource.settings)


def check_site(site: Site) -> None:
    """Raises InputError if a setting of the site is invalid."""
    read(site)


def _texts(site: Site) -> SettingTexts:
    return SettingTexts(texts=site.settings, owner=f"site {site.name}")


def _bucket(site: Site) -> str:
    url = site.settings.get("bucket", "")
    if not url:
        raise _texts(site).wrong(
            "bucket",
            "the setting is missing",
            "Set bucket=s3://BUCKET/PREFIX or bucket=gs://BUCKET/PREFIX.",
        )
    check_bucket(url, f"site {site.name}: settings.bucket")
    return url.rstrip("/")


def _endpoint(site: Site) -> str:
    url = site.settings.get("bucket_endpoint", "")
    if url and (not url.startswith(("http://", "https://")) or "@" in url):
        raise _texts(site).wrong(
            "bucket_endpoint", f"{url!r} is not the address of a server", "Write https://HOST."
        )
    return url


def _bucket_region(site: Site) -> str:
    """Return the region of the bucket for the signatures of requests. It is empty if the environment or the
    server of the bucket decides."""
    region = site.settings.get("bucket_region", "")
    if region and not REGION.fullmatch(region):
        raise _texts(site).wrong(
            "bucket_region", f"{region!r} is not a region", "Write for example eu-central-1."
        )
    if not site.settings.get("bucket", "").startswith("s3://"):
        return ""
    is_own = site.settings.get("service") != "aws" or site.settings.get("bucket_endpoint")
    return region or ("" if is_own else site.settings.get("region", ""))


def _time_limit(site: Site) -> float:
    """Return the longest time of a job. Raises InputError if the service ends every job earlier, because the
    work of the job would be lost."""
    seconds = _texts(site).seconds("time_limit", "7d", least=60.0)
    is_limited = site.settings.get("service") == "gcp" or site.settings.get("platform") == "FARGATE"
    if is_limited and seconds > _LONGEST_SECONDS:
        owner = "Google Cloud Batch" if site.settings.get("service") == "gcp" else "Fargate"
        raise _texts(site).wrong(
            "time_limit", f"{owner} ends every job after 14 days", "Set at most time_limit=14d."
        )
    return seconds


def _memory(site: Site) -> int:
    try:
        return parse_bytes(site.settings.get("memory", "15GiB"))
    except InputError as error:
        raise _texts(site).wrong("memory", error.message, error.hint) from error


def _shared_root(site: Site) -> str:
    path = site.settings.get("shared_root", "")
    if path and (not path.startswith("/") or not path.isprintable() or ".." in path.split("/")):
        raise _texts(site).wrong(
            "shared_root", f"{path!r} is not an absolute path", "Write for example /fsx/storage."
        )
    return path.rstrip("/") or path


def _price(site: Site) -> int | None:
    text = site.settings.get("price_per_hour", "")
    try:
        return parse_micros(text) if text else None
    except InputError as error:
        raise _texts(site).wrong("price_per_hour", error.message, error.hint) from error


def _currency(site: Site) -> str:
    text = site.settings.get("currency", "USD")
    if not _CURRENCY.fullmatch(text):
        raise _texts(site).wrong(
            "currency", f"{text!r} is not the code of a currency", "Write three capital letters: USD."
        )
    return text
