"""The factories that commands use to build the parts of Gridmill. Each factory imports its modules only when
it is called, because most commands do not need them."""

from typing import TYPE_CHECKING

from gridmill.plugins import find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gridmill.domain.preflight import PreflightRequest, PreflightResult
    from gridmill.domain.reaping import ReapOrder, ReapReport
    from gridmill.domain.recovery import RecoveryReport
    from gridmill.domain.site import Site
    from gridmill.ports.grid import Grid
    from gridmill.ports.host import Check, LooseGrid, Provider, ServedFarm, ServedNode, TenantRecords
    from gridmill.ports.store import Store
    from gridmill.settings import Settings


class ProgramHost:
    """The implementation of `ports.host.Host` for the program `gridmill`."""

    def preflight(self, question: "PreflightRequest") -> "PreflightResult":
        """See Host."""
        from gridmill.storage.preflight_process import ask

        return ask(question)

    def check_site(self, site: "Site") -> None:
        """See Host."""
        find("checks", site.kind.value)(site)

    def records(self, settings: "Settings") -> "Store":
        """See Host."""
        store: Store = find("stores", "sqlite")(settings.home / "store.db")
        return store

    def serve(
        self,
        settings: "Settings",
        address: tuple[str, int] | None,
        *,
        take_over: bool,
        say: "Callable[[str], None]",
    ) -> "AbstractContextManager[ServedNode]":
        """See Host."""
        from gridmill.bootstrap.serving import serve_node

        return serve_node(settings, address, take_over=take_over, say=say)

    def check_head(self, host: str) -> None:
        """See Host."""
        from gridmill.bootstrap.loose_machines import check_head

        check_head(host)

    def gather(self, grid: "Grid", settings: "Settings", host: str, port: int) -> "LooseGrid":
        """See Host."""
        from gridmill.bootstrap.loose_machines import gather

        return gather(grid, settings, host, port)

    def serve_farm(
        self,
        settings: "Settings",
        place: "Site",
        address: tuple[str, int],
        *,
        quota_bytes: int,
        retain_seconds: float,
        limits: tuple[int | None, int | None] = (None, None),
    ) -> "AbstractContextManager[ServedFarm]":
        """See Host."""
        from gridmill.bootstrap.farm import serve_farm

        return serve_farm(
            settings, place, address, quota_bytes=quota_bytes, retain_seconds=retain_seconds, limits=limits
        )

    def farm_desk(self, settings: "Settings") -> "AbstractContextManager[TenantRecords]":
        """See Host."""
        from gridmill.bootstrap.farm import open_desk

        return open_desk(settings)

    def join_farm(self, settings: "Settings", name: str, controller: str, line: str) -> None:
        """See Host."""
        from gridmill.sites.farm.join import become_tenant

        become_tenant(settings.home, name, controller, line)

    def provider(self) -> "Provider":
        """See Host."""
        from gridmill.bootstrap.loose_machines import LocalProvider

        return LocalProvider()

    def recover(self, settings: "Settings", *, dry_run: bool) -> "RecoveryReport":
        """See Host."""
        from gridmill.bootstrap.recover import recover

        return recover(settings, dry_run=dry_run)

    def reap(self, order: "ReapOrder") -> "ReapReport":
        """See Host."""
        from gridmill.bootstrap.reap import reap

        return reap(order)

    def ssh_words(self, settings: "Settings", lease: str) -> tuple[str, ...]:
        """See Host."""
        from gridmill.sites.cloud.keys import ssh_words

        return ssh_words(settings.home, lease)

    def checks(self, settings: "Settings") -> "Iterator[Check]":
        """See Host."""
        from gridmill.bootstrap.checks import checks_of

        return checks_of(settings)
