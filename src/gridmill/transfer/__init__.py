"""Carrying files: what is there already does not travel again.

A tree is told as a Manifest: files as chunks that are named by their BLAKE3 hashes (`manifest`). Chunks are
kept in a ChunkStore (`chunks`, `large`), carried between whatever can take and give them (`carry`, `frames`,
by a bucket: `export`, `kept`, `parcels`), and made into a tree again below a root (`place`).
"""
