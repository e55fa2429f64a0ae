"""Sites: one module or package each; none imports another."""
