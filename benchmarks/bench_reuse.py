"""What reuse is worth, counted in an index: the tables and plots of docs/reuse.md, and what a lookup costs.

`--tables` prints the tables, `--plots FOLDER` writes the plots; both are the same in every run. Without either, a
lookup of a whole chain is timed against a plain tree of tokens in memory, and against a miss at its first block.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .common import Claim, best_in_turns_s, options, report
from .reuse_replay import BLOCK_TOKENS, replay, text
from .reuse_tables import NONCE, TABLES, TURNS, growing, markdown, run, share


class Trie:
    """Every token a step of its own: the simplest cache of prefixes there is."""

    def __init__(self) -> None:
        self.next: dict[int, Trie] = {}

    def insert(self, tokens: Sequence[int]) -> None:
        at = self
        for token in tokens:
            at = at.next.setdefault(token, Trie())

    def longest(self, tokens: Sequence[int]) -> int:
        at: Trie | None = self
        for length, token in enumerate(tokens):
            at = at.next.get(token) if at else None
            if at is None:
                return length
        return len(tokens)


def main(argv: Sequence[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--tables", action="store_true")
    own.add_argument("--plots", type=Path)
    mine, rest = own.parse_known_args(argv)
    args = options(rest, __doc__ or "")
    if mine.tables:
        for name, table in TABLES.items():
            print(f"## {name}\n\n{markdown(table())}\n")
    if mine.plots:
        from .reuse_plots import draw

        for path in draw(mine.plots):
            print(path)
    if mine.tables or mine.plots:
        return 0
    tokens = text(7, 4_096 if args.quick else 65_536)
    missing = [NONCE, *tokens[1:]]
    tree = Trie()
    tree.insert(tokens)
    with replay() as fresh:
        fresh.ask(tokens)
        assert fresh.ask(tokens, record=False).found == tree.longest(tokens) // BLOCK_TOKENS * BLOCK_TOKENS
        assert fresh.ask(missing, record=False).found == tree.longest(missing) == 0
        ours_s, tree_s, miss_s = best_in_turns_s(
            lambda: fresh.ask(tokens, record=False),
            lambda: tree.longest(tokens),
            lambda: fresh.ask(missing, record=False),
            repeats=3,
        )
    turns = TURNS[0] if args.quick else TURNS[-1]
    found = share(run(growing(turns, 64)))
    claims = [
        Claim(f"of the tokens of {turns} turns found", float(found), (turns - 1) / (turns + 1), unit=""),
        Claim("tokens a second, against a tree of tokens in memory", tree_s / ours_s, 0.05),
    ]
    figures = {
        "lookup of a chain on disk, us a block": ours_s / (len(tokens) // BLOCK_TOKENS) * 1e6,
        "tree of tokens in memory, us a block": tree_s / (len(tokens) // BLOCK_TOKENS) * 1e6,
        "the same lookup, missed at its first block, us a block": miss_s / (len(tokens) // BLOCK_TOKENS) * 1e6,
    }
    return report(args, "Reuse", claims, figures)


if __name__ == "__main__":
    raise SystemExit(main())
