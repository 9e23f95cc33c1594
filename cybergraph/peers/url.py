"""The address of an HTTP gateway.

>>> str(GatewayUrl.parse("http://127.0.0.1:8480/ipfs/bafkqaaa"))
'http://127.0.0.1:8480'
>>> str(GatewayUrl.parse("https://Gateway.example/"))
'https://gateway.example'
"""

import re
from dataclasses import dataclass

from .endpoint import Endpoint


@dataclass(frozen=True)
class GatewayUrl(Endpoint):
    """A gateway answers at `/ipfs/<cid>`, which may be part of the text that names it."""

    kind = "the URL of a gateway"
    hint = "write http://host:port or https://host"
    login_hint = "gateways are asked without credentials"
    paths = re.compile(r"/*(?:ipfs(?:/[^/]+)?)?/*")
