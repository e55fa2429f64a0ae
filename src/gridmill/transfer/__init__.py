"""Transfers of files between sites. Only the chunks that the receiving site does not have are sent.

A Manifest describes a folder: each file is a sequence of chunks, which are named by their BLAKE3 hashes
(`chunk_manifest`). Chunks are kept in a store (`chunk_store`, `large_files`). The modules `engine` and
`stream` send chunks between any two endpoints. The modules `bucket_exchange`, `bucket_cache` and
`signed_urls` send chunks through a bucket. The module `tree_writer` builds a folder below a root from
chunks.
"""
