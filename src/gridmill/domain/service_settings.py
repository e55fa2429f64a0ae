"""This module has the settings of a service: its address, TLS, API keys, the request log and the limits of
requests."""

from ipaddress import ip_address

from gridmill.domain.amounts import show_bytes
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.service_features import FeatureSettings, check_features
from gridmill.domain.serving import RequestLog, ServiceOrder
from gridmill.errors import InputError

DEFAULT_HOST = "127.0.0.1"
MOST_PODS = 32
"""The largest number of pods of a service."""
LOG_FILE_BYTES = 16 * 1024**2
LOG_FILES = 16
"""The number of files that each replica keeps of its request log, and of its logged rows. With
`LOG_FILE_BYTES`, a replica uses at most about 512 MiB for both."""
HANG_MARGIN_SECONDS = 10.0
"""A model hangs if it computes one batch for this time longer than the time limit of a request."""
_LIMITS = ("max_batch", "queue_limit", "max_wait_seconds", "timeout_seconds", "max_body_bytes")
"""The settings that have the same names in the order for the process of a service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The settings of a service that a user can change while it runs. A setting that is None has its default
    value; in an update, None means that the setting stays as it is.

    Network: the service listens at `host` (default: 127.0.0.1). With `certificate_file` and `key_file`, which
    are absolute paths of PEM files on the machine where the service runs, it uses TLS. An empty text turns
    TLS off. With `require_keys`, each request except health checks needs one of the API keys of the service.
    A service that other machines can reach needs TLS and API keys, unless `accept_open` is true. Browsers may
    call the service from the origins in `cors_origins` (`*` means every origin).

    Versions: if `follow_percent` is set, a version to which the followed alias moves is first a canary with
    this share of the requests, in percent, until it is promoted or rolled back.

    Request log: `log_fraction` (0 to 1) of the requests are logged. With `log_bodies`, the features and
    the predictions of these requests are also logged, so that a sink can load them.

    Limits: one batch has at most `max_batch` rows (default: 256), and waits at most `max_wait_seconds`
    (default: 0) for further requests. In each replica, at most `queue_limit` requests (default: 256) wait
    while a batch is computed. A request that is not answered within `timeout_seconds` (default: 10) fails. A
    body has at most `max_body_bytes` bytes (default: 16 MiB).

    If the site of the service is a Ray cluster, the service runs in `pods` pods, each on a node of its own
    with all replicas of the service. 0 pods (default) means as many as its rate needs, and 1 without a rate.

    With `trust`, the service may run the code of a version that predicts with its own code.
    `features` are the settings of the contextual features that the service computes.

    `unset` are the names of settings that return to their default values. It belongs to a change: the
    settings of a service have none.
    """

    host: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    require_keys: bool | None = None
    accept_open: bool | None = None
    cors_origins: tuple[str, ...] | None = None
    follow_percent: float | None = None
    log_fraction: float | None = None
    log_bodies: bool | None = None
    max_batch: int | None = None
    max_wait_seconds: float | None = None
    timeout_seconds: float | None = None
    queue_limit: int | None = None
    max_body_bytes: int | None = None
    trust: bool | None = None
    pods: int | None = None
    features: FeatureSettings | None = None
    unset: tuple[str, ...] = ()

    @property
    def listening_host(self) -> str:
        """The address at which the service listens."""
        return self.host or DEFAULT_HOST

    @property
    def has_tls(self) -> bool:
        """Whether the service uses TLS."""
        return bool(self.certificate_file and self.key_file)


WRITTEN = {
    "certificate_file": "certificate",
    "key_file": "key",
    "cors_origins": "cors",
    "follow_percent": "follow_weight",
    "log_fraction": "log_requests",
}
"""The names of settings as users write them, as options (`--log-requests`) and as fields of pipeline files
(`log_requests`), if they differ from the names in the record. Units are not written (`max_wait`)."""
MAY_BE_UNSET = ("host", "follow_percent", "log_fraction", *_LIMITS, "features")
"""The settings that `unset` can name. The others have a value that turns them off, such as an empty text."""
NO_SETTINGS = ServiceSettings()
"""Settings that all have their default values. As an update, they change nothing."""


def merged(before: ServiceSettings, change: ServiceSettings) -> ServiceSettings:
    """Return the settings after an update: the values of `change` that are not None, the default values of
    its `unset` settings, and the values of `before` for the others. Raises InputError for a setting that
    cannot be unset, or that the change also sets."""
    for name in change.unset:
        _check_unset(name, change)
    names = [name for name in ServiceSettings.__dataclass_fields__ if name != "unset"]
    changed = {name: value for name in names if (value := getattr(change, name)) is not None}
    changed |= dict.fromkeys(change.unset)
    return replace(before, **changed) if changed else before


def _check_unset(name: str, change: ServiceSettings) -> None:
    if name not in MAY_BE_UNSET:
        raise InputError(
            f"the setting {name!r} cannot be unset", hint=f"Name {', '.join(MAY_BE_UNSET)}.", place="unset"
        )
    if getattr(change, name) is not None:
        raise InputError(
            f"{name} is set and unset in one change", hint="Leave out one of the two.", place="unset"
        )


def check_settings(settings: ServiceSettings) -> None:
    """Raise InputError for settings that a service cannot have, and for a service that other machines could
    reach without TLS and API keys."""
    _check_host(settings.listening_host)
    if bool(settings.certificate_file) != bool(settings.key_file):
        missing, given = ("key", "certificate") if settings.certificate_file else ("certificate", "key")
        raise InputError(f"--{given} needs --{missing}", hint="TLS needs both files.", place=given)
    for origin in settings.cors_origins or ():
        _check_origin(origin)
    if settings.log_bodies and not settings.log_fraction:
        raise InputError(
            "the bodies of requests can be logged only with a fraction of the requests",
            hint="--log-requests 0.1 --log-bodies",
            place="log_bodies",
        )
    _check_range("log_fraction", settings.log_fraction, 0.0, 1.0)
    _check_range("follow_percent", settings.follow_percent, 0.0, 100.0)
    _check_range("max_batch", settings.max_batch, 1, 65_536)
    _check_range("queue_limit", settings.queue_limit, 0, 1_000_000)
    _check_range("max_wait_seconds", settings.max_wait_seconds, 0.0, 10.0)
    _check_range("timeout_seconds", settings.timeout_seconds, 0.01, 3600.0)
    _check_range("max_body_bytes", settings.max_body_bytes, 1024, 1024**3)
    _check_range("pods", settings.pods, 0, MOST_PODS)
    if settings.features is not None:
        check_features(settings.features)
    _check_not_open(settings)


def _check_range(name: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        written = WRITTEN.get(name, name.removesuffix("_seconds").removesuffix("_bytes"))
        shown = [_with_unit(name, one) for one in (value, least, most)]
        raise InputError(f"{shown[0]} is not between {shown[1]} and {shown[2]}", place=written)


def _with_unit(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return show_bytes(round(value))
    return f"{value:g} s" if name.endswith("_seconds") else f"{value:g}"


def _check_host(host: str) -> None:
    if any(sign.isspace() or sign in "/@?#[]" for sign in host):
        raise InputError(
            f"{host!r} is not an address", hint="Write an address such as 0.0.0.0 or ::", place="host"
        )


def _check_origin(origin: str) -> None:
    scheme, found, rest = origin.partition("://")
    if origin != "*" and not (found and scheme in ("http", "https") and rest and "/" not in rest):
        raise InputError(
            f"{origin!r} is not an origin",
            hint="Write a scheme and a host without a path, such as https://shop.example, or `*`.",
            place="cors",
        )


def _check_not_open(settings: ServiceSettings) -> None:
    missing = [] if settings.has_tls else ["TLS (--certificate FILE --key FILE)"]
    missing += [] if settings.require_keys else ["API keys (--require-keys)"]
    if missing and not settings.accept_open and not is_loopback(settings.listening_host):
        raise InputError(
            f"other machines could reach the service at {settings.listening_host}, and it has no "
            f"{' and no '.join(missing)}",
            hint="Add the missing options, or accept this with --accept-open.",
            place="host",
        )


def is_loopback(host: str) -> bool:
    """Return whether only programs of the same machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def with_settings(order: ServiceOrder, settings: ServiceSettings, log_folder: str) -> ServiceOrder:
    """Return the order for the process of a service with its settings. `log_folder` is the absolute path of
    the folder of the request log."""
    limits = {name: value for name in _LIMITS if (value := getattr(settings, name)) is not None}
    limit_seconds = settings.timeout_seconds or order.timeout_seconds
    return replace(
        order,
        host=settings.listening_host,
        # a batch that is within the time limit of its requests does not hang
        hang_seconds=max(order.hang_seconds, limit_seconds + HANG_MARGIN_SECONDS),
        certificate_file=settings.certificate_file or "",
        key_file=settings.key_file or "",
        cors_origins=settings.cors_origins or (),
        request_log=_request_log(settings, log_folder),
        versions=tuple(replace(one, trust=bool(settings.trust)) for one in order.versions),
        **limits,
    )


def _request_log(settings: ServiceSettings, folder: str) -> RequestLog | None:
    if not settings.log_fraction:
        return None
    return RequestLog(
        folder=folder,
        fraction=settings.log_fraction,
        rows=bool(settings.log_bodies),
        file_bytes=LOG_FILE_BYTES,
        files=LOG_FILES,
    )
