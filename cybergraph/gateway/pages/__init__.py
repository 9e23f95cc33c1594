"""Pages for people: what a gateway holds, to be read and walked in a browser, made on the server and without script."""

from .lookups import Lookups
from .site import Pages

__all__ = ["Lookups", "Pages"]
