from collections.abc import Callable
from pathlib import Path

import pytest

from tests.numerics.tiny import tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give the folder of a small random model of a family, made once."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = tiny_model(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder
