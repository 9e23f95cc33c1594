"""`serve`: the gateway over what was published."""

import os
import re

import click

from .context import Session, pass_session
from .failure import INTERRUPTED
from .options import LISTEN
from .output import answer, remark, say
from .served import announced

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]\s]+)):(?P<port>[0-9]{1,5})")


def _address(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, int]:
    if (found := _ADDRESS.fullmatch(text)) is None:
        raise click.BadParameter("write HOST:PORT or [IPv6]:PORT; port 0 is any that is free")
    return found["v6"] or found["host"], int(found["port"])


@click.command()
@click.option(
    "--listen", metavar="HOST:PORT", default=LISTEN, show_default=True, callback=_address,
    help="Address to accept connections at; port 0 takes a free one.",
)  # fmt: skip
@click.pass_context
@pass_session
def serve(session: Session, ctx: click.Context, *, listen: tuple[str, int]) -> None:
    """Serve what was published, as a trustless IPFS gateway.

    Prints its URL once it accepts connections, and serves until Ctrl-C. Only published blocks are served; a
    conversation that is published meanwhile is served from then on. Readers check every byte themselves. While there is
    nothing to serve, it looks through the store for damage.
    """
    from ..cybergraph.gateway import GatewayServer, build_app
    from .scrubbing import scrubbing

    session.require_home()
    if os.access(session.home / "store", os.W_OK):
        session.open_to_write()
        session.store.writers.close()  # it takes damaged blocks out and puts nothing in: `gc` need not wait for it
    published = session.index.published()

    def ready(url: str) -> None:
        data = {"url": url, "published": published}
        answer(session, data, lambda: say(url))
        if not published:
            remark(session, "nothing is published yet: `cyberkv publish REF --public`")
        for root in published:
            remark(session, f"  {url}/ipfs/{root}")
        remark(session, "Ctrl-C ends it")

    server = GatewayServer(build_app(session.store, session.index), *listen, ready)
    try:
        with announced(session.home, server.url), scrubbing(session):
            server.serve_forever()
    except KeyboardInterrupt:
        remark(session, "stopped")
        ctx.exit(INTERRUPTED)
