"""The faults of the simulated batch services. They can be changed while a simulation runs."""

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.cloud_faults import CloudFaults


@dataclass(slots=True, kw_only=True)
class BatchFaults(CloudFaults):
    """The faults of a simulated batch service, in addition to the faults of CloudFaults. Times are seconds of
    the clock of the simulation."""

    queued_seconds: float = 0.0
    """How long a new job waits until the scheduler sees it."""
    starting_seconds: float = 0.0
    """How long a container takes from its placement to its start."""
    cancel_seconds: float = 0.0
    """How long a waiting job is still shown in its old state after it was canceled."""
    idle_seconds: float = 0.0
    """How long a machine without a job is kept, and charged."""
    stuck_next: int = 0
    """How many of the next jobs wait for ever, without a reason from the service."""
    shows_reasons: bool = True
    """Whether the service shows why a job waits. If false, the job only waits."""
    lost_after_seconds: float = 0.0
    """How long the service takes to see that a machine has died. Its jobs are shown as running until then."""
    never_starting_next: int = 0
    """How many of the next containers never start: their job stays in the state before `running`."""
