"""The story of the demo: two people with a home each, told with the commands that anybody would use.

Every command is a process of its own. What they answer is kept as it is; `demo_checks` judges it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..cybergraph.cid import Cid
from ..cybergraph.errors import Corrupt, CyberKVError, NotFound, Refused
from .context import Session
from .demo_tamper import tampering
from .interrupt import stoppable
from .output import remark

PROGRAM = (sys.executable, "-m", "cyberkv.cli")
WORKER = (sys.executable, "-m", "cyberkv.cli.demo_worker")
MAX_TOKENS = "48"
FIRST, SECOND, NEXT = (
    "What is a content identifier, and why is it useful for the KV cache?",
    "What happens if a byte was changed on the way?",
    "Say it in one short sentence.",
)


@dataclass(slots=True)
class Story:
    """Answers of the commands, by step, as their `--json` gives them."""

    model: dict[str, Any] = field(default_factory=dict)
    model_there: dict[str, Any] = field(default_factory=dict)
    """The same model as the other home names it."""
    record: dict[str, Any] = field(default_factory=dict)
    publish: dict[str, Any] = field(default_factory=dict)
    computed: dict[str, Any] = field(default_factory=dict)
    """The same tokens computed without any block, uninterrupted."""
    fetch: dict[str, Any] = field(default_factory=dict)
    untrusted: dict[str, Any] = field(default_factory=dict)
    """What home B is told when it would go on before it trusts who signed."""
    resume: dict[str, Any] = field(default_factory=dict)
    go_on: dict[str, Any] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)
    common: dict[str, Any] = field(default_factory=dict)
    """What the second question's conversation shares with the first."""
    tampered: dict[str, Any] = field(default_factory=dict)

    @property
    def block_size(self) -> int:
        """Tokens in a block of the model."""
        return int(self.model["identity"]["block_size"])

    @property
    def prompt_tokens(self) -> int:
        """Length of the text with the first question."""
        return int(self.record["tokens_total"] - self.record["tokens_generated"])


def tell(session: Session, folder: Path, weights: Path, text: str) -> Story:
    """Play the whole story in `folder`. Raises `CyberKVError` where a command fails that should not."""
    story = Story()
    a, b, c = (folder / name for name in ("home-a", "home-b", "home-c"))
    remark(session, "home A: register the model, read the text, answer a question")
    story.model = cyberkv(a, "model", "add", str(weights), "--name", "demo")
    story.record = cyberkv(a, "run", "--max-tokens", MAX_TOKENS, "--name", "text", "--", f"{text}\n\n{FIRST}")
    remark(session, "home A: publish it, signed, and serve it")
    story.publish = cyberkv(a, "publish", "text", "--public", "--sign", "--yes")
    root, address, signer = (story.publish[name] for name in ("root", "receipt", "signed_by"))
    with serving(a) as url:
        remark(session, "home B: fetch it, trust who signed it, resume it in a fresh process, go on")
        story.model_there = cyberkv(b, "model", "add", str(weights), "--name", "demo")
        story.fetch = cyberkv(b, "fetch", address, "--from", url)
        story.untrusted = cyberkv(b, "run", "--from", root, "--", NEXT, fails=Refused.exit_code)
        cyberkv(b, "trust", "add", signer)
        story.resume = worker(b, root)
        story.go_on = cyberkv(b, "run", "--max-tokens", MAX_TOKENS, "--from", root, "--name", "next", "--", NEXT)
        remark(session, "home A: another question over the same text")
        story.second = cyberkv(a, "run", "--max-tokens", MAX_TOKENS, "--name", "second", "--", f"{text}\n\n{SECOND}")
        story.common = cyberkv(a, "diff", root, "second")
        remark(session, "home A: compute the same tokens without any block, then with one token edited")
        story.computed = worker(a, root, "--computed", str(story.prompt_tokens))
        remark(session, "home C: fetch it from a gateway that changes one bit")
        story.tampered = _tamper(c, url, story.publish)
    return story


def _tamper(home: Path, url: str, published: dict[str, Any]) -> dict[str, Any]:
    """Fetch through a gateway that changes one leaf, and look at what that leaves behind."""
    leaves = [item["cid"] for item in published["plan"]["items"] if item["kind"] == "leaf"]
    altered = leaves[len(leaves) // 2]
    with tampering(url, Cid.parse(altered)) as lying_url:
        refused = cyberkv(home, "fetch", published["root"], "--from", lying_url, fails=Corrupt.exit_code)
    absent = cyberkv(home, "show", altered, fails=NotFound.exit_code)
    return {
        "altered": altered,
        "error": refused["error"],
        "altered_is_absent": absent["error"]["kind"] == "block-not-found",
        "fsck": cyberkv(home, "fsck"),
        "conversations": cyberkv(home, "list")["conversations"],
    }


def cyberkv(home: Path, *line: str, fails: int = 0) -> Any:
    """Run a command and give its answer. Raises `CyberKVError` if it exits with another code than `fails`."""
    return _answer([*PROGRAM, "--json", "--home", str(home), *line], line[0], fails)


def worker(home: Path, root: str, *options: str) -> Any:
    """Run the process that hashes scores."""
    return _answer([*WORKER, str(home), root, *options], "worker", 0)


def _answer(command: list[str], name: str, expected: int) -> Any:
    with running(command, stderr=subprocess.PIPE) as process:
        stdout, stderr = process.communicate()
    try:
        answer = json.loads(stdout)
    except ValueError:
        answer = {"error": {"message": (stdout + stderr)[-500:].strip()}}
    if process.returncode != expected:
        reason = answer.get("error", {}).get("message", "it should have failed")
        raise CyberKVError(
            f"demo: {name} left with {process.returncode}, not {expected}: {reason}",
            hint="run `cyberkv doctor`", command=name, exit_code=process.returncode,
        )  # fmt: skip
    return answer


@contextmanager
def running(command: list[str], *, stderr: int) -> "Iterator[subprocess.Popen[str]]":
    """Run a process that does not outlive the `with`, whatever ends it."""
    with stoppable() as stop:  # a Ctrl-C while the process starts would leave it without a parent
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    with process:
        try:
            stop.check()
            yield process
        finally:
            process.terminate()
            process.wait()


@contextmanager
def serving(home: Path) -> Iterator[str]:
    """Run `serve` on a free port in a process of its own; give its URL."""
    line = [*PROGRAM, "--json", "--home", str(home), "serve", "--listen", "127.0.0.1:0"]
    with running(line, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None  # noqa: S101  # a pipe was asked for
        ready = json.loads(process.stdout.readline() or "{}")
        if "url" not in ready:
            raise CyberKVError(f"demo: serve did not start: {ready}", hint="run `cyberkv doctor`")
        yield ready["url"]
