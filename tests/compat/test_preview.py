"""A browser at a foreign gateway: Kubo's own page for dag-cbor shows our nodes readably and leads from root to leaf.

With CYBERKV_SCREENSHOTS=DIR the picture of docs/ipfs.md is made again, as DIR/kubo-preview.png.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from cyberkv.cybergraph.chain import load_root
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.nodes import Block, Segment
from cyberkv.cybergraph.store import DiskStore
from tests.compat.daemon import Daemon
from tests.compat.home import make_home, publish
from tests.wire.synthetic import BLOCK_SIZE

pytestmark = pytest.mark.compat


def follow(page: Page, gateway: str, cid: Cid) -> None:
    """Click on the link to a CID and wait for its page."""
    page.locator(f'a[href="/ipfs/{cid}"]').first.click()
    page.wait_for_url(f"{gateway}/ipfs/{cid}/")


def words(page: Page) -> set[str]:
    """What a person reads on the page: the keys of a node, and its values."""
    return set(page.locator("body").inner_text().split())


def test_from_root_to_leaf_by_links(tmp_path: Path, kubo: Callable[..., Daemon], browser_page: Page) -> None:
    home, page = tmp_path / "home", browser_page
    root = make_home(home, talk=300)["talk"]
    node = kubo("node", online=False)
    publish(home, "talk", "--kubo", node.api)
    with DiskStore(home / "store", read_only=True) as store:
        segment = load_root(store, root).segments[1]
        block = Segment.decode(store.get(segment)).links[3].to
        leaf = Block.decode(store.get(block)).kv[0]
        rows = store.get(leaf)

    page.goto(f"{node.gateway}/ipfs/{root}")
    assert {"type", "cyberkv/conversation", "model", "segments", "length", "title", "talk", "created"} <= words(page)
    if folder := os.environ.get("CYBERKV_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / "kubo-preview.png", full_page=True)
    follow(page, node.gateway, segment)
    assert {"cyberkv/segment", "links", "next_block", "position_start", str(256 * BLOCK_SIZE)} <= words(page)
    follow(page, node.gateway, block)
    assert {"cyberkv/block", "tokens", "kv", str(1000 + 259 * BLOCK_SIZE)} <= words(page)
    with page.expect_download() as download:
        page.locator(f'a[href="/ipfs/{leaf}"]').first.click()
    assert download.value.path().read_bytes() == rows


def test_what_is_not_there_has_no_page(tmp_path: Path, kubo: Callable[..., Daemon], browser_page: Page) -> None:
    node = kubo("node", online=False)
    root = make_home(tmp_path / "home", talk=1)["talk"]
    answer = browser_page.goto(f"{node.gateway}/ipfs/{root}")
    assert answer is not None
    assert answer.status == 404
    assert "cyberkv/conversation" not in words(browser_page)
