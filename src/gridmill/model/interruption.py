"""Why a running job is asked to make room for another."""

from gridmill.model.amounts import show_seconds
from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """`job_run` is the id of the job that it makes room for, which is expected to need `shorter_seconds` less
    than what is left of it; 0 where it goes before it for its priority, or because it waited so long.
    `left_seconds` of the interrupted job are what decides its place in line from then on."""

    job_run: str
    left_seconds: float
    shorter_seconds: float = 0.0

    @property
    def whom(self) -> str:
        """`weather-7/train, 4 m 00 s shorter`."""
        shorter = f"{show_seconds(self.shorter_seconds)} shorter"
        return f"{self.job_run}, {shorter if self.shorter_seconds > 0 else 'whose turn comes first'}"

    @property
    def why(self) -> str:
        """`interrupted for weather-7/train, 4 m 00 s shorter`."""
        return f"interrupted for {self.whom}"
