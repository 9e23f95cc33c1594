"""`serve --car` over what Kubo made: files (dag-pb, CIDv0 and v1) and dag-json, which another node pins from us."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.daemon import Daemon
from tests.compat.home import serving
from tests.compat.router import naming, only_by

pytestmark = pytest.mark.compat


def test_a_node_pins_files_and_json_from_a_car_that_we_serve(tmp_path: Path, kubo: Callable[..., Daemon]) -> None:
    data = bytes(range(256)) * 4096 + b"the end"
    (tmp_path / "file").write_bytes(data)
    maker = kubo("maker", online=False)
    old = maker.run("add", "--quieter", "--cid-version=0", "--raw-leaves=false", str(tmp_path / "file")).strip()
    new = maker.run("add", "--quieter", "--cid-version=1", "--chunker=size-65536", str(tmp_path / "file")).strip()
    (tmp_path / "node.json").write_text(json.dumps({"file": {"/": new}, "n": [1, {"/": {"bytes": "AQID"}}]}))
    linked = maker.run("dag", "put", "--input-codec=dag-json", "--store-codec=dag-json", str(tmp_path / "node.json"))
    linked = linked.strip()
    assert old.startswith("Qm")
    for cid in (old, linked):
        maker.export(cid, tmp_path / f"{cid}.car")
    absent = maker.run("add", "--quieter", "--only-hash", "--cid-version=1", __file__).strip()
    maker.stop()

    words = [word for cid in (old, linked) for word in ("--car", tmp_path / f"{cid}.car")]
    with serving(tmp_path / "no-home", *words) as url, naming(url) as routed:
        node = kubo("node", **only_by(routed))
        node.run("pin", "add", old)
        node.run("pin", "add", linked)
        assert node.attempt("pin", "add", "--timeout=3s", absent).returncode != 0
    for cid in (old, new, f"{linked}/file"):
        node.run("get", "--output", str(tmp_path / "got"), cid)
        assert (tmp_path / "got").read_bytes() == data
        (tmp_path / "got").unlink()
