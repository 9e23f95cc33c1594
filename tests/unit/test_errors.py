"""The error tree: the text at the top of the module is the tree of the classes."""

import builtins
import inspect
import re

import pytest

from cyberkv.cybergraph import errors
from cyberkv.cybergraph.errors import CyberKVError

CLASSES = {name: cls for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, CyberKVError)}
LINE = re.compile(r"^    ([|` -]*)(\w+)(?: \((\w+)\))? +(\d+|exit)  (\S+)$", re.MULTILINE)


def tree() -> dict[str, tuple[str | None, str | None, str, str]]:
    """Read the drawn tree: name -> (parent, builtin, exit code, kind)."""
    found, above = {}, {}
    for branch, name, builtin, exit_code, kind in LINE.findall(errors.__doc__ or ""):
        depth = len(branch) // 3
        above[depth] = name
        found[name] = (above.get(depth - 1), builtin or None, exit_code, kind)
    return found


def test_the_drawn_tree_lists_every_class_and_no_other() -> None:
    assert {*tree()} == {*CLASSES}
    assert len(CLASSES) > 20


@pytest.mark.parametrize("name", CLASSES)
def test_the_drawn_line_is_the_class(name: str) -> None:
    cls = CLASSES[name]
    parent, builtin, exit_code, kind = tree()[name]
    if cls is CyberKVError:
        assert (parent, exit_code, kind) == (
            None,
            "exit",
            "kind",
        )  # the column titles stand in the root's line
        assert (cls.exit_code, cls.kind) == (1, "error")
        return
    bases = [base.__name__ for base in cls.__bases__]
    assert bases == [parent, *([builtin] if builtin else [])]
    assert builtin is None or hasattr(builtins, builtin)
    assert (cls.exit_code, cls.kind) == (int(exit_code), kind)
    assert cls.__doc__


def test_kinds_are_distinct() -> None:
    assert len({cls.kind for cls in CLASSES.values()}) == len(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_carries_message_hint_and_data(name: str) -> None:
    error = CLASSES[name]("what happened", hint="what to do", field="f", got=1)
    assert str(error) == error.message == "what happened"
    assert (error.hint, error.data) == ("what to do", {"field": "f", "got": 1})
    assert CLASSES[name]("m").hint == ""


def test_each_class_is_also_the_builtin_it_refines() -> None:
    assert issubclass(errors.BlockNotFound, KeyError)
    assert issubclass(errors.DigestMismatch, ValueError)
    assert issubclass(errors.IdentityMismatch, PermissionError)
    assert issubclass(errors.PeerUnreachable, ConnectionError)
    assert issubclass(errors.TierFull, OSError)
