"""Transfers of files between sites: what the other side has already is not sent again.

A tree is described by a Manifest: files as chunks that are named by their BLAKE3 hashes (`manifest`).
Chunks are kept in a store (`chunk_store`, `large_files`), sent between whatever can take and give them
(`engine`, `stream`; by a bucket: `bucket_exchange`, `bucket_cache`, `signed_urls`), and written as a tree
below a root (`checkout`).
"""
