"""A package says what it offers: `__all__` names what exists, once, with its documentation."""

import importlib
import inspect
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PACKAGES = [
    "cyberkv." + ".".join(path.parent.relative_to(TOP).parts)
    for folder in ("cybergraph", "runtime", "cli")
    for path in sorted((TOP / folder).rglob("__init__.py"))
]


@pytest.mark.parametrize("name", PACKAGES)
def test_what_is_offered_exists_and_is_documented(name: str) -> None:
    package = importlib.import_module(name)
    offered = getattr(package, "__all__", [])
    assert len({*offered}) == len(offered)
    for key in offered:
        value = getattr(package, key)
        assert not callable(value) or value.__doc__, f"{name}.{key} has no docstring"


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_only_gathers_offers_all_it_gathers(name: str) -> None:
    package = importlib.import_module(name)
    own = [value for value in vars(package).values() if getattr(value, "__module__", "").startswith(name)]
    classes = {value.__name__ for value in own if inspect.isclass(value)}
    if not any(value.__module__ == name for value in own if inspect.isclass(value)):
        assert classes <= {*getattr(package, "__all__", [])}


def test_control_the_node_types_are_exported() -> None:
    from cyberkv.cybergraph import nodes

    assert {"Block", "Model", "decode_node", "links"} <= {*nodes.__all__}
    assert {cls.__name__ for cls in nodes.TYPES.values()} <= {*nodes.__all__}
