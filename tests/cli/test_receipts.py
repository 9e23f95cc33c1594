"""Receipts of one conversation, whichever way each was published."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.wire.kubo_node import KuboNode, NodeServer


@pytest.fixture
def node() -> Iterator[NodeServer]:
    running = NodeServer(KuboNode())
    yield running
    running.close()


@pytest.mark.parametrize("ways", [("served", "served"), ("file", "file"), ("node", "node"), ("file", "served")])
def test_receipts_of_one_conversation_name_the_one_before(
    ways: tuple[str, str], story: Command, node: NodeServer, tmp_path: Path
) -> None:
    def publish(way: str) -> dict[str, Any]:
        to = {"served": (), "file": ("--car", tmp_path / f"{next(numbers)}.car"), "node": ("--kubo", node.url)}[way]
        done: dict[str, Any] = story.json("publish", "story", "--public", "--yes", *to)
        return done

    numbers = count()
    story("key", "new")
    story("publish", "story", "--public", "--dry-run")  # which publishes nothing
    first = publish(ways[0])
    story("gc")
    story("prefill", "-", "--from", "story", stdin=" And then?")
    second = publish(ways[1])
    assert first["root"] != second["root"]
    assert story.json("show", second["receipt"])["node"]["prev"] == first["receipt"]
    assert story.json("show", first["receipt"])["node"]["prev"] is None
