"""An index as it was before it had a secret."""

from pathlib import Path

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.index.secret import secret_path
from cyberkv.cybergraph.store.base import Store


def make_first_version(path: Path, store: Store) -> None:
    """Turn the index at `path` into one of the first version: prefix keys as they are, and no secret."""
    with Index(path) as index:
        index._secret = None
        index.rebuild(store)
        database = index._database
        database.write(lambda txn: txn.put(b"version", b"1", db=database["meta"]))
        database.write(lambda txn: txn.delete(b"witness", db=database["meta"]))
    secret_path(path).unlink()
