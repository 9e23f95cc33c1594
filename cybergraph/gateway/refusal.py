"""Answers that are not what was asked for, and the headers that all answers carry."""

from typing import Final

from starlette.exceptions import HTTPException

CROSS_ORIGIN: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Range, User-Agent, X-Requested-With",
    "Access-Control-Expose-Headers": (
        "Content-Length, Content-Range, Ipfs-Uri, X-Chunked-Output, X-Ipfs-Path, X-Ipfs-Roots, X-Stream-Output"
    ),
}
"""What is public may be read by the scripts of any site: nothing here depends on who asks."""

FOREIGN: Final = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox"}
"""Bytes of other people: whatever they look like, a browser neither guesses at them nor runs them."""

REFUSED: Final = {**CROSS_ORIGIN, **FOREIGN, "Cache-Control": "no-store"}


def refuse(status: int, reason: str, **more: str) -> HTTPException:
    """Build a plain-text refusal, with `more` headers."""
    return HTTPException(status, f"{status}: {reason}\n", more)
