"""The rules of the house that no linter knows: import directions, file lengths, one place for errors.

Each rule is one test over all files, which names every file that breaks it.
"""

import ast
import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TOP = Path(__file__).parents[2]
ROOMS = ("cybergraph", "runtime", "cli")
FILES = sorted(path for folder in (*ROOMS, "tests", "benchmarks", "fixtures") for path in (TOP / folder).rglob("*.py"))
PACKAGE_FILES = [path for path in FILES if path.relative_to(TOP).parts[0] in ROOMS]
MOST_LINES, MOST_LINES_MEDIAN = 400, 120
TENSORS = {"torch", "numpy", "transformers", "safetensors", "tokenizers"}
NAMES_A_ROOM = re.compile(rf"^\s*(?:import|from)\b.*(?<![.\w])(?:{'|'.join(ROOMS)})\b", re.MULTILINE)
"""Finds every file with a bare import of a room, and a few more: most need not be parsed."""
NAMES_THE_PROJECT = re.compile(r"^\s*(?:import|from)\b.*\bcyberkv\b", re.MULTILINE)
NAMES_TENSORS = re.compile(rf"^\s*(?:import|from)\b.*\b(?:{'|'.join(TENSORS)})\b", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(TOP))


def room_of(path: Path) -> str:
    return path.relative_to(TOP).parts[0]


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def imported(path: Path) -> frozenset[str]:
    return frozenset(imports(tree_of(path)))


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the top-level name of every absolute import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0]


def lines_of(path: Path) -> int:
    return len(text_of(path).splitlines())


def test_no_bare_import_of_a_room() -> None:
    # With the repository on sys.path, `import runtime` would load every module twice, under another name.
    named = [path for path in FILES if NAMES_A_ROOM.search(text_of(path))]
    assert [name_of(path) for path in named if imported(path) & {*ROOMS}] == []


def test_inside_the_packages_imports_are_relative() -> None:
    named = [path for path in PACKAGE_FILES if NAMES_THE_PROJECT.search(text_of(path))]
    assert [name_of(path) for path in named if "cyberkv" in imported(path)] == []


def test_cybergraph_knows_no_tensors() -> None:
    below = [path for path in PACKAGE_FILES if room_of(path) == "cybergraph" and NAMES_TENSORS.search(text_of(path))]
    assert [name_of(path) for path in below if imported(path) & TENSORS] == []


def test_control_the_import_finder_finds() -> None:
    source = "import a.b, runtime\nfrom torch.nn import x\nfrom . import c\ndef f():\n    import numpy as np\n"
    assert [*imports(ast.parse(source))] == ["a", "runtime", "torch", "numpy"]
    assert any("torch" in imported(path) for path in PACKAGE_FILES if NAMES_TENSORS.search(text_of(path)))
    assert NAMES_A_ROOM.search(source)
    assert NAMES_TENSORS.search(source)
    assert NAMES_THE_PROJECT.search("def f():\n    from cyberkv.cli import x")
    assert all(
        NAMES_A_ROOM.search(line) for line in ("  import cli", "from runtime.x import y", "import a, cybergraph.z")
    )


def test_no_file_is_long() -> None:
    assert {name_of(path): lines for path in FILES if (lines := lines_of(path)) > MOST_LINES} == {}


def test_most_files_are_short() -> None:
    lengths = [lines_of(path) for path in PACKAGE_FILES if path.name != "__init__.py"]
    assert statistics.median(lengths) <= MOST_LINES_MEDIAN


def test_errors_are_defined_in_one_module() -> None:
    home = TOP / "cybergraph/errors.py"
    known = {node.name for node in ast.walk(tree_of(home)) if isinstance(node, ast.ClassDef)}
    known |= {"Exception", "BaseException"}
    derived = re.compile(rf"\bclass\s+\w+\s*\([^:]*\b(?:{'|'.join(known)})\b")
    elsewhere = [
        f"{name_of(path)}: {node.name}"
        for path in PACKAGE_FILES
        if path != home and derived.search(text_of(path))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and {base.id for base in node.bases if isinstance(base, ast.Name)} & known
    ]
    assert elsewhere == []
    assert {"CyberKVError", "TierFull"} <= known  # the control: classes are found where they are
    assert derived.search("class A(\n    B, TierFull\n):")


def test_the_command_line_alone_reads_the_environment() -> None:
    ways = ("environ", "getenv", "expanduser")
    readers = {
        f"{name_of(path)}, line {node.lineno}"
        for path in PACKAGE_FILES
        if any(way in text_of(path) for way in ways)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in ways
    }
    assert {reader for reader in readers if not reader.startswith("cli/")} == set()
    assert readers  # the control: the command line does
