"""The derived tables: everything here can be computed again from the blocks alone.

found        keyed prefix -> answers, in the order they were added
blocks       block -> its keyed prefix and model
next         model and block -> the blocks that continue it
divergences  keyed prefix, prev and domain -> the blocks that should have been one

A keyed prefix is a prefix key under the secret of the index: the tables cannot be asked without that.

Beside them, among what cannot be computed: keyed prefix and block, of one that was given up by an edit, until it is
computed again or deleted.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from ..cid import CID_BYTES, Cid
from ..database import Database, Transaction
from ..errors import Corrupt
from ..prefix import KeyedPrefix, PrefixKey, keyed
from ..store.base import Finding
from .records import (
    GIVEN_UP,
    NOTES,
    UNKNOWN_DOMAIN,
    Divergence,
    Filed,
    Found,
    IndexEntry,
    encode_domain,
    pack_found,
    pack_prev,
    text_of,
    unpack_cids,
    unpack_found,
    unpack_prev,
)
from .signers import SIGNED, is_own, signed_domain, signer_of, usable

DERIVED_TABLES: Final = {"found": False, "blocks": False, "next": True, "divergences": False}
_KEY_BYTES: Final = 32
_UNKNOWN: Final = UNKNOWN_DOMAIN.encode()


class BlockTables:
    """Blocks by prefix key and by order. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._secret: bytes | None = None
        """None in an index of the first version that nobody may write to: there, keys stand as they are."""
        self.reads = 0
        """Table reads by `lookup_chain` so far: the witness that a lookup costs one per block."""
        self._trusted: frozenset[bytes] = frozenset()

    def trust(self, signers: Iterable[bytes]) -> None:
        """Let blocks that these Ed25519 keys signed answer lookups, as long as this index is open; nobody's before."""
        self._trusted = frozenset(signed_domain(signer).encode() for signer in signers)

    @property
    def trusted(self) -> frozenset[bytes]:
        """The keys whose blocks answer lookups."""
        signers = (signer_of(text_of(domain)) for domain in self._trusted)
        return frozenset(signer for signer in signers if signer is not None)

    def filed_as(self, prefix: PrefixKey) -> KeyedPrefix:
        """Give the form in which this index holds a prefix key."""
        return KeyedPrefix(prefix) if self._secret is None else keyed(prefix, self._secret)

    def add_blocks(self, entries: Iterable[IndexEntry]) -> list[Divergence]:
        """Add blocks durably and return the divergences this has shown; what is known already is skipped.

        Two blocks of one prefix key, `prev` and domain are a divergence; blocks of another domain or upon
        another `prev` are alternatives. Raises `Corrupt` for a block that is indexed under another prefix
        key.
        """
        rows = list(entries)

        def work(txn: Transaction) -> list[Divergence]:
            return [shown for entry in rows if (shown := self.add(txn, entry)) is not None]

        return self._database.write(work) if rows else []

    def add(self, txn: Transaction, entry: IndexEntry) -> Divergence | None:
        """Add one block within a transaction."""
        tables, domain, prev = self._database, encode_domain(entry.domain), pack_prev(entry.prev)
        key, known = self.filed_as(entry.prefix), txn.get(entry.block, db=tables["blocks"])
        txn.delete(GIVEN_UP + key + entry.block, db=tables["meta"])
        if known is not None and known[:_KEY_BYTES] != key:
            raise Corrupt(
                f"block {entry.block} is indexed under another prefix key",
                hint="run `cyberkv index rebuild`", cid=str(entry.block),
            )  # fmt: skip
        answers = list(unpack_found(txn.get(key, default=b"", db=tables["found"])))
        domains = [owner for block, _, owner in answers if block == entry.block]
        if domain in domains or (domains and domain == _UNKNOWN):
            return None
        rivals = [block for block, other, owner in answers if owner == domain and other == prev]
        added = (bytes(entry.block), prev, domain)
        unknown = (bytes(entry.block), prev, _UNKNOWN)
        answers = [added if each == unknown else each for each in answers]
        if added not in answers:
            answers.append(added)
        txn.put(key, b"".join(pack_found(*each) for each in answers), db=tables["found"])
        txn.put(entry.block, key + entry.model, db=tables["blocks"])
        txn.put(_edge(entry.model, entry.prev), entry.block, db=tables["next"])
        if not rivals or domain == _UNKNOWN or entry.domain.startswith(SIGNED):
            return None
        blocks = [*rivals, entry.block]
        txn.put(key + prev + domain, b"".join(blocks), db=tables["divergences"])
        return Divergence(key, entry.domain, entry.prev, unpack_cids(b"".join(blocks)))

    def remove_blocks(self, cids: Iterable[Cid]) -> int:
        """Forget blocks (a recorded divergence stays), and what is noted of them. Returns how many were known."""
        gone = set(cids)

        def work(txn: Transaction) -> int:
            for key in [key for key, cid in self._notes(txn) if cid in gone]:
                txn.delete(key, db=self._database["meta"])
            return sum(self._remove(txn, cid) is not None for cid in sorted(gone))

        return self._database.write(work)

    def give_up(self, cids: Iterable[Cid]) -> int:
        """Forget blocks because of an edit, and note so under their keyed prefixes. Returns how many were known.

        A note ends when its block is filed again, or removed. A rebuild keeps to it.
        """
        rows = list(cids)

        def work(txn: Transaction) -> int:
            keys = [(self._remove(txn, cid), cid) for cid in rows]
            for key, cid in keys:
                if key is not None:
                    txn.put(GIVEN_UP + key + cid, cid, db=self._database["meta"])
            return sum(key is not None for key, _ in keys)

        return self._database.write(work)

    def given_up(self, prefix: PrefixKey) -> Cid | None:
        """Give a block of a text that was given up and not filed since; the first by CID, where there are several."""
        with self._database.read() as txn, txn.cursor(self._database["meta"]) as cursor:
            start = GIVEN_UP + self.filed_as(prefix)
            return Cid(cursor.value()) if cursor.set_range(start) and cursor.key().startswith(start) else None

    def is_given_up(self, txn: Transaction, prefix: PrefixKey, block: Cid) -> bool:
        """Say, within a transaction, whether a block was given up and not filed since."""
        return txn.get(GIVEN_UP + self.filed_as(prefix) + block, db=self._database["meta"]) is not None

    def _notes(self, txn: Transaction) -> Iterator[tuple[bytes, Cid]]:
        with txn.cursor(self._database["meta"]) as cursor:
            for kind in NOTES:
                found = cursor.set_range(kind)
                while found and cursor.key().startswith(kind):
                    yield cursor.key(), Cid(cursor.value())
                    found = cursor.next()

    def _remove(self, txn: Transaction, cid: Cid) -> bytes | None:
        """Forget one block, and give the keyed prefix that it was filed under."""
        tables = self._database
        if (known := txn.pop(cid, db=tables["blocks"])) is None:
            return None
        key, model = known[:_KEY_BYTES], Cid(known[_KEY_BYTES:])
        answers = list(unpack_found(txn.get(key, default=b"", db=tables["found"])))
        for block, prev, _ in answers:
            if block == cid:
                txn.delete(_edge(model, unpack_prev(prev)), cid, db=tables["next"])
        rest = b"".join(pack_found(*each) for each in answers if each[0] != cid)
        if rest:
            txn.put(key, rest, db=tables["found"])
        else:
            txn.delete(key, db=tables["found"])
        return bytes(key)

    def lookup(self, prefix: PrefixKey) -> list[Found]:
        """List the blocks of a prefix key, in the order they were added."""
        with self._database.read() as txn:
            row = txn.get(self.filed_as(prefix), default=b"", db=self._database["found"])
        return _answers(row)

    def beside(self, block: Cid) -> list[Found]:
        """List the answers to the prefix key of a block, itself among them; nothing for one that is not indexed."""
        with self._database.read() as txn:
            if (known := txn.get(block, db=self._database["blocks"])) is None:
                return []
            return _answers(txn.get(known[:_KEY_BYTES], default=b"", db=self._database["found"]))

    def lookup_chain(self, prefixes: Iterable[PrefixKey], domain: str, *, after: Cid | None = None) -> list[Cid]:
        """Find the longest chain of blocks for consecutive prefix keys, from the first on.

        Each block continues the one before it, the first one `after` (None: the start of a conversation). Among chains
        of the greatest length, the one with the most blocks of `domain` is given, then the one added first. One table
        read per prefix key, in one transaction; stops drawing from `prefixes` at the first miss.

        Blocks of `UNKNOWN_DOMAIN` were fetched: that they are what their CIDs say is checked, who computed them is not
        known, so they answer nothing: fetching something can never change what a prompt answers. Those that a trusted
        signer signed answer, where trusted signers do not contradict one another (`trust`).
        """
        own, table, trusted = domain.encode(), self._database["found"], self._trusted
        reached: dict[bytes, int] = {pack_prev(after): 0}  # block -> blocks of the own domain on the way to it
        steps: list[dict[bytes, bytes]] = []  # per position: block -> prev
        with self._database.read() as txn:
            for prefix in prefixes:
                self.reads += 1
                scores: dict[bytes, int] = {}
                step: dict[bytes, bytes] = {}
                rows = list(unpack_found(txn.get(self.filed_as(prefix), default=b"", db=table)))
                for block, prev, owner in usable(rows, trusted):
                    if prev in reached:
                        score = reached[prev] + (owner == own)
                        scores[block] = max(score, scores.get(block, 0))
                        step[block] = prev
                if not step:
                    break
                reached = scores
                steps.append(step)
        at = max(reached, key=reached.__getitem__)
        chain: list[Cid] = []
        for step in reversed(steps):
            chain.append(Cid(at))
            at = step[at]
        return chain[::-1]

    def next_block(self, source: Cid | None, model: Cid) -> list[Cid]:
        """List the blocks that continue `source` (None: the first blocks of the model), ordered by CID."""
        with self._database.read() as txn, txn.cursor(self._database["next"]) as cursor:
            return [Cid(each) for each in cursor.iternext_dup()] if cursor.set_key(_edge(model, source)) else []

    def domain_of(self, block: Cid) -> str | None:
        """Give the numeric domain that computed a block (the first one known), or None if it is not indexed.

        `UNKNOWN_DOMAIN` for a block that came from elsewhere, signed or not.
        """
        domains = [each.domain for each in self.beside(block) if each.block == block]
        known = (domain for domain in domains if signer_of(domain) is None)
        return next(known, UNKNOWN_DOMAIN) if domains else None

    def computed_here(self, blocks: Iterable[Cid]) -> set[Cid]:
        """Give those of some blocks that were computed here, in any numeric domain. One transaction."""
        tables, own = self._database, set[Cid]()
        with tables.read() as txn:
            for block in blocks:
                known = txn.get(block, default=b"", db=tables["blocks"])
                rows = unpack_found(txn.get(known[:_KEY_BYTES], default=b"", db=tables["found"]) if known else b"")
                if any(each == block and is_own(text_of(owner)) for each, _, owner in rows):
                    own.add(block)
        return own

    def divergences(self) -> list[Divergence]:
        """List every divergence seen since the index was made or rebuilt."""
        return [
            Divergence(
                KeyedPrefix(key[:_KEY_BYTES]), text_of(key[_KEY_BYTES + CID_BYTES :]),
                unpack_prev(key[_KEY_BYTES : _KEY_BYTES + CID_BYTES]), unpack_cids(row),
            )
            for key, row in self._database.items("divergences")
        ]  # fmt: skip

    def entries(self) -> Iterator[Filed]:
        """List every block once per domain, ordered by keyed prefix."""
        for key, row in self._database.items("found"):
            for block, prev, owner in unpack_found(row):
                with self._database.read() as txn:
                    known = txn.get(block, db=self._database["blocks"])
                if known is not None:
                    model = Cid(known[_KEY_BYTES:])
                    yield Filed(KeyedPrefix(key), Cid(block), unpack_prev(prev), model, text_of(owner))

    def known_domains(self) -> dict[Cid, list[str]]:
        """List who computed or signed each block, as far as it can still be read."""
        domains: dict[Cid, list[str]] = {}
        for _, row in self._database.items("found"):
            with suppress(Corrupt):
                for block, _, owner in unpack_found(row):
                    domains.setdefault(Cid(block), []).append(text_of(owner))
        return domains

    def check(self) -> Iterator[Finding]:
        """Report tables that disagree: each answer has its block and its edge, and each edge its answer."""
        answers: dict[bytes, bytes] = {}  # block -> the edge that leads to it
        for key, row in self._database.items("found"):
            for block, prev, _ in unpack_found(row):
                with self._database.read() as txn, txn.cursor(self._database["next"]) as cursor:
                    known = txn.get(block, default=b"", db=self._database["blocks"])
                    edge = _edge(known[_KEY_BYTES:], unpack_prev(prev))
                    joined = bool(known) and cursor.set_key_dup(edge, block)  # no key may be empty
                if known[:_KEY_BYTES] != key:
                    yield Finding(Cid(block), "index", "answers another prefix key than the one it is filed under")
                elif not joined:
                    yield Finding(Cid(block), "index", "is found by prefix key but not by next_block")
                answers[block] = edge
        for edge, block in self._database.items("next"):
            if answers.get(block) != edge:
                yield Finding(Cid(block), "index", "is found by next_block but not by prefix key")


def _answers(row: bytes) -> list[Found]:
    return [Found(Cid(block), text_of(owner), unpack_prev(prev)) for block, prev, owner in unpack_found(row)]


def _edge(model: bytes, source: Cid | None) -> bytes:
    return model + (source or b"")
