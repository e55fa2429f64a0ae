"""Transfers of files between sites. Only the chunks that the other side does not have are sent.

A Manifest describes a folder: each file is a sequence of chunks, which are named by their BLAKE3 hashes
(`chunk_manifest`). Chunks are kept in a store (`chunk_store`, `large_files`). `engine` and `stream` send
them between any two endpoints. `bucket_exchange`, `bucket_cache` and `signed_urls` send them through a
bucket. `tree_writer` builds a folder below a root from chunks.
"""
