"""Bytes, names and links: CIDs, nodes, stores, the index, transfer. Never imports torch."""
