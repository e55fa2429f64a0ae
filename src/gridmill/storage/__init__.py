"""Storage roots, manifests and code bundles."""
