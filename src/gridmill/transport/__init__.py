"""Links between control node and pods: over a Unix socket, TLS, or a spool folder."""
