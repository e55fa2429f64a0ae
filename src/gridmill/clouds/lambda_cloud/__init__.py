"""Lambda Cloud of Lambda (lambda.ai)."""
