"""Transfers of files between sites, which send only the chunks that the other side does not have.

A Manifest describes a tree: files as chunks that are named by their BLAKE3 hashes (`chunk_manifest`). Chunks
are kept in a store (`chunk_store`, `large_files`) and sent between any endpoints (`engine`, `stream`; through
a bucket: `bucket_exchange`, `bucket_cache`, `signed_urls`). `tree_writer` writes them as a tree below a root.
"""
