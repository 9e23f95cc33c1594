"""The proof schemes by name. One that is not listed is refused; none passes without proving anything."""

from collections.abc import Iterable, Iterator
from typing import Final

from .access_sig import AccessSig
from .member_sig import MemberSig
from .ring_or import RingOr
from .scheme import ProofScheme, rejected


class Registry:
    """Schemes by `id`."""

    def __init__(self, schemes: Iterable[ProofScheme]) -> None:
        self._schemes = {scheme.id: scheme for scheme in schemes}

    def __getitem__(self, name: str) -> ProofScheme:
        """Find a scheme. Raises `ProofRejected` for an unknown one."""
        if name not in self._schemes:
            raise rejected(name, "unknown-scheme")
        return self._schemes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemes)


SCHEMES: Final = Registry((AccessSig(), MemberSig(), RingOr()))
DEFAULT_SCHEME: Final = AccessSig.id
