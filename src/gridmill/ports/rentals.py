"""The use cases of rented machines: leases, costs, accounts at providers and their offers."""

from typing import Protocol

from gridmill.domain.lease_cost import CostBy, CostRow, LeaseView
from gridmill.domain.machine import Offer
from gridmill.domain.machine_image import ImageOrder, ImageView
from gridmill.domain.site import Site
from gridmill.ports.cloud import AccountCheck
from gridmill.ports.pages import PAGE_ITEMS, Page


class Renting(Protocol):
    """The use cases of leases, which are the records of rented machines, and of their costs."""

    def leases(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[LeaseView]:
        """List the leases of rented machines, open and closed, the newest first, with their cost."""

    def lease(self, lease_id: str) -> LeaseView:
        """Show one lease: its requests to the provider, its machine, and its cost.

        Raises NotFoundError.
        """

    def stop_lease(self, lease_id: str) -> LeaseView:
        """End the machine of a lease now, also if jobs run on it, and return immediately.

        If the machine is being ended already, or the lease is closed, the method changes nothing. A waiting
        job may rent another machine. Raises NotFoundError.
        """

    def costs(
        self, *, by: CostBy = CostBy.PROJECT, month: str = "", project: str = "", run: str = "", job: str = ""
    ) -> tuple[CostRow, ...]:
        """Show the cost of rented machines by job, run, project, resource or month, the highest first.

        The rows of jobs and runs have their forecasts. `month` selects one month in UTC, such as `2026-11`.
        `project`, `run`, and `job` of a `run` select the costs of a project, a run or a job. Raises
        InputError for an invalid month, or a job without a run.
        """


class MachineImages(Protocol):
    """The use cases of images of machines that contain Gridmill."""

    def images(self, *, site: str = "") -> tuple[ImageView, ...]:
        """List the images that this grid has made at one cloud site or at all that make images, by name.

        Raises NotFoundError, InputError if the site is of another kind or makes no images, CredentialsError,
        UnavailableError.
        """

    def build_image(self, order: ImageOrder) -> LeaseView:
        """Start to build an image with this version of Gridmill on a rented machine, and return its lease.

        The lease shows the progress. When the machine has ended, `image_id` of the lease is the image, or
        `reason` the reason why there is none. Raises InputError for a setting that is not valid or a site
        that makes no images, ConflictError if the name is in use, NotFoundError, CredentialsError,
        UnavailableError.
        """

    def remove_image(self, name: str) -> None:
        """Delete an image, named by its name or its id, and the copies of its disks.

        Running machines continue. Raises NotFoundError, ConflictError if several images have the name,
        CredentialsError, UnavailableError.
        """


class CloudAccounts(Protocol):
    """The use cases of accounts at the providers of rented machines."""

    def check_account(self, site: Site) -> AccountCheck:
        """Check the credentials, the rights and the quotas of a cloud site, which need not be stored.

        Takes some seconds. Raises InputError if the site is of another kind or a setting is invalid,
        CredentialsError if the provider refuses the credentials, UnavailableError if it does not answer.
        """

    def offers(self, *, site: str = "", region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        """List the types of machines that can be rented at one cloud site or at all, with their prices.

        `region` is the beginning of the name of a region. The providers are asked at most once a day. Raises
        NotFoundError, InputError if the site is of another kind, CredentialsError, UnavailableError.
        """
