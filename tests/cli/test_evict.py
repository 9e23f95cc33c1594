"""`evict` from the command line: what goes, what it says, what stays private, and the way back."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from cyberkv.cli import committing, evict
from cyberkv.cybergraph.chain import load_root, tokens
from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command

# One token a letter; blocks of 16; 85 letters.
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
SPAN = "forty-one ships "
AT = STORY.index(SPAN)
END = AT + len(SPAN)


def text_of(command: Command, root: str) -> str:
    with DiskStore(command.home / "store", read_only=True) as store:
        return "".join(LETTERS[token] for token in tokens(store, load_root(store, Cid.parse(root)))).replace("Ġ", " ")


def root_of(command: Command, name: str) -> str:
    return str(command.json("log", name)["roots"][-1]["root"])


def indexed(command: Command) -> int:
    with Index(command.home / "index") as index:
        return len(list(index.entries()))


def verdicts(command: Command, text: str) -> list[str]:
    file = command.home / "asked.txt"
    file.write_text(text)
    return [each["verdict"] for each in command.json("why", file)["verdicts"]]


def test_the_fixture_is_what_it_seems(story: Command) -> None:
    assert text_of(story, root_of(story, "story")) == STORY
    assert indexed(story) == 5


def test_a_name_that_moved_on_meanwhile_is_refused_by_both_roots(
    story: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, other = root_of(story, "story"), story.json("fork", "story", "--at", 20, "--name", "other")["root"]
    carry_marks = committing._carry_marks

    def another_process(edited: Any, *rest: Any, **options: Any) -> None:
        edited.session.index.set_head("story", Cid.parse(other), "")
        carry_marks(edited, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(committing, "_carry_marks", another_process)
        error = story.error(5, "evict", "story", "20:30", "--forget")
    assert (error["field"], error["expected"], error["got"]) == ("head", old, other)
    assert [each["root"] for each in story.json("log", "story")["roots"]] == [old, other]
    assert text_of(story, old) == STORY
    done = story.json("evict", "story", "10:15", "--forget")  # the control: as it stands now
    assert [each["root"] for each in story.json("log", "story")["roots"]] == [done["root"]]


def test_an_exact_eviction_is_what_was_never_said(story: Command, elsewhere: Command) -> None:
    old = root_of(story, "story")
    done = story.json("evict", "story", f"{AT}:{END}")
    elsewhere("prefill", "-", "--name", "never", stdin=STORY[:AT] + STORY[END:])
    elsewhere("prefill", "-", "--name", "poisoned", stdin=STORY)
    assert text_of(story, done["root"]) == STORY[:AT] + STORY[END:]
    assert (done["old_root"], done["name"], done["approx"]) == (old, "story", None)
    receipt = done["receipt"]
    assert receipt["mode"] == "exact"
    assert receipt["exact"]
    assert (receipt["dropped_tokens"], receipt["dropped_blocks"], receipt["invalidated"]) == (len(SPAN), 4, 4)
    assert receipt["recomputed_tokens"] == len(STORY) - len(SPAN) - AT // 16 * 16
    answers = {
        name: home.json("run", "so", "--from", name, "--max-tokens", 8)
        for home, name in ((story, "story"), (elsewhere, "never"), (elsewhere, "poisoned"))
    }
    assert answers["story"]["text"] == answers["never"]["text"]
    assert answers["poisoned"]["text"] != answers["never"]["text"]
    assert story.json("diff", done["root"], old)["common_tokens"] >= AT
    assert story.json("fsck")["findings"] == []


def test_the_old_root_is_the_way_back(story: Command) -> None:
    old = root_of(story, "story")
    before = story.json("run", "so", "--from", old, "--name", "before", "--max-tokens", 4)
    done = story.json("evict", "story", f"{AT}:{END}")
    assert [each["root"] for each in story.json("log", "story")["roots"]] == [old, done["root"]]
    after = story.json("run", "so", "--from", done["old_root"], "--name", "after", "--max-tokens", 4)
    assert after["text"] == before["text"]


def test_forgetting_lets_the_old_root_go(story: Command) -> None:
    story("evict", "story", f"{AT}:{END}", "--name", "ships")
    old = root_of(story, "story")
    done = story.json("evict", "story", "ships", "--forget")
    assert [each["root"] for each in story.json("log", "story")["roots"]] == [done["root"]]
    story("gc")
    story.error(3, "show", old)
    [edit] = story.json("evict", "story", "--list")["edits"]
    assert edit["old_root"] is None
    kept = b"".join(path.read_bytes() for path in (story.home / "edits").rglob("*") if path.is_file())
    assert Cid.parse(old) not in kept
    assert text_of(story, done["root"]) == STORY[:AT] + STORY[END:]


def test_a_rollback_needs_no_model(story: Command) -> None:
    for record in (story.home / "models").glob("*"):
        record.rename(story.home / f"moved-{record.name}")
    done = story.json("evict", "story", "40:", "--mode", "rollback")
    assert text_of(story, done["root"]) == STORY[:40]
    receipt = done["receipt"]
    assert (receipt["exact"], receipt["recomputed_tokens"], receipt["dropped_tokens"]) == (True, 0, len(STORY) - 40)
    assert (receipt["dropped_blocks"], receipt["invalidated"], receipt["domain"]) == (3, 3, None)


def test_a_fast_eviction_says_what_it_is_everywhere(story: Command) -> None:
    told = story("evict", "story", f"{AT}:{END}", "--mode", "fast").stdout
    assert "influence survives in the deeper layers" in " ".join(told.split())
    shown = story.json("log", "story")["roots"][-1]
    assert "influence survives in deeper layers" in shown["approx"]
    [edit] = story.json("evict", "story", "--list")["edits"]
    assert edit["receipt"]["exact"] is False
    assert "survives" in edit["receipt"]["note"]
    page = " ".join(story("evict", "-h").stdout.split())
    assert "does NOT forget" in page
    assert "influence survives in deeper layers" in story("publish", "story", "--public", "--dry-run").stdout
    assert indexed(story) == 1  # the block before the span
    again = story.json("prefill", "-", "--name", "again", stdin=STORY[:AT] + STORY[END:])
    assert again["tokens_reused"] == 16
    repaired = story.json("evict", "story", "0:1")
    assert repaired["receipt"]["exact"]
    assert repaired["approx"] is None


@pytest.mark.parametrize(
    ("code", "kind", "line"),
    [
        (2, "out-of-range", ["evict", "story", "80:90"]),
        (2, "out-of-range", ["evict", "story", "9:9"]),
        (5, "refused", ["evict", "story", "10:20", "--mode", "rollback"]),
        (5, "refused", ["evict", "story", "10:20", "--mode", "branch"]),
        (3, "name-not-found", ["evict", "story", "nothing"]),
        (2, "usage", ["evict", "story"]),
        (2, "usage", ["evict", "story", "1:2", "--name", "x", "--list"]),
        (2, "bad-reference", ["evict", "story", "1:2", "--name", "3:4"]),
        (2, "bad-reference", ["evict", "story", "1:200", "--name", "x"]),
        (3, "not-found", ["evict", "story", "--gate", "{list}"]),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    code: int, kind: str, line: list[str], story: Command, tmp_path: Path
) -> None:
    (tmp_path / "list").write_text("fog\n")
    before = story.json("log", "story")
    assert story.error(code, *(part.format(list=tmp_path / "list") for part in line))["kind"] == kind
    assert story.json("log", "story") == before
    assert indexed(story) == 5


def test_spans_are_named_listed_and_renumbered(story: Command) -> None:
    story("evict", "story", f"{AT}:{END}", "--name", "ships")
    story("evict", "story", "0:4", "--name", "the")
    fog = STORY.index("the fog")
    listed = story.json("evict", "story", f"{fog}:{fog + 7}", "--name", "fog")
    assert [(each["id"], each["name"], each["text"]) for each in listed["spans"]] == [
        (2, "the", "The "), (1, "ships", SPAN), (3, "fog", "the fog"),
    ]  # fmt: skip
    done = story.json("evict", "story", "ships")
    assert [(each["id"], each["start"]) for each in done["spans"]] == [(2, 0), (3, fog - len(SPAN))]
    again = story.json("evict", "story", "--list")
    assert [each["text"] for each in again["spans"]] == ["The ", "the fog"]
    assert [each["name"] for each in story.json("evict", done["old_root"], "--list")["spans"]] == [
        "the",
        "ships",
        "fog",
    ]
    assert "ships" not in story("evict", "story", "--list").stdout
    story("evict", "story", "3")  # by number
    assert text_of(story, root_of(story, "story")) == (STORY[:AT] + STORY[END:]).replace("the fog", "")


def test_a_branch_is_dropped_and_was_never_read(story: Command) -> None:
    before = root_of(story, "story")
    opened = story.json("evict", "story", "--open", "tool")
    assert opened["at"] == len(STORY)
    story("prefill", "-", "--from", opened["branch"], stdin="a tool says a great many things that nobody needs")
    filed = indexed(story)
    assert filed > 5
    assert story.error(5, "evict", "story", "tool")["kind"] == "refused"
    done = story.json("evict", "story", "tool", "--mode", "branch")
    assert (done["root"], root_of(story, "story")) == (before, before)
    receipt = done["receipt"]
    assert (receipt["mode"], receipt["exact"], receipt["recomputed_tokens"]) == ("branch", True, 0)
    assert receipt["dropped_tokens"] == 49
    assert receipt["invalidated"] == filed - 5 == filed - indexed(story)
    assert done["spans"] == []
    assert root_of(story, opened["branch"]) == done["old_root"]  # until it is forgotten
    again = story.json("evict", "story", "--open", "tool")
    story("evict", "story", "tool", "--mode", "branch", "--forget")
    story.error(3, "log", again["branch"])


def test_forgetting_a_branch_lets_its_log_and_notes_go_and_spares_forks(story: Command) -> None:
    opened = story.json("evict", "story", "--open", "tool")["branch"]
    story("evict", "story", f"{AT}:{END}", "--name", "ships")
    story("prefill", "-", "--from", opened, stdin="a tool says a great many things that nobody needs")
    story("evict", opened, "90:95", "--name", "inside")
    story("evict", opened, "100:104", "--mode", "exact")
    roots = [each["root"] for each in story.json("log", opened)["roots"]]
    story("fork", opened, "--at", 98, "--name", "keeps")
    done = story.json("evict", "story", "tool", "--mode", "branch", "--forget")
    assert done["branch_forgotten"]
    assert "still found, because keeps holds it" in done["receipt"]["elsewhere"]
    story.error(3, "log", opened)
    assert [each["name"] for each in story.json("evict", "keeps", "--list")["spans"]] == ["ships", "inside"]
    assert [each["name"] for each in story.json("evict", "story", "--list")["spans"]] == ["ships"]
    story("gc")
    assert text_of(story, root_of(story, "keeps")) == STORY + "a tool says a"
    kept = b"".join(path.read_bytes() for path in (story.home / "edits").rglob("*") if path.is_file())
    assert not any(Cid.parse(root) in kept for root in roots)
    assert all(story("show", root, ok=False).exit_code == 3 for root in roots)
    story("forget", "keeps")
    assert story.json("fsck")["findings"] == []


def test_a_branch_that_moved_on_meanwhile_is_not_forgotten(story: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = story.json("evict", "story", "--open", "tool")["branch"]
    before, let_go = root_of(story, opened), evict.let_go

    def another_process(branch: Any) -> None:
        story("prefill", "-", "--from", opened, stdin="which nobody may lose")
        let_go(branch)

    with monkeypatch.context() as patch:
        patch.setattr(evict, "let_go", another_process)
        error = story.error(5, "evict", "story", "tool", "--mode", "branch", "--forget")
    assert (error["field"], error["expected"], error["got"]) == ("head", before, root_of(story, opened))
    listed = story.json("evict", "story", "--list")
    assert ([each["name"] for each in listed["spans"]], listed["edits"]) == (["tool"], [])
    assert story.json("evict", "story", "tool", "--mode", "branch", "--forget")["receipt"]["dropped_tokens"] == 21


def test_a_branch_whose_name_is_gone_can_be_dropped(story: Command) -> None:
    opened = [story.json("evict", "story", "--open", name)["branch"] for name in ("tool", "other")]
    story("forget", opened[0])
    done = story.json("evict", "story", "tool", "--mode", "branch")
    assert (done["old_root"], done["branch_forgotten"], done["receipt"]["dropped_tokens"]) == (None, True, 0)
    assert [each["name"] for each in done["spans"]] == ["other"]
    story("evict", "story", "other", "--mode", "branch", "--forget")
    assert len(story.json("evict", "story", "--list")["edits"]) == 2  # each has its receipt
    assert story.json("fsck")["findings"] == []


def test_forgetting_takes_along_all_that_is_noted_of_earlier_roots(story: Command) -> None:
    story("evict", "story", f"{AT}:{END}", "--name", "ships")
    story("fork", "story", "--at", END, "--name", "fork")
    story("evict", "story", "60:64")
    story("prefill", "-", "--from", "story", stdin=" And on.")
    roots = [each["root"] for each in story.json("log", "story")["roots"]]
    assert len(roots) == 3
    story("evict", "story", "ships", "--forget")
    kept = b"".join(path.read_bytes() for path in (story.home / "edits").rglob("*") if path.is_file())
    assert not any(Cid.parse(root) in kept for root in roots)
    assert [each["name"] for each in story.json("evict", "fork", "--list")["spans"]] == ["ships"]
    index = b"".join(path.read_bytes() for path in (story.home / "index").iterdir())
    assert not any(Cid.parse(root) in index for root in roots)  # written over


def test_a_gate_takes_out_what_says_it_and_keeps_what_does_not(story: Command, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("# injected\nFORTY-ONE\n")
    story("evict", "story", f"{AT}:{END}", "--name", "bad")
    story("evict", "story", f"{AT - len(SPAN)}:{AT}", "--name", "good")  # as long, and harmless
    done = story.json("evict", "story", "--gate", tmp_path / "list")
    assert {each["span"]: each["evict"] for each in done["verdicts"]} == {"bad": True, "good": False}
    assert text_of(story, done["root"]) == STORY[:AT] + STORY[END:]
    assert done["receipt"]["exact"]
    [good] = story.json("evict", "story", "--list")["spans"]
    assert [(each["evict"], each["digest"]) for each in good["verdicts"]] == [
        (False, next(each["digest"] for each in done["verdicts"] if each["span"] == "good"))
    ]
    kept = story.json("evict", "story", "--gate", tmp_path / "list")
    assert kept["receipt"] is None
    assert kept["root"] == done["root"]
    one = story.json("evict", "story", "0:20", "--gate", tmp_path / "list")
    assert [each["evict"] for each in one["verdicts"]] == [False]


def test_copies_elsewhere_are_named(story: Command) -> None:
    story("fork", "story", "--at", 60, "--name", "fork")
    story("fork", "story", "--at", 20, "--name", "before-it")
    story("publish", "story", "--public", "--yes")
    old = root_of(story, "story")
    elsewhere = story.json("evict", "story", f"{AT}:{END}")["receipt"]["elsewhere"]
    assert any(old in each and "published" in each for each in elsewhere)
    assert "still found, because fork holds it" in elsewhere
    assert not any("before-it" in each for each in elsewhere)
    assert "beyond reach: still found, because before-it holds it" in story("evict", "story", "4:6").stdout
    story("evict", "fork", f"{AT}:{END}")
    again = story.json("evict", old, f"{AT}:{END}")["receipt"]["elsewhere"]
    assert "in this home under the name fork" in again  # its log has it, its head does not
    assert not any(each.startswith("still found") for each in again)


def test_what_another_name_holds_is_still_found(story: Command) -> None:
    story("prefill", "-", "--name", "other", stdin=STORY[:64] + "which nobody saw. ")
    text = STORY[:64] + "which nobody saw, they said. And so on."
    done = story.json("evict", "story", f"{AT}:{END}", "--forget")["receipt"]
    assert (done["dropped_blocks"], done["invalidated"]) == (4, 1)  # one of them is not shared
    assert [each for each in done["elsewhere"] if "found" in each] == ["still found, because other holds it"]
    assert "where other names hold it" in done["note"]
    assert verdicts(story, STORY) == ["HIT"] * 4 + ["REFUSE"]
    assert verdicts(story, text)[:5] == ["HIT"] * 5
    assert story.json("fsck")["findings"] == []
    # The control: nobody else holds it.
    done = story.json("evict", "other", f"{AT}:{END}")["receipt"]
    assert (done["invalidated"], done["elsewhere"]) == (4, [])
    assert "other names" not in done["note"]
    assert verdicts(story, text)[:5] == ["HIT"] + ["REFUSE"] * 4


def test_a_gate_spares_what_another_name_holds(story: Command, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("forty-one\n")
    story("fork", "story", "--at", 64, "--name", "other")
    for name, gone in (("story", 1), ("other", 3)):
        done = story.json("evict", name, f"{AT}:{END}", "--gate", tmp_path / "list")["receipt"]
        assert done["invalidated"] == gone
    assert verdicts(story, STORY) == ["HIT"] + ["REFUSE"] * 4


def test_a_rollback_and_a_branch_spare_what_another_name_holds(story: Command) -> None:
    story("fork", "story", "--at", 64, "--name", "other")
    done = story.json("evict", "story", "40:", "--mode", "rollback")["receipt"]
    assert (done["dropped_blocks"], done["invalidated"]) == (3, 1)
    opened = story.json("evict", "story", "--open", "tool")["branch"]
    text = "a tool says a great many things that nobody needs"
    story("prefill", "-", "--from", opened, stdin=text)
    story("fork", opened, "--at", 64, "--name", "keeps")
    done = story.json("evict", "story", "tool", "--mode", "branch")["receipt"]
    assert (done["dropped_blocks"], done["invalidated"]) == (3, 1)
    assert "still found, because keeps holds it" in done["elsewhere"]
    assert verdicts(story, STORY[:40] + text) == ["HIT"] * 4 + ["REFUSE"]


def test_what_another_name_held_stays_found_until_it_is_evicted_or_deleted(story: Command) -> None:
    old = root_of(story, "story")
    story("fork", "story", "--at", len(STORY), "--name", "other")
    assert story.json("evict", "story", f"{AT}:{END}")["receipt"]["invalidated"] == 0
    story("forget", "other")
    story("gc")  # the log of `story` holds the blocks
    assert verdicts(story, STORY) == ["HIT"] * 5
    assert story.json("evict", old, f"{AT}:{END}")["receipt"]["invalidated"] == 4
    assert verdicts(story, STORY) == ["HIT"] + ["REFUSE"] * 4


def test_what_another_name_held_goes_with_its_blocks(story: Command) -> None:
    story("fork", "story", "--at", len(STORY), "--name", "other")
    story("evict", "story", f"{AT}:{END}", "--forget")
    story("gc")
    assert verdicts(story, STORY) == ["HIT"] * 5  # `other` holds them
    story("forget", "other")
    assert verdicts(story, STORY) == ["HIT"] * 5
    story("gc")
    assert verdicts(story, STORY) == ["HIT"] + ["RECOMPUTE"] * 4


def test_many_copies_with_long_names_fit_into_a_receipt(story: Command) -> None:
    with Index(story.home / "index") as index:
        root = index.head("story").root
        index.add_sources(root, ["https://example.org/" + "é" * 600])
        for at in range(80):
            index.set_head(f"copy-{at}", root, "")
    elsewhere = story.json("evict", "story", f"{AT}:", "--mode", "rollback")["receipt"]["elsewhere"]
    assert len(elsewhere) == 64
    assert elsewhere[-1] == "and 18 more"
    assert all(len(each.encode()) <= 512 for each in elsewhere)
    assert story.json("evict", "story", "--list")["edits"][0]["receipt"]["elsewhere"] == elsewhere
