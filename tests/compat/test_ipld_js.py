"""What we serve and write, in `@ipld/car`, `@ipld/dag-cbor` and `@ipld/dag-json`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cyberkv.cybergraph.cid import Cid
from tests.compat.home import held, make_home, publish, serving

pytestmark = pytest.mark.compat


@pytest.fixture
def talk(tmp_path: Path) -> tuple[Path, Cid]:
    """A home with one public conversation of two segments."""
    home = tmp_path / "home"
    root = make_home(home, talk=300)["talk"]
    publish(home, "talk")
    return home, root


def names(found: dict[str, Any]) -> list[str]:
    """The blocks of a CAR, all of which have the right hash and are encoded as that library would."""
    assert all(hashed and reencodes for _, hashed, reencodes in found["blocks"])
    return [cid for cid, _, _ in found["blocks"]]


def test_a_stream_of_the_gateway(talk: tuple[Path, Cid], javascript: Callable[..., Any]) -> None:
    home, root = talk
    with serving(home) as url:
        whole = javascript("car.mjs", f"{url}/ipfs/{root}?format=car")
        alone = javascript("car.mjs", f"{url}/ipfs/{root}?format=car&dag-scope=block")
        repeated = javascript("car.mjs", f"{url}/ipfs/{root}?format=car&car-dups=y")
    assert whole["roots"] == alone["roots"] == [str(root)]
    assert sorted(names(whole)) == sorted(map(str, held(home, root)))
    assert names(alone) == [str(root)]
    assert len(names(repeated)) > len(names(whole))
    assert set(names(repeated)) == set(names(whole))


def test_a_file_of_publish(talk: tuple[Path, Cid], tmp_path: Path, javascript: Callable[..., Any]) -> None:
    home, root = talk
    car = tmp_path / "talk.car"
    publish(home, "talk", "--car", car)
    found = javascript("car.mjs", car)
    assert found["roots"] == [str(root)]
    assert sorted(names(found)) == sorted(map(str, held(home, root)))


def test_a_damaged_file_is_noticed_there(
    talk: tuple[Path, Cid], tmp_path: Path, javascript: Callable[..., Any]
) -> None:
    car = tmp_path / "talk.car"
    publish(talk[0], "talk", "--car", car)
    with car.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    assert [hashed for _, hashed, _ in javascript("car.mjs", car)["blocks"]].count(False) == 1


def test_nodes_as_dag_json(talk: tuple[Path, Cid], javascript: Callable[..., Any]) -> None:
    home, root = talk
    nodes = [cid for cid in held(home, root) if cid.codec == "dag-cbor"][:20]
    assert nodes[0] == root
    with serving(home) as url:
        found = javascript("json.mjs", *(f"{url}/ipfs/{cid}" for cid in nodes))
    assert found == [[True, True]] * len(nodes)
