"""Transfers of files between sites, which send only what the other side does not have.

A tree is described by a Manifest: files as chunks that are named by their BLAKE3 hashes (`manifest`). Chunks
are kept in a store (`chunk_store`, `large_files`), sent between any carriers (`engine`, `stream`; by a
bucket: `bucket_exchange`, `bucket_cache`, `signed_urls`), and written as a tree below a root (`checkout`).
"""
