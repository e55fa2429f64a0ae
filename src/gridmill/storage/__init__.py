"""Storage roots, manifests of versions, and code bundles."""
