"""What reads rows in place is refused with an engine on a device, by its name, and changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from cyberkv.cybergraph.errors import UnsupportedModel
from cyberkv.runtime.edits.evict import evict
from cyberkv.runtime.edits.receipt import Cut
from cyberkv.runtime.engine import Engine
from cyberkv.runtime.live import Live
from cyberkv.runtime.prefetch.arriving import append_arriving
from cyberkv.runtime.selected import Selected
from cyberkv.runtime.selection import RECENT
from cyberkv.runtime.splice.documents import Engines
from cyberkv.runtime.splice.measure import copy_rows
from tests.laws.pools import late_pool
from tests.numerics.together import TOKENS, State

WAYS: dict[str, Callable[[Live], Any]] = {
    "a sequence with rotated copies": lambda live: live.engine.new_sequence(),
    "evicting in mode exact": lambda live: evict(live, [Cut(3, 20)], "exact"),
    "evicting in mode fast": lambda live: evict(live, [Cut(3, 20)], "fast"),
    "splicing": lambda live: Engines(live.engine),
    "splicing ": lambda live: copy_rows(live, 20),
    "going on over selected blocks": lambda live: Selected(live.engine, RECENT),
    "computing while blocks come": lambda live: append_arriving(live, ROOT, TOKENS[:1]),
}


class Root:
    root = steps = None


ROOT: Any = Root()


@pytest.mark.parametrize("way", WAYS)
def test_it_is_refused_and_nothing_has_changed(
    way: str, tiny_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine("llama")
    live = Live(engine)
    live.append(TOKENS[:40])
    before, stored = State.of(live), set(engine.store.cids())
    with monkeypatch.context() as patch:
        patch.setattr(engine, "pool", late_pool(1, 0))
        with pytest.raises(UnsupportedModel, match=f"{way.strip()}.* this pool is on a device"):
            WAYS[way](live)
    assert State.of(live).same(before)
    assert set(engine.store.cids()) == stored
    if way.startswith("evicting"):  # the control
        WAYS[way](live)
        assert not State.of(live).same(before)
