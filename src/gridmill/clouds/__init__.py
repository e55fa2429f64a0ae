"""Cloud providers, one package each. Each package implements the port `gridmill.ports.cloud.CloudPort`."""
