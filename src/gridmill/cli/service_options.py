"""The options of `start service` and `update service` for the settings of a service."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from gridmill.cli.parameters import finite, number_or_empty
from gridmill.domain.amounts import parse_bytes, parse_seconds
from gridmill.domain.service_features import FeatureSettings
from gridmill.domain.service_settings import MAY_BE_UNSET, MOST_PODS, WRITTEN, ServiceSettings

_SERVICE = "For a service: "


def _percent(help_text: str) -> Any:  # noqa: ANN401  typer has no type for an option
    """Return an option that is a part of the requests in percent."""
    return typer.Option(
        callback=finite, min=0.0, max=100.0, metavar="PERCENT", help=help_text, show_default=False
    )


Host = Annotated[
    str | None,
    typer.Option(
        metavar="HOST", help=f"{_SERVICE}address at which it listens. Default: 127.0.0.1.", show_default=False
    ),
]
Certificate = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help=f"{_SERVICE}certificate for TLS, as PEM; empty: no TLS.", show_default=False
    ),
]
KeyFile = Annotated[
    str | None,
    typer.Option("--key", metavar="FILE", help=f"{_SERVICE}key of the certificate.", show_default=False),
]
RequireKeys = Annotated[
    bool | None,
    typer.Option(
        "--require-keys/--no-require-keys",
        help=f"{_SERVICE}refuse requests without one of its API keys.",
        show_default=False,
    ),
]
AcceptOpen = Annotated[
    bool | None,
    typer.Option(
        "--accept-open/--no-accept-open",
        help=f"{_SERVICE}accept that other machines can reach it without TLS or API keys.",
        show_default=False,
    ),
]
Cors = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help=f"{_SERVICE}origin from which browsers may call it, `*` for all, empty for none. Repeatable.",
        show_default=False,
    ),
]
Canary = Annotated[
    str,
    typer.Option(
        metavar="PIPELINE/JOB@VERSION",
        help="Second version that gets a part of the requests.",
        show_default=False,
    ),
]
Weight = Annotated[
    float | None,
    _percent("Part of the requests for the canary. Default: 10."),
]
Shadow = Annotated[
    str,
    typer.Option(
        metavar="PIPELINE/JOB@VERSION",
        help="Version that gets copies of requests. Its answers are compared, and no client gets them.",
        show_default=False,
    ),
]
ShadowWeight = Annotated[
    float | None,
    _percent("Part of the requests that is copied to the shadow. Default: 100."),
]
FollowWeight = Annotated[
    float | None,
    typer.Option(
        parser=number_or_empty(float, 0.0, 100.0),
        metavar="PERCENT",
        help=f"{_SERVICE}if the followed alias moves, the new version is first a canary with this part of "
        "the requests. Default: no canary.",
        show_default=False,
    ),
]
LogRequests = Annotated[
    float | None,
    typer.Option(
        parser=number_or_empty(float, 0.0, 1.0),
        metavar="FRACTION",
        help=f"{_SERVICE}part of the requests that is logged, 0 to 1.",
    ),
]
LogBodies = Annotated[
    bool | None,
    typer.Option(
        "--log-bodies/--no-log-bodies",
        help=f"{_SERVICE}also log the features and predictions of these requests, for a sink.",
        show_default=False,
    ),
]
MaxBatch = Annotated[
    int | None,
    typer.Option(
        parser=number_or_empty(int, 1, math.inf),
        metavar="ROWS",
        help=f"{_SERVICE}largest number of rows in a batch. Default: 256.",
    ),
]
MaxWait = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help=f"{_SERVICE}time for which a batch waits for more requests. Default: 0s."
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(metavar="TIME", help=f"{_SERVICE}time after which a request fails. Default: 10s."),
]
QueueLimit = Annotated[
    int | None,
    typer.Option(
        parser=number_or_empty(int, 0, math.inf),
        metavar="N",
        help=f"{_SERVICE}requests that may wait in a replica. Default: 256.",
    ),
]
Pods = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MOST_PODS,
        metavar="N",
        help=f"{_SERVICE}on a Ray cluster, pods on as many nodes, each with all replicas. Default: as many "
        "as --rate needs, otherwise 1.",
        show_default=False,
    ),
]
Trust = Annotated[
    bool | None,
    typer.Option(
        "--trust/--no-trust",
        help=f"{_SERVICE}run the code of a version that predicts with its own code.",
        show_default=False,
    ),
]
MaxBody = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help=f"{_SERVICE}largest body of a request. Default: 16MiB."),
]

Features = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help=f"{_SERVICE}YAML file with the rules for the features that it computes.",
        show_default=False,
    ),
]


def service_settings(**options: object) -> ServiceSettings:
    """Return the settings that the options of a command give. The keywords are the names of the options,
    which are also the names of the fields in pipeline files. An empty text unsets a setting. Raises
    InputError."""
    names = [name for name in ServiceSettings.__dataclass_fields__ if name != "unset"]
    given = {name: options[_option(name)] for name in names}
    unset = tuple(name for name in MAY_BE_UNSET if given[name] == "")
    given |= dict.fromkeys(unset)
    settings: dict[str, Any] = {name: _value(name, value) for name, value in given.items()}
    if settings["certificate_file"] == "":
        settings["key_file"] = ""
    return ServiceSettings(**settings, unset=unset)


def _option(field: str) -> str:
    return WRITTEN.get(field, field.removesuffix("_seconds").removesuffix("_bytes"))


def _value(field: str, value: object) -> object:
    """Return the value of a field from the value of its option."""
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(filter(None, value))
    if field == "features":
        return _read_features(str(value))
    if field.endswith("_seconds"):
        return parse_seconds(str(value))
    if field.endswith("_bytes"):
        return parse_bytes(str(value))
    return _absolute(str(value)) if field.endswith("_file") else value


def _read_features(file: str) -> FeatureSettings:
    # most commands read no YAML
    from gridmill.declarations.feature_settings import read_feature_settings

    return read_feature_settings(Path(file))


def _absolute(file: str) -> str:
    """Return the absolute path of a file, because the processes of the service have another folder."""
    return str(Path(file).absolute()) if file else file
