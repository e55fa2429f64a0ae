"""Sites: one module each; none knows another."""
