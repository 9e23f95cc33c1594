"""A reader in one process while another gives its slots to other leaves: right bytes or a clean miss, nothing else."""

from pathlib import Path

import pytest

from cyberkv.cybergraph.errors import BlockNotFound
from cyberkv.cybergraph.store import DiskStore
from tests.contracts.disk import beside_child
from tests.contracts.synthetic import blocks

READER = """
    from cyberkv.cybergraph.errors import CyberKVError

    def pause(really):
        def read(*args, **options):
            if waits:
                waits.pop()
                print("looked", flush=True)
                sys.stdin.readline()
            return really(*args, **options)
        return read

    waits = [None]
    cid, data = blocks(1)[0]
    with DiskStore(path, read_only=True) as store:
        store._slabs.read_bytes = pause(store._slabs.read_bytes)
        store._slabs.read_into = pause(store._slabs.read_into)
        out = bytearray(len(data))
        try:
            if args[0] == "get":
                out = store.get(cid)
            else:
                store.get_into([cid], [memoryview(out)])
            print("right" if out == data else "wrong", flush=True)
        except CyberKVError as error:
            print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize("verb", ["get", "get_into"])
@pytest.mark.parametrize(("meanwhile", "answer"), [("kept", "right"), ("gone", "BlockNotFound"), ("moved", "right")])
def test_a_slot_reused_between_lookup_and_read(tmp_path: Path, verb: str, meanwhile: str, answer: str) -> None:
    first, second, third = blocks(3)
    with DiskStore(tmp_path) as store:
        store.put_many([first, third])
        (slot,) = store.places([first[0]])
        with beside_child(READER, tmp_path, verb) as reader:
            assert reader.stdin
            assert reader.stdout
            assert reader.stdout.readline() == "looked\n"
            if meanwhile != "kept":
                store.delete_many([first[0]])
                store.put_many([second])
                assert store.places([second[0]]) == [slot]  # the reader will read these bytes
            if meanwhile == "moved":
                store.put_many([first])
            reader.stdin.write("go\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == f"{answer}\n"


def test_reading_while_another_process_writes_and_deletes(tmp_path: Path) -> None:
    made = blocks(12)
    with DiskStore(tmp_path) as store:
        store.put_many(made)
    writer = beside_child(
        """
        made = blocks(12)
        with DiskStore(path) as store:
            for round in range(100):
                store.delete_many(cid for cid, _ in made[round % 5 :: 3])
                store.put_many(reversed(made))
        """,
        tmp_path,
    )
    reads = 0
    with writer, DiskStore(tmp_path, read_only=True) as store:
        while writer.poll() is None:
            for cid, data in made:
                for _ in range(2):
                    try:
                        out = bytearray(len(data))
                        store.get_into([cid], [memoryview(out)])
                        assert out == store.get(cid) == data
                    except BlockNotFound:
                        pass
                    reads += 1
    assert writer.returncode == 0
    assert reads
    with DiskStore(tmp_path) as store:
        assert [store.get(cid) for cid, _ in made] == [data for _, data in made]
        assert list(store.check()) == []
