"""This module compares the account of a lease with the account to which the credentials of its site belong.

The list of another account has none of the machines of a lease, so that it would look as if they had ended.
"""

from collections.abc import Iterable

from gridmill.domain.lease import Lease
from gridmill.scheduler.rental_list import MachineList


def is_other_account(lease: Lease, account: str) -> bool:
    """Return whether the machines of a lease are certainly in another account than `account`."""
    return bool(lease.account and account and lease.account != account)


def list_for(lease: Lease, latest: MachineList | None) -> MachineList | None:
    """Return the provider's list if it can have the machines of the lease. Otherwise the provider counts as
    not answering for this lease."""
    return None if latest is None or is_other_account(lease, latest.account) else latest


def account_problem(lease: Lease, account: str) -> str:
    """Return the problem of a lease whose machines are in another account than `account`, or an empty
    text."""
    if not is_other_account(lease, account):
        return ""
    return (
        f"its machine is in the account {lease.account}, but the credentials of the site are of the account"
        f" {account}, so that the machine can be neither seen nor ended: use the credentials of the account"
        f" {lease.account} again"
    )


def lost_region(leases: Iterable[Lease], regions: str) -> tuple[Lease, str] | None:
    """Return the first lease that has requests in a region that is not among `regions`, with this region.
    `regions` are beginnings of names, with commas between them; an empty text means all regions."""
    prefixes = tuple(word.strip() for word in regions.split(",") if word.strip())
    if not prefixes:
        return None
    used = ((lease, one.region) for lease in leases for one in lease.tries)
    return next((each for each in used if not each[1].startswith(prefixes)), None)
