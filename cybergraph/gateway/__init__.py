"""The gateway: what was published, and what lies in CAR files, over HTTP."""

from .app import Explorer, build_app
from .content import Content, Published, Several
from .serve import GatewayServer, serve

__all__ = ["Content", "Explorer", "GatewayServer", "Published", "Several", "build_app", "serve"]
