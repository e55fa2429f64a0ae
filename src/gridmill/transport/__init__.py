"""Links between control node and pods: Unix socket, TLS, spool folder."""
