"""What the demo claims, each claim held to what the commands answered."""

from typing import Any, NamedTuple

from .demo_story import Story


class Check(NamedTuple):
    """One claim."""

    name: str
    holds: bool
    detail: str


def check(story: Story) -> list[Check]:
    """Judge a story. No claim depends on how fast the machine is."""
    return [*_transfer(story), *_numbers(story), _reuse(story), *_tampering(story)]


def _transfer(story: Story) -> list[Check]:
    published, fetched, resumed, total = story.publish, story.fetch, story.resume, story.record["tokens_total"]
    kinds = published["plan"]["kinds"]
    # Home B has had the model's node since it registered the model, and the receipt stands above what is counted.
    other_bytes = kinds["model"]["bytes"] + kinds["receipt"]["bytes"]
    expected = (1, published["blocks"] - 2, published["bytes"] - other_bytes)
    return [
        Check(
            "both homes name the model the same",
            story.model["cid"] == story.model_there["cid"] == story.record["model"],
            story.model["cid"],
        ),
        Check(
            "home B fetched all that was published and missing, and nothing else",
            (fetched["blocks_had"], fetched["blocks_fetched"], fetched["bytes_fetched"]) == expected
            and not fetched["refused"],
            f"{fetched['blocks_fetched']:,} objects, {fetched['bytes_fetched']:,} bytes",
        ),
        Check(
            "home B refused to go on before it trusted who signed",
            story.untrusted["error"]["kind"] == "untrusted"
            and story.untrusted["error"]["signers"] == [published["signed_by"]] == [fetched["signed_by"][0]["key"]],
            f"signed by {published['signed_by']}",
        ),
        Check(
            "home B resumed without computing a token",
            (resumed["tokens_reused"], resumed["tokens_computed"]) == (total, 0),
            f"{resumed['tokens_reused']:,} of {total:,} tokens reused",
        ),
        Check(
            "home B went on from there",
            story.go_on["tokens_reused"] == total and story.go_on["tokens_generated"] > 0,
            f"{story.go_on['tokens_reused']:,} tokens reused, {story.go_on['tokens_computed']:,} computed",
        ),
    ]


def _numbers(story: Story) -> list[Check]:
    resumed, computed = story.resume, story.computed
    return [
        Check(
            "next-token scores after the resume are bit-equal to the uninterrupted run",
            resumed["scores"] == computed["scores"],
            f"{resumed['scores'][:23]}… and {computed['scores'][:23]}…",
        ),
        Check(
            "the uninterrupted run used no block and named all of them the same",
            computed["tokens_reused"] == 0 and computed["blocks_same"] and resumed["blocks_same"],
            f"{computed['tokens_computed']:,} tokens computed",
        ),
        Check(
            "control: with one token edited the scores differ",
            computed["edited_scores"] != computed["scores"],
            f"token {computed['edited_at']:,}: {computed['edited_scores'][:23]}…",
        ),
    ]


def _reuse(story: Story) -> Check:
    second, common = story.second, story.common
    expected = common["common_blocks"] * story.block_size
    exact = second["tokens_reused"] == expected == common["common_tokens"] // story.block_size * story.block_size
    return Check(
        "a second question over the same text reused exactly the full blocks in common",
        exact and expected > 0 and second["tokens_computed"] == second["tokens_total"] - expected,
        f"{second['tokens_reused']:,} of {second['tokens_total']:,} tokens; {common['common_tokens']:,} in common",
    )


def _tampering(story: Story) -> list[Check]:
    tampered = story.tampered
    error: dict[str, Any] = tampered["error"]
    return [
        Check(
            "a changed bit was refused by the CID of its leaf",
            error["kind"] == "digest-mismatch" and tampered["altered"] in error["message"],
            f"{tampered['altered']}, exit code 4",
        ),
        Check(
            "nothing wrong was stored",
            tampered["altered_is_absent"] and tampered["fsck"]["ok"] and not tampered["conversations"],
            f"fsck is clean over {tampered['fsck']['nodes'] + tampered['fsck']['leaves']:,} objects that were kept",
        ),
    ]
