"""This package has the scheduler, which consists of pure functions from a snapshot to a plan. The scheduler
depends only on the domain package."""
