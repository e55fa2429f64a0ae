"""Sites at managed batch services, where each attempt is one job of the service."""
