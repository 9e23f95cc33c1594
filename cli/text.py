"""Text fit for a terminal: the words of `wording`, under one short name for all commands."""

from ..cybergraph.wording import count, duration, plain, preview, size

__all__ = ["count", "duration", "plain", "preview", "size"]
