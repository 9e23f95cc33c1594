"""The rules of the house that no linter knows: import directions, file lengths, one place for errors."""

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
ROOMS = ("cybergraph", "runtime", "cli")
FILES = sorted(path for folder in (*ROOMS, "tests", "benchmarks", "fixtures") for path in (TOP / folder).rglob("*.py"))
PACKAGE_FILES = [path for path in FILES if path.relative_to(TOP).parts[0] in ROOMS]
MOST_LINES, MOST_LINES_MEDIAN = 400, 120


def name_of(path: Path) -> str:
    return str(path.relative_to(TOP))


every_file = pytest.mark.parametrize("path", FILES, ids=name_of)
every_package_file = pytest.mark.parametrize("path", PACKAGE_FILES, ids=name_of)


def imports(source: str) -> Iterator[str]:
    """Yield the top-level name of every absolute import."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0]


@every_file
def test_no_bare_import_of_a_room(path: Path) -> None:
    # With the repository on sys.path, `import runtime` would load every module twice, under another name.
    assert not {*imports(path.read_text())} & {*ROOMS}


@every_package_file
def test_inside_the_packages_imports_are_relative(path: Path) -> None:
    assert "cyberkv" not in imports(path.read_text())


@every_package_file
def test_cybergraph_knows_no_tensors(path: Path) -> None:
    if path.relative_to(TOP).parts[0] == "cybergraph":
        assert not {*imports(path.read_text())} & {
            "torch",
            "numpy",
            "transformers",
            "safetensors",
            "tokenizers",
        }


def test_control_the_import_finder_finds() -> None:
    source = "import a.b, runtime\nfrom torch.nn import x\nfrom . import c\ndef f():\n    import numpy as np\n"
    assert [*imports(source)] == ["a", "runtime", "torch", "numpy"]
    assert any("torch" in imports(path.read_text()) for path in PACKAGE_FILES)


@every_file
def test_no_file_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


def test_most_files_are_short() -> None:
    lengths = [len(path.read_text().splitlines()) for path in PACKAGE_FILES if path.name != "__init__.py"]
    assert statistics.median(lengths) <= MOST_LINES_MEDIAN


@every_package_file
def test_errors_are_defined_in_one_module(path: Path) -> None:
    if name_of(path) == "cybergraph/errors.py":
        return
    known = {node.name for node in ast.walk(ast.parse((TOP / "cybergraph/errors.py").read_text()))
             if isinstance(node, ast.ClassDef)} | {"Exception", "BaseException"}  # fmt: skip
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            assert not {base.id for base in node.bases if isinstance(base, ast.Name)} & known, node.name


@every_package_file
def test_the_command_line_alone_reads_the_environment(path: Path) -> None:
    if path.relative_to(TOP).parts[0] == "cli":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("environ", "getenv", "expanduser"), f"line {node.lineno}"
