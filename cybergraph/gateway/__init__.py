"""The trustless gateway: published blocks of one home over HTTP."""

from .app import build_app
from .serve import GatewayServer, serve

__all__ = ["GatewayServer", "build_app", "serve"]
