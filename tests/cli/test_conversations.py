"""`list`, `log`, `show`, `walk`, `fork`, `diff` and `find`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import DiskStore
from tests.cli.conftest import STORY, Command
from tests.contracts.synthetic import make_conversation

SIZE = 16


def test_list_gives_every_name_with_its_newest_root(story: Command) -> None:
    story("fork", "story", "--at", 20, "--name", "short")
    listed = {each["name"]: each for each in story.json("list")["conversations"]}
    assert set(listed) == {"story", "short"}
    whole = listed["story"]
    assert (whole["tokens"], whole["blocks"], whole["model_name"]) == (85, 5, "tiny")
    assert whole["root"] == story.json("show", "story")["cid"]
    assert (listed["short"]["parent"], listed["short"]["fork_at"]) == (whole["root"], 20)
    page = story("list").stdout
    assert whole["root"] in page
    assert "85 tokens" in page


def test_an_empty_home_lists_nothing(cyberkv: Command) -> None:
    assert cyberkv.json("list") == {"conversations": []}
    assert "no conversations yet" in cyberkv("list").stdout


def test_log_follows_a_conversation_through_its_roots(story: Command) -> None:
    first = story.json("show", "story")["cid"]
    second = story.json("prefill", "-", "--from", "story", stdin=" More.")["root"]
    for ref in ("story", first, second, second[:14]):
        assert [each["root"] for each in story.json("log", ref)["roots"]] == [first, second]
    assert second in story("log", "story").stdout
    assert story.error(3, "log", "tale")["kind"] == "name-not-found"


def test_show_decodes_every_type_of_node_and_names_every_cid_whole(story: Command) -> None:
    root = story.json("show", "story")
    [segment] = root["node"]["segments"]
    links = story.json("show", segment)["node"]["links"]
    assert [link["position_start"] for link in links] == [0, 16, 32, 48, 64]
    assert [link["type"] for link in links] == ["next_block"] * 5
    block = story.json("show", links[1]["to"])["node"]
    assert block["prev"] == links[0]["to"] == links[1]["from"]
    assert bytes(block["tokens"]) != b""
    leaf = story.json("show", block["kv"][0])
    assert (leaf["codec"], leaf["bytes"], leaf["node"]) == ("raw", 16 * 768, None)
    assert f"\ntokens: [{', '.join(map(str, block['tokens']))}]\n" in story("show", links[1]["to"]).stdout
    page = story("show", segment).stdout
    for link in links:
        assert link["to"] in page
    assert story.json("show", root["cid"][:10]) == root
    assert story.json("show", block["kv"][0][:20]) == leaf


def test_a_damaged_node_is_not_shown(story: Command) -> None:
    leaf = story.json("show", "story")["node"]["tail"]["kv"][0]
    story.damage(leaf)
    error = story.error(4, "show", leaf)
    assert (error["kind"], error["cid"]) == ("digest-mismatch", leaf)


def test_walk_gives_a_line_for_each_block(story: Command) -> None:
    blocks = story("--json", "walk", "story").lines
    assert [block["index"] for block in blocks] == [0, 1, 2, 3, 4]
    assert [block["position_start"] for block in blocks] == [0, 16, 32, 48, 64]
    assert {len(block["tokens"]) for block in blocks} == {SIZE}
    assert {block["bytes"] for block in blocks} == {SIZE * 768}
    assert "".join(block["text"] for block in blocks) == STORY[:80]
    assert story("walk", "story", "--json", "lines").lines == blocks
    page = story("walk", "story").stdout
    assert [line.split()[2] for line in page.splitlines()[:-1]] == [block["cid"] for block in blocks]
    assert "tail of 5 tokens" in page


def test_text_that_crosses_blocks_is_whole(cyberkv: Command) -> None:
    text = "é" * 15 + "x" + "漢字かな交じり文" * 4
    cyberkv("prefill", "-", "--name", "wide", stdin=text)
    walked = "".join(block["text"] for block in cyberkv("walk", "wide", "--json").lines)
    assert walked
    assert text.startswith(walked)


def test_without_its_model_a_walk_has_no_text(story: Command) -> None:
    (story.home / "models" / "tiny.json").unlink()
    blocks = story("walk", "story", "--json").lines
    assert len(blocks) == 5
    assert all("text" not in block for block in blocks)


def test_a_damaged_model_record_hides_no_conversation(story: Command) -> None:
    (story.home / "models" / "tiny.json").write_text("{")
    for line in (["list"], ["walk", "story"], ["diff", "story", "story"], ["find", "--tokens", "72"]):
        assert story(*line).exit_code == 0
    assert "tiny.json" in story("list").stderr
    assert story.error(4, "model", "list")["kind"] == "corrupt"


def test_a_tokenizer_that_changed_gives_no_text_and_says_so(cyberkv: Command, add_tiny: Callable[..., Path]) -> None:
    folder = add_tiny("other", seed=3, num_hidden_layers=1)
    cyberkv("model", "add", folder)
    cyberkv("prefill", "-", "--model", "other", "--name", "told", stdin=STORY)
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"<|user|>"', '"<|human|>"'))
    result = cyberkv("walk", "told", "--json")
    assert all("text" not in block for block in result.lines)
    assert "tokenizer" in result.stderr


def test_a_cid_of_another_kind_is_a_usage_error_that_names_the_kind(story: Command) -> None:
    block = story("walk", "story", "--json").lines[0]["cid"]
    [leaf] = story.json("show", block)["node"]["kv"]
    model = story.json("model", "show", "tiny")["cid"]
    for kind, cid in {"block": block, "leaf": leaf, "model": model}.items():
        for line in (["walk", cid], ["fork", cid, "--at", 1], ["diff", "story", cid], ["verify", cid], ["log", cid],
                     ["run", "x", "--from", cid], ["publish", cid, "--public", "--dry-run"]):  # fmt: skip
            error = story.error(3 if line[0] == "log" else 2, *line)
            assert cid in error["message"]
            assert line[0] == "log" or kind in error["message"]


@pytest.mark.parametrize("at", [0, 1, 15, 16, 17, 79, 80, 83, 85])
def test_fork_shares_every_full_block_before_the_cut(story: Command, at: int) -> None:
    before = story.json("stats")
    forked = story.json("fork", "story", "--at", at, "--name", "branch")
    assert (forked["shared_blocks"], forked["new_blocks"]) == (at // SIZE, 0)
    node = story.json("show", "branch")["node"]
    assert node["parent"] == story.json("show", "story")["cid"]
    assert (node["fork_at"], node["length"], node["bytes"]) == (at, at, at // SIZE * SIZE * 768)
    # Inside a sealed block every row was canonical; so were those of a tail that was prefilled.
    assert node["tail"]["prefilled"] == len(node["tail"]["tokens"]) == at % SIZE
    assert node["tail"]["kv"] is None
    after = story.json("stats")
    assert (after["blocks"], after["leaves"]) == (before["blocks"], before["leaves"])
    assert story.json("diff", "story", "branch")["common_tokens"] == at
    assert story("fsck").exit_code == 0


def test_a_fork_within_a_decoded_tail_says_which_rows_were_prefilled(cyberkv: Command) -> None:
    figures = cyberkv.json("run", "Hi", "--max-tokens", 7, "--name", "talk")
    prompt = figures["tokens_total"] - figures["tokens_generated"]
    assert prompt == 5
    # Where a row that is decoded alone has the bytes of prefill, all of them count as such.
    alone = cyberkv.json("show", "talk")["node"]["tail"]["prefilled"] > prompt
    for at in (3, 5, 9):
        cyberkv("fork", "talk", "--at", at, "--name", f"at{at}")
        tail = cyberkv.json("show", f"at{at}")["node"]["tail"]
        assert tail["prefilled"] == (at if alone else min(at, prompt))


def test_a_fork_goes_on_like_the_original(story: Command) -> None:
    story("fork", "story", "--at", 53, "--name", "branch")
    branch = story.json("prefill", "-", "--from", "branch", stdin=STORY[53:])
    assert branch["tokens_total"] == 85
    diff = story.json("diff", "story", "branch")
    assert (diff["common_tokens"], diff["common_blocks"], diff["parts_at"]) == (85, 5, None)


def test_fork_beyond_the_end_or_with_a_bad_name_writes_nothing(story: Command) -> None:
    assert "85" in story.error(2, "fork", "story", "--at", 86)["message"]
    assert "_" not in story("fork", "story", "--at", 16, "--name", "one").stdout
    assert "1 block with" in story("fork", "story", "--at", 16, "--name", "one").stdout
    assert story.error(2, "fork", "story", "--at", 5, "--name", " ")["kind"] == "bad-reference"
    assert story.json("stats")["roots"] == 2
    assert len(story.json("list")["conversations"]) == 2


def test_diff_says_where_two_conversations_part(story: Command) -> None:
    story("prefill", "-", "--name", "other", stdin=STORY[:50] + "FOG" + STORY[53:70])
    diff = story.json("diff", "story", "other")
    assert (diff["common_tokens"], diff["common_blocks"]) == (50, 3)
    assert diff["shared_bytes"] == 3 * SIZE * 768
    parts = diff["parts_at"]
    assert parts["position"] == 50
    assert parts["text_before"] == STORY[26:50]
    assert (parts["text_a"], parts["text_b"]) == (STORY[50:74], "FOG" + STORY[53:70])
    assert parts["token_a"] != parts["token_b"]
    page = story("diff", "story", "other").stdout
    assert "FOG" in page
    assert "token 50" in page


def test_diff_with_itself_and_with_a_beginning(story: Command) -> None:
    assert story.json("diff", "story", "story")["parts_at"] is None
    story("fork", "story", "--at", 40, "--name", "short")
    parts = story.json("diff", "story", "short")["parts_at"]
    assert (parts["position"], parts["token_b"]) == (40, None)
    assert "it ends here" in story("diff", "story", "short").stdout


def test_diff_across_models_names_the_field(story: Command, tiny_folder: Path) -> None:
    story("model", "add", tiny_folder, "--name", "wide", "--block-size", 32)
    story("prefill", "-", "--model", "wide", "--name", "other", stdin=STORY)
    diff = story.json("diff", "story", "other")
    assert (diff["common_tokens"], diff["common_blocks"]) == (85, 0)
    assert {"field": "block_size", "a": 16, "b": 32} in diff["model_differs"]
    assert "block_size: 16 / 32" in story("diff", "story", "other").stdout


def test_the_beginning_of_a_leaf_is_enough(story: Command) -> None:
    block = story("walk", "story", "--json").lines[2]["cid"]
    [leaf] = story.json("show", block)["node"]["kv"]
    assert story.json("show", leaf[:20])["cid"] == leaf
    assert story.error(3, "show", leaf[:19] + ("a" if leaf[19] != "a" else "b"))["kind"] == "name-not-found"


def found(command: Command, *args: object) -> list[tuple[str, str, int]]:
    result = command("--json", "find", *args, ok=False)
    matches = [(each["name"], each["root"], each["position"]) for each in result.json["matches"]]
    assert result.exit_code == (0 if matches else 3)
    return matches


def test_find_by_text_tokens_and_block(story: Command) -> None:
    root = story.json("show", "story")["cid"]
    story("prefill", "-", "--name", "other", stdin="Nothing of that kind happened here, in the fog.")
    at = STORY.index("fog")
    blocks = story("walk", "story", "--json").lines
    tokens = ",".join(map(str, blocks[2]["tokens"][3:9]))
    assert found(story, "the fog came") == [("story", root, at - 4)]
    assert found(story, "--tokens", tokens) == [("story", root, 35)]
    for block in (blocks[3]["cid"], blocks[3]["cid"][:16]):
        assert found(story, "--block", block) == [("story", root, 48)]
    assert {each["name"] for each in story.json("find", "the fog")["matches"]} == {"story", "other"}
    assert found(story, "the frog") == []
    assert "no conversation holds it" in story("find", "the frog", ok=False).stdout
    [match] = story.json("find", "the fog came")["matches"]
    assert match["preview"] == "…" + STORY[at - 12 : at + 20].strip()
    assert match["preview"] in story("find", "the fog came").stdout
    (story.home / "models" / "tiny.json").unlink()
    [match] = story.json("find", "--block", blocks[3]["cid"])["matches"]
    assert match["preview"] is None
    assert found(story, "the fog came") == []


@pytest.mark.parametrize("at", [0, 3, 12, 15, 16, 30, 62, 78, 82])
def test_text_is_found_inside_a_block_across_blocks_and_into_the_tail(story: Command, at: int) -> None:
    for length in (1, 3, 16, 40):
        wanted = STORY[at : at + length]
        assert [position for _, _, position in found(story, wanted)] == [STORY.index(wanted)]
    assert found(story, STORY[at : at + 3] + "#") == []


def test_what_is_locked_is_named_and_not_opened(story: Command) -> None:
    story("prefill", "-", "--name", "open", stdin=STORY[:40])
    story("lock", "story", "--weak")
    answer = story.json("find", "lighthouse")
    assert [each["name"] for each in answer["matches"]] == ["open"]
    [skipped] = answer["skipped"]
    assert skipped["name"] == "story"
    assert "sealed" in skipped["reason"]
    assert "not looked into: story" in story("find", "lighthouse").stdout


def test_a_long_log_is_read_once(story: Command) -> None:
    """Earlier roots are the beginnings of the newest: looking through that one is enough."""
    for word in ("One", "Two", "Three"):
        story("prefill", "-", "--from", "story", stdin=f" {word}.")
    assert story("--json", "find", "not in it", ok=False).json["roots_searched"] == 1
    story("prefill", "-", "--name", "story", stdin="Something else altogether.")
    answer = story.json("find", "Three")
    assert (answer["roots_searched"], len(answer["matches"])) == (2, 1)  # control: another text is looked through


def test_find_goes_through_thousands_of_conversations(cyberkv: Command) -> None:
    tokens = [7] * 40
    with DiskStore(cyberkv.home / "store") as store, Index(cyberkv.home / "index") as index:
        roots = [make_conversation(store, [number, *tokens], title=f"t{number}") for number in range(61)]
        for number in range(2000):
            index.set_head(f"t{number}", roots[number % 61], "2025-01-01T00:00:00Z")
    answer = cyberkv.json("find", "--tokens", "60,7,7")
    assert answer["roots_searched"] == 61
    assert {each["name"] for each in answer["matches"]} == {f"t{number}" for number in range(60, 2000, 61)}


def test_find_looks_through_the_log_and_gives_the_newest_root(story: Command) -> None:
    first = story.json("show", "story")["cid"]
    second = story.json("prefill", "-", "--from", "story", stdin=" The end.")["root"]
    assert [each["root"] for each in story.json("find", "lighthouse")["matches"]] == [second]
    story("prefill", "-", "--name", "story", stdin="Something else altogether.")
    assert [each["root"] for each in story.json("find", "The end")["matches"]] == [second]
    assert first != second


def test_find_positions_count_tokens_not_characters(cyberkv: Command) -> None:
    cyberkv("prefill", "-", "--name", "wide", stdin="漢字かな and then the needle.")
    [match] = cyberkv.json("find", "needle")["matches"]
    assert match["position"] == len("漢字かな and then the ".encode())


@pytest.mark.parametrize("line", [[], ["x", "--block", "y"], [""], ["--tokens", "a,b"], ["--tokens", ""]])
def test_find_needs_exactly_one_thing(story: Command, line: list[str]) -> None:
    assert story.error(2, "find", *line)["kind"] == "usage"
