"""The options of `configure resource` and `alter resource` for rented machines. Each option is a setting of
the resource."""

from collections.abc import Mapping
from typing import Annotated

import typer

_CLOUD = "For a cloud provider: "

InstanceType = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help=f"{_CLOUD}type of machine. Default: the cheapest with the needed amounts.",
        show_default=False,
    ),
]
GpuMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help=f"{_CLOUD}least memory of each GPU, for example 24GB.", show_default=False
    ),
]
RentalRegion = Annotated[
    str | None,
    typer.Option(
        "--region",
        metavar="REGION",
        help=f"{_CLOUD}region, or beginning of the names of regions, for example us-.",
        show_default=False,
    ),
]
MaxPrice = Annotated[
    str | None,
    typer.Option(
        metavar="PRICE", help=f"{_CLOUD}highest price of a machine per hour, for example 1.50.",
        show_default=False,
    ),
]  # fmt: skip
MaxCost = Annotated[
    str | None,
    typer.Option(metavar="COST", help=f"{_CLOUD}highest cost of one rental.", show_default=False),
]
MaxHours = Annotated[
    str | None,
    typer.Option(
        metavar="HOURS", help=f"{_CLOUD}longest rental of one machine. Default: 24.", show_default=False
    ),
]
Spot = Annotated[
    bool,
    typer.Option("--spot", help=f"{_CLOUD}rent spot machines, which the provider may end at any time."),
]
DeadMan = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help=f"{_CLOUD}time without contact after which a machine ends itself, unless a job runs whose "
        "result is uploaded to a bucket. Default: 15m.",
        show_default=False,
    ),
]
KeepOnFailure = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help=f"{_CLOUD}time for which a machine is kept after a failure.", show_default=False
    ),
]
AcceptNoSelfEnd = Annotated[
    bool,
    typer.Option("--accept-no-self-end", help=f"{_CLOUD}permit machines that cannot end themselves."),
]
Image = Annotated[
    str | None,
    typer.Option(
        metavar="IMAGE", help=f"{_CLOUD}image. Default: the provider's image for the type.",
        show_default=False,
    ),
]  # fmt: skip
Disk = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help=f"{_CLOUD}size of the disk. Default: 64GiB.", show_default=False),
]

SpotOrNot = Annotated[
    bool | None,
    typer.Option(
        "--spot/--no-spot",
        help=f"{_CLOUD}rent spot machines, which the provider may end at any time, or machines on demand.",
        show_default=False,
    ),
]
AcceptNoSelfEndOrNot = Annotated[
    bool | None,
    typer.Option(
        "--accept-no-self-end/--no-accept-no-self-end",
        help=f"{_CLOUD}permit or refuse machines that cannot end themselves.",
        show_default=False,
    ),
]


def altered_settings(before: Mapping[str, str], **options: str | bool | None) -> dict[str, str]:
    """Return the settings after a change by the given options, whose names are the names of the settings. An
    empty text removes the setting. The setting of an option that is False is `false`, because the site may
    have the setting `true`."""
    given = {name: value for name, value in options.items() if value is not None}
    texts = {name: value if isinstance(value, str) else str(value).lower() for name, value in given.items()}
    return {name: value for name, value in {**before, **texts}.items() if value}


def rental_settings(**options: str | bool | None) -> dict[str, str]:
    """Return the settings for the given options, whose names are the names of the settings."""
    return {
        name: "true" if value is True else str(value)
        for name, value in options.items()
        if value is not None and value is not False
    }
