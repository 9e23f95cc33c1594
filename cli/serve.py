"""`serve`: the gateway over what was published, and over CAR files."""

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ..cybergraph.peers.url import GatewayUrl
from .chat_server import chatting
from .context import Session, pass_session
from .device import Device, device_options
from .interrupt import INTERRUPTED
from .options import LISTEN, SIZE
from .output import answer, remark, say
from .served import announced
from .shown import application, counted, open_car, published
from .titled import titled

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ..cybergraph.gateway import Content, GatewayServer
    from ..cybergraph.gateway.carcontent import CarContent
    from ..cybergraph.gateway.tls import Certificate

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]\s]+)):(?P<port>[0-9]{1,5})")
_MOST_PORT = 65535
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _address(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, int]:
    if (found := _ADDRESS.fullmatch(text)) is None:
        raise click.BadParameter("write HOST:PORT or [IPv6]:PORT; port 0 is any that is free")
    if (port := int(found["port"])) > _MOST_PORT:
        raise click.BadParameter(f"a port is at most {_MOST_PORT}, not {port}")
    return found["v6"] or found["host"], port


def _public_url(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    from ..cybergraph.peers.proving import audience_of

    return None if text is None else audience_of(GatewayUrl.parse(text))


@click.command()
@click.option(
    "--listen", metavar="HOST:PORT", default=LISTEN, show_default=True, callback=_address,
    help="Address to accept connections at; port 0 takes a free one.",
)  # fmt: skip
@click.option(
    "--car", "cars", metavar="FILE", type=_FILE, multiple=True,
    help="Serve the blocks of a CAR file, too, without importing them; may be repeated.",
)  # fmt: skip
@click.option("--tls-cert", metavar="FILE", type=_FILE, help="Serve HTTPS with HTTP/2; a certificate chain in PEM.")
@click.option("--tls-key", metavar="FILE", type=_FILE, help="The private key of --tls-cert, in PEM, without password.")
@click.option(
    "--require-proof", is_flag=True,
    help="Keep what is sealed back from whoever does not prove access to it; what is public is served as ever.",
)  # fmt: skip
@click.option(
    "--public-url", metavar="URL", callback=_public_url,
    help="Address by which readers reach this server, where that is not the one it prints: proofs are made for it.",
)  # fmt: skip
@click.option(
    "--chat", is_flag=True, help="Answer the chat-completions protocol, too, under /v1, and record each turn."
)
@click.option("--model", metavar="REF", help="Model of --chat; needed where several are registered.")
@click.option(
    "--chat-key", metavar="FILE", type=_FILE,
    help="Answer whoever shows the key in FILE; without it, --chat answers programs of this machine alone.",
)  # fmt: skip
@click.option(
    "--host-memory", metavar="SIZE", type=SIZE,
    help="With --chat: host memory for blocks that are not in use; else none, and 1 GiB below a device. What waiting "
    "requests need is brought there.",
)  # fmt: skip
@device_options
@click.pass_context
@pass_session
def serve(
    session: Session,
    ctx: click.Context,
    *,
    listen: tuple[str, int],
    cars: tuple[Path, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    require_proof: bool,
    public_url: str | None,
    chat: bool,
    model: str | None,
    chat_key: Path | None,
    host_memory: int | None,
    device: str,
    device_memory: int | None,
) -> None:
    """Serve what was published, as an IPFS gateway and as pages for a browser.

    Prints its URL once it accepts connections, and serves until Ctrl-C. Of this home only published blocks are served;
    a conversation that is published meanwhile is served from then on. Readers check every byte themselves. With --car
    no home is needed, and all of the file is served. While there is nothing to serve, it looks through the store for
    damage.

    With --require-proof, ciphertext is given to readers only. `cyberkv fetch` proves access by itself, to the address
    that it was told and to no other. This saves bandwidth and says nothing about other copies: the text is kept from
    others by encryption alone.

    With --chat, any client of the chat-completions protocol runs on this home: beginnings that were computed before
    are found by themselves, the answer says how many tokens that were and under which root the turn is recorded, and
    the field `conversation` goes on from a recorded one. What is said there stays private.
    """
    from ..cybergraph.gateway.door import Door
    from ..cybergraph.gateway.metrics import Metrics
    from ..cybergraph.peers.proving import audience_of
    from .scrubbing import scrubbing

    if public_url is not None and not require_proof:
        raise click.UsageError("--public-url belongs to --require-proof")
    if not chat and (model is not None or chat_key is not None or host_memory or device_memory is not None):
        raise click.UsageError("--model, --chat-key, --host-memory and --device-memory belong to --chat")
    if not chat and ctx.get_parameter_source("device") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--device belongs to --chat")
    if chat and tls_cert is not None:
        raise click.UsageError("--chat speaks plain HTTP; put a proxy with TLS before it")
    certificate = _certificate(tls_cert, tls_key)
    if chat:
        session.create_home()
    has_home = session.has_home or not cars
    certified = (certificate.name,) if certificate is not None and certificate.name else ()
    metrics = Metrics()
    with ExitStack() as stack:
        files = [stack.enter_context(open_car(session, path)) for path in cars]
        contents: list[Content] = [*([published(session, records=chat)] if has_home else []), *files]
        content = counted(contents, metrics)
        door = Door(content, session.now_s) if require_proof else None
        place = Device(device, device_memory, host_memory)
        chats = chatting(session, model, chat_key, listen[0], metrics, place) if chat else None
        answers = None if chats is None else stack.enter_context(chats)
        server = _server(
            application(session, content, metrics, door, (listen[0], *certified), answers),
            listen,
            certificate,
            lambda _: _tell(session, server, files, has_home=has_home, chat=chat),
        )
        if door is not None:
            door.audience = public_url or audience_of(GatewayUrl.parse(server.url))
        if has_home:
            stack.enter_context(announced(session.home, server.url))
            scrub = stack.enter_context(scrubbing(session))
            metrics.watch("scrub_blocks", "Blocks of the store read in search of damage", lambda: scrub.done.blocks)
            metrics.watch("scrub_damaged", "Blocks found damaged", lambda: scrub.done.damaged)
            metrics.watch("scrub_rounds", "How often every block was read", lambda: scrub.done.rounds)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            remark(session, "stopped")
            ctx.exit(INTERRUPTED)


def _certificate(cert_file: Path | None, key_file: Path | None) -> "Certificate | None":
    if cert_file is None and key_file is None:
        return None
    if cert_file is None or key_file is None:
        raise click.UsageError("--tls-cert and --tls-key belong together")
    from ..cybergraph.gateway.tls import Certificate

    return Certificate(cert_file, key_file)


def _server(
    app: "ASGIApp", listen: tuple[str, int], certificate: "Certificate | None", ready: Callable[[str], None]
) -> "GatewayServer":
    if certificate is None:
        from ..cybergraph.gateway import GatewayServer

        return GatewayServer(app, *listen, ready)
    from ..cybergraph.gateway.tls import TlsServer

    return TlsServer(app, *listen, ready, certificate)


def _tell(session: Session, server: "GatewayServer", files: "list[CarContent]", *, has_home: bool, chat: bool) -> None:
    """Say where it is served and what."""
    url = server.url
    public = session.index.published() if has_home else []
    cars = [
        {
            "path": str(file.index.path), "roots": list(map(str, file.roots())), "blocks": len(file.index),
            "whole": file.index.bad_end is None and not file.index.left_out,
        }
        for file in files
    ]  # fmt: skip
    where = {"chat": f"{url}/v1"} if chat else {}
    answer(session, {"url": url, **where, "published": public, "cars": cars}, lambda: say(url))
    if chat:
        remark(session, f"chat completions at {url}/v1")
    if server.everywhere:
        remark(session, "it listens on every address of this machine; this is one that others can use")
    if has_home and not public and not chat:
        remark(session, "nothing is published yet: `cyberkv publish REF --public`")
    for root, words in titled(public, session.store.get) if has_home else ():
        remark(session, f"  {url}/ipfs/{root}  {words}")
    for file in files:
        remark(session, f"{file.index.path.name}: {len(file.index)} blocks")
        for named, words in titled(file.roots(), file.get):
            remark(session, f"  {url}/ipfs/{named}  {words}")
    remark(session, "Ctrl-C ends it")
