"""Sources are asked in the order of the speed they have shown before."""

import shutil
from pathlib import Path

import pytest

from cyberkv.cli.rates import FAILED_BYTES_S, FETCH, keep_rates, read_rates
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.store import MemoryStore
from tests.cli.conftest import Command
from tests.wire.liar import lying
from tests.wire.synthetic import contents, record


@pytest.fixture
def large() -> tuple[Cid, dict[Cid, bytes]]:
    """Three megabytes, which is enough to tell a speed."""
    store = MemoryStore()
    root = record(store, blocks=1600, tail_tokens=0)
    return root, contents(store, root)


def test_who_gave_fast_is_asked_first_and_who_failed_last(cyberkv: Command, tmp_path: Path) -> None:
    store = MemoryStore()
    root = record(store)
    blocks = contents(store, root)
    others = [Command(shutil.copytree(cyberkv.home, tmp_path / f"home{number}")) for number in range(2)]
    with lying(blocks) as one, lying(blocks) as two, lying(blocks) as three, lying({}) as gone:
        order = [gone.url, one.url, two.url, three.url]
        options = [word for url in order for word in ("--from", url)]
        assert others[0].json("fetch", root, *options)["peers"] == order  # the control: nothing is known yet
        keep_rates(others[1].home, FETCH, {gone.url: FAILED_BYTES_S, three.url: 9e6, two.url: 8e6})
        assert others[1].json("fetch", root, *options)["peers"] == [three.url, two.url, one.url, gone.url]


def test_speeds_are_noted(cyberkv: Command, large: tuple[Cid, dict[Cid, bytes]]) -> None:
    root, blocks = large
    with lying(blocks) as server:
        result = cyberkv.json("fetch", root, "--from", server.url, "--from", "http://127.0.0.1:1")
    [source, dead] = result["sources"]
    rates = read_rates(cyberkv.home, FETCH)
    assert rates == {
        server.url: pytest.approx(source["bytes"] / source["busy_s"], rel=1e-3), dead["peer"]: FAILED_BYTES_S
    }  # fmt: skip
    with lying(blocks) as server:  # nothing is missing, so nothing is learnt
        cyberkv("fetch", root, "--from", server.url)
    assert read_rates(cyberkv.home, FETCH) == rates
