"""Client methods for rented machines: accounts, offers, leases, images and costs."""

from gridmill.domain.lease_cost import CostBy, CostRow, LeaseView
from gridmill.domain.machine import Offer
from gridmill.domain.machine_image import BUILD_HOURS, ImageOrder, ImageView
from gridmill.domain.site import Site
from gridmill.errors import InputError
from gridmill.ports.cloud import AccountCheck
from gridmill.sdk.base import Connected
from gridmill.sdk.listing import Listing


class LeaseVerbs(Connected):
    """Client methods for leases of rented machines and for their costs."""

    def check_account(self, site: Site) -> AccountCheck:
        """Check the credentials, the rights and the quotas of a cloud site, which need not be stored. Raises
        InputError, CredentialsError, UnavailableError."""
        return self.grid.check_account(site)

    def list_offers(self, site: str = "", *, region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        """List the types of machines that can be rented at one cloud site or at all, with their prices.
        Raises NotFoundError, CredentialsError, UnavailableError."""
        return self.grid.offers(site=site, region=region, instance_type=instance_type)

    def list_images(self, site: str = "") -> tuple[ImageView, ...]:
        """List the images of machines that this grid has made at one cloud site or at all. Raises
        NotFoundError, InputError, CredentialsError, UnavailableError."""
        return self.grid.images(site=site)

    def build_image(
        self,
        name: str,
        site: str,
        *,
        region: str = "",
        instance_type: str = "",
        base: str = "",
        max_hours: str = BUILD_HOURS,
        max_price: str = "",
    ) -> LeaseView:
        """Start to build an image with this version of Gridmill on a machine that is rented at a cloud site.
        The returned lease shows the progress, and `image_id` the finished image. Raises InputError,
        ConflictError, NotFoundError, CredentialsError, UnavailableError."""
        order = ImageOrder(
            name=name,
            site=site,
            region=region,
            instance_type=instance_type,
            base=base,
            max_hours=max_hours,
            max_price=max_price,
        )
        return self.grid.build_image(order)

    def remove_image(self, name: str) -> None:
        """Delete an image, named by its name or its id. Raises NotFoundError, ConflictError,
        CredentialsError, UnavailableError."""
        self.grid.remove_image(name)

    def list_leases(self, *, limit: int | None = None) -> Listing[LeaseView]:
        """List the leases of rented machines, open and closed, the newest first."""
        return Listing(self.grid.leases, limit=limit)

    def stop_lease(self, lease: str) -> LeaseView:
        """End the machine of a lease now, also if jobs run on it. Raises NotFoundError."""
        return self.grid.stop_lease(lease)

    def costs(
        self,
        by: CostBy | str = CostBy.PROJECT,
        *,
        month: str = "",
        project: str = "",
        run: str = "",
        job: str = "",
    ) -> tuple[CostRow, ...]:
        """Return the cost of rented machines by `job`, `run`, `project`, `resource` or `month`, the highest
        first. `month` selects one month in UTC, such as `2026-11`. `project`, `run`, and `job` of a `run`
        select the costs of a project, a run or a job. Raises InputError."""
        if by not in list(CostBy):
            raise InputError(f"{by!r} is not a way to group costs", hint=f"Use {', '.join(CostBy)}.")
        return self.grid.costs(by=CostBy(by), month=month, project=project, run=run, job=job)
