"""The table of commands: to add one, write its module and put a line here.

Each line is name -> (`module:attribute`, help line). The module is imported when the command runs, so that
the help of the program costs nothing; a test holds each line here to the command's own docstring.
"""

from typing import Final, NamedTuple


class Entry(NamedTuple):
    """Where a command is, and what it does in one line."""

    target: str
    help: str


FAMILIES: Final[dict[str, dict[str, Entry]]] = {
    "Models": {
        "model": Entry("model:model", "Register models and compare their identities."),
        "size": Entry("size:size", "Say how large a KV cache is and when fetching it pays."),
    },
    "Conversations": {
        "prefill": Entry("prefill:prefill", "Record a text without generating anything."),
        "run": Entry("run:run", "Answer a prompt and record the conversation."),
        "chat": Entry("chat:chat", "Hold a dialogue and record every turn."),
        "list": Entry("conversations:list_conversations", "List the conversations of this home."),
        "log": Entry("conversations:log", "List the successive roots of a conversation, or of all of them by day."),
        "show": Entry("show:show", "Show any node, decoded."),
        "walk": Entry("walk:walk", "Walk a conversation block by block."),
        "fork": Entry("fork:fork", "Start a new conversation from the first tokens of another."),
        "reblock": Entry("reblock:reblock", "Record a conversation again in blocks of another size."),
        "document": Entry("document:document", "Record texts once, to find and place them again."),
        "retrieve": Entry("retrieve:retrieve", "Find the passages of documents that are nearest to QUERY."),
        "splice": Entry("splice:splice", "Place documents into a conversation."),
        "evict": Entry("evict:evict", "Take tokens out of a conversation, with a receipt."),
        "diff": Entry("diff:diff", "Say what two conversations share and where they part."),
        "find": Entry("find:find", "Find the conversations that hold a text, block or tokens."),
        "why": Entry("why:why", "Say for each block of a text whether it is reused, and why not."),
    },
    "Sharing": {
        "mark": Entry("mark:mark", "Say which tokens of a conversation may become public."),
        "publish": Entry("publish:publish", "Make a conversation readable for everybody or for some."),
        "fetch": Entry("fetch:fetch", "Bring a conversation from somewhere else and record it here."),
        "key": Entry("key:key", "Make and show your keys."),
        "trust": Entry("trust:trust", "Say whose signed conversations may be used here."),
        "grant": Entry("grant:grant", "Say who may read a conversation that was published for some."),
        "verify": Entry("verify:verify", "Check a conversation, and say exactly what was checked."),
        "serve": Entry("serve:serve", "Serve what was published, as an IPFS gateway and as pages for a browser."),
    },
    "The store": {
        "stats": Entry("stats:stats", "Count what this home holds, and what sharing saves."),
        "lock": Entry("lock:lock", "Keep a conversation sealed in this home, until `unlock`."),
        "unlock": Entry("lock:unlock", "Open a conversation that was locked here."),
        "gc": Entry("gc:gc", "Delete what no name, log, publication or pin needs."),
        "pin": Entry("pin:pin", "Keep content that no name holds."),
        "forget": Entry("forget:forget", "Give up the names of conversations."),
        "fsck": Entry("fsck:fsck", "Check every block and every link of this home."),
        "index": Entry("index:index", "Look after the index."),
        "doctor": Entry("doctor:doctor", "Say what works here, what is absent, and what is broken."),
        "bench": Entry("bench:bench", "Measure this machine against the project's claims."),
        "demo": Entry("demo:demo", "Show the whole story on a real model, and check it."),
        "completion": Entry("completion:completion", "Print the completion script of a shell."),
    },
}

COMMANDS: Final = {name: entry for family in FAMILIES.values() for name, entry in family.items()}
