"""The command `offers` lists the types of machines that can be rented, with their prices."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from gridmill.cli.format import moment
from gridmill.cli.offer_files import read_offers
from gridmill.cli.session import Json, emit, print_error, session, show
from gridmill.cli.tables import FittedTable
from gridmill.domain.amounts import parse_bytes, show_bytes, show_count
from gridmill.domain.frozen import dataclass
from gridmill.domain.machine import Offer
from gridmill.domain.rental_estimate import show_money
from gridmill.domain.rental_terms import parse_micros
from gridmill.errors import InputError

_HEAD = ("type", "region", "zones", "CPUs", "memory", "GPUs", "GPU memory", "on demand", "spot")
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferFilter:
    """The conditions for the shown offers. `gpus` is the least number of GPUs, and `gpu_memory_bytes` the
    least memory of each GPU. `max_price_micros` is the highest price per hour."""

    region: str = ""
    instance_type: str = ""
    gpus: int = 0
    gpu_memory_bytes: int = 0
    max_price_micros: int | None = None
    spot: bool = False

    def price_micros(self, offer: Offer) -> int | None:
        """Return the price per hour that counts, or None if it is unknown."""
        return offer.spot_price_micros if self.spot else offer.price_micros

    def fits(self, offer: Offer) -> bool:
        """Return whether an offer meets the conditions. An unknown price exceeds each limit."""
        price, limit = self.price_micros(offer), self.max_price_micros
        return (
            offer.region.startswith(self.region)
            and self.instance_type in ("", offer.instance_type)
            and offer.gpus >= self.gpus
            and (not self.gpu_memory_bytes or offer.gpu_memory_bytes >= self.gpu_memory_bytes)
            and (limit is None or (price is not None and price <= limit))
        )


def chosen(offers: Iterable[Offer], wanted: OfferFilter) -> tuple[Offer, ...]:
    """Return the offers that meet the conditions, the cheapest first, and offers without a known price
    last."""

    def place(offer: Offer) -> tuple[bool, int, str, str]:
        price = wanted.price_micros(offer)
        return price is None, price or 0, offer.instance_type, offer.region

    return tuple(sorted(filter(wanted.fits, offers), key=place))


def offers(
    context: typer.Context,
    provider: Annotated[
        str,
        typer.Argument(
            metavar="[PROVIDER]", help="Name of the cloud provider. Default: all.", show_default=False
        ),
    ] = "",
    region: Annotated[
        str,
        typer.Option(
            metavar="REGION", help="Region, or beginning of the names of regions.", show_default=False
        ),
    ] = "",
    instance_type: Annotated[
        str, typer.Option(metavar="TYPE", help="Show only this type.", show_default=False)
    ] = "",
    gpus: Annotated[int, typer.Option(min=0, help="Least number of GPUs.")] = 0,
    gpu_memory: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Least memory of each GPU, for example 24GB.", show_default=False),
    ] = "",
    max_price: Annotated[
        str,
        typer.Option(metavar="PRICE", help="Highest price per hour, for example 1.50.", show_default=False),
    ] = "",
    spot: Annotated[
        bool, typer.Option("--spot", help="Sort and limit by the price of spot machines.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="Largest number of offers.")
    ] = 50,
    file: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Read the offers from a CSV or JSON file, without a provider.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the types of machines that can be rented, the cheapest first.

    The prices come from the provider, which is asked at most once a day, and for the prices of spot
    machines at most every five minutes. An offer whose price is unknown is shown last. The spot price of a
    region is the highest of its zones.
    """
    wanted = OfferFilter(
        region=region,
        instance_type=instance_type,
        gpus=gpus,
        gpu_memory_bytes=parse_bytes(gpu_memory) if gpu_memory else 0,
        max_price_micros=parse_micros(max_price) if max_price else None,
        spot=spot,
    )
    if file is not None and provider:
        raise InputError("--import reads the offers from a file, not from a provider", place="--import")
    if file is not None:
        known = read_offers(file)
    else:
        with session(context) as client:
            known = client.list_offers(provider, region=region, instance_type=instance_type)
    found = chosen(known, wanted)
    if json:
        return emit(found)
    asked = " ".join(one for one in (instance_type, f"in the region {region}" if region else "") if one)
    return _print(found, limit) if found else _print_none(len(known), asked, provider, file)


def _print_none(known: int, asked: str, provider: str, file: Path | None) -> None:
    """Print why there are no offers, and what to do."""
    if known:
        return print_error(f"there are no offers; {show_count(known, 'offer')} did not meet the conditions")
    if file is not None:
        return print_error(f"there are no offers; {file} has none")
    if asked:
        of = f" of {provider}" if provider else ""
        return print_error(f"there are no offers{of} for {asked}; to list all: gridmill offers")
    return print_error("there are no offers; to add a provider: gridmill add cloudprovider aws --region us-")


def _print(found: tuple[Offer, ...], limit: int) -> None:
    rows = [_row(offer) for offer in found[:limit]]
    show(FittedTable(_HEAD, rows, folded=("zones",), left_out=("zones", "CPUs", "memory")))
    if len(found) > limit:
        print_error(f"showing {limit:,} of {len(found):,} offers; `-n {len(found)}` shows all")
    read = [offer.read for offer in found if offer.read is not None]
    if read:
        print(f"prices per hour, as of {moment(min(read))}")
    return None


def _row(offer: Offer) -> tuple[object, ...]:
    gpus = f"{offer.gpus} {offer.gpu_model}".strip() if offer.gpus else ""
    return (
        offer.instance_type,
        offer.region,
        len(offer.zones),
        offer.cpus,
        show_bytes(offer.memory_bytes),
        gpus,
        show_bytes(offer.gpu_memory_bytes) if offer.gpus else "",
        _price(offer.price_micros, offer.currency),
        _price(offer.spot_price_micros, offer.currency),
    )


def _price(micros: int | None, currency: str) -> str:
    return _UNKNOWN if micros is None else show_money(micros, currency)
