"""Reading the small files of a model folder, bounded."""

import json
from pathlib import Path
from typing import Any, Final

from ...cybergraph.errors import Corrupt, LimitExceeded, NotFound

MAX_JSON_BYTES: Final = 64 << 20
"""Largest JSON file. Tokenizers of large vocabularies reach 20 MiB."""
MAX_TEMPLATE_CHARS: Final = 1 << 20
"""Largest chat template."""


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raises `NotFound`, `LimitExceeded` or `Corrupt`, naming the file."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise LimitExceeded(f"{path} is over {MAX_JSON_BYTES} bytes", path=str(path))
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(f"no file {path}", hint="a model folder holds config.json", path=str(path)) from None
    except LimitExceeded:
        raise
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{path} is not JSON: {error}", path=str(path)) from error
