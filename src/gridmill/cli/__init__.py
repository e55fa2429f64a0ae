"""The command line, on the SDK."""
