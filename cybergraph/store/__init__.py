"""Where blocks live: in memory, on disk, or behind a wrapper that counts or protects."""

from .base import Finding, Store
from .disk import DiskStore
from .memory import MemoryStore
from .wrap import CountingStore, ReadOnlyStore

__all__ = ["CountingStore", "DiskStore", "Finding", "MemoryStore", "ReadOnlyStore", "Store"]
