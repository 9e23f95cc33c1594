"""The pages as a browser gets them: what they say, where they lead, and what they must not do."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from starlette.applications import Starlette

from cyberkv.cybergraph.cid import Cid
from cyberkv.cybergraph.gateway import build_app
from cyberkv.cybergraph.gateway.pages import Lookups, Pages
from cyberkv.cybergraph.gateway.pages.render import SAFETY
from cyberkv.cybergraph.index import Index
from cyberkv.cybergraph.store import MemoryStore
from tests.wire.explorer import STORY, Page, World, browse, make_world

SECRETS = ["Nobody may see this"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def app(world: World) -> Starlette:
    return world.app()


@pytest.fixture(scope="module")
def crawled(world: World, app: Starlette) -> dict[str, Page]:
    """Every page that links lead to from home, but not all of the equal ones: some blocks of each segment."""
    found: dict[str, Page] = {}
    ahead = ["/"]
    while ahead:
        url = ahead.pop()
        if url in found:
            continue
        found[url] = page = browse(app, url)
        for link in page.links:
            target = link if link.startswith("/") else url.partition("?")[0] + link
            target = target.partition("#")[0]
            block = re.search(r"links/(\d+)/to$|[?]block=(\d+)$", target)
            is_local = link.startswith(("/", "?"))
            if is_local and "format=" not in target and not (block and int(block[1] or block[2]) % 100):
                ahead.append(target)
    return found


def test_every_link_leads_to_a_page(crawled: dict[str, Page], world: World) -> None:
    assert {url: page.status for url, page in crawled.items() if page.status != 200} == {}
    assert {page.headers["content-type"] for page in crawled.values()} == {"text/html; charset=utf-8"}
    kinds = Counter(re.sub(r"bafy\w+|\d+", "_", url) for url in crawled)
    assert {"/", "/diff", "/ipfs/_", "/ipfs/_/segments/_", "/ipfs/_/segments/_/links/_/to", "/ipfs/_/model"} <= {*kinds}
    for name, root in world.roots.items():
        assert (f"/ipfs/{root}" in crawled) == (name != "secret")


def test_links_to_bytes_lead_to_bytes(app: Starlette, world: World) -> None:
    block = browse(app, f"/ipfs/{world.roots['fork']}/segments/0/links/17/to")
    bytes_of = [link for link in block.links if "format=" in link]
    assert len(bytes_of) == 5
    for link in bytes_of:
        answer = browse(app, link)
        assert answer.status == 200
        assert "html" not in answer.headers["content-type"]
    assert browse(app, f"/ipfs/{world.roots['fork']}?format=car").status == 200


def test_nothing_private_shows_anywhere(crawled: dict[str, Page], world: World, app: Starlette) -> None:
    secret = world.roots["secret"]
    for url, page in crawled.items():
        assert str(secret) not in page.body.decode(), url
        assert not any(words in page.text for words in SECRETS), url
    for target in (f"/ipfs/{secret}", f"/ipfs/{secret}/segments/0", f"/diff?a={secret}&b={world.roots['fork']}"):
        hidden, absent = browse(app, target), browse(app, target.replace(str(secret), str(ABSENT)))
        assert hidden.status == absent.status == 404
        assert hidden.body.replace(str(secret).encode(), b"") == absent.body.replace(str(ABSENT).encode(), b"")
    world.index.publish(secret, [])
    try:
        assert SECRETS[0] in browse(app, "/").text  # the control: published, it is on the first page
    finally:
        world.index._database.write(
            lambda txn: [txn.delete(secret, db=world.index._database[table]) for table in ("public", "published")]
        )
    assert SECRETS[0] not in browse(app, "/").text


ABSENT = Cid.of(b"nobody has this", "dag-cbor", "sha2-256")


def test_no_page_loads_anything_but_the_stylesheet(crawled: dict[str, Page]) -> None:
    for url, page in crawled.items():
        assert {name: page.headers[name.lower()] for name in SAFETY} == SAFETY, url
        tags = {tag for tag, _ in page.tags}
        assert not tags & {"script", "iframe", "object", "embed", "base", "style", "img", "audio", "video"}, url
        for tag, attributes in page.tags:
            assert not any(name.startswith("on") or name == "style" for name in attributes), (url, tag)
            if tag == "link":
                assert attributes["href"].startswith(("/style.css?", "data:image/svg+xml,"))
            if tag == "a" and "://" in attributes["href"]:
                assert attributes["rel"] == "noreferrer nofollow"
    assert "script-src" not in SAFETY["Content-Security-Policy"]  # so that `default-src 'none'` holds for it


def test_pages_can_be_used_without_seeing_or_pointing(crawled: dict[str, Page]) -> None:
    for url, page in crawled.items():
        tags = Counter(tag for tag, _ in page.tags)
        assert (tags["h1"], tags["main"], tags["html"], tags["title"]) == (1, 1, 1, 1), url
        assert dict(page.tags)["html"] == {"lang": "en"}
        assert page.links[0] == "#main"  # the skip link comes first
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(ids) == len({*ids}), url
        named = [a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a]
        labels = [a["for"] for tag, a in page.tags if tag == "label"]
        assert {*named, *labels} <= {*ids}, url
        assert {a["id"] for tag, a in page.tags if tag == "input"} <= {*labels}, url
        assert all("scope" in a for tag, a in page.tags if tag == "th"), url
        assert all(a.get("aria-label") for tag, a in page.tags if a.get("role") in ("region", "img")), url
        levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
        assert all(after <= before + 1 for before, after in pairwise(levels)), url


def test_home_lists_what_is_published_the_newest_first(app: Starlette, world: World) -> None:
    page = browse(app, "/")
    roots = [link for link in page.links if link.startswith("/ipfs/")]
    order = ["hostile", "other model", "short", "fork of the fork", "fork", "grown", "harbour"]
    assert roots == [f"/ipfs/{world.roots[name]}" for name in order]
    assert "4,805 10.6 MiB 2026-03-02 09:02 UTC" in page.text


def test_home_says_how_to_publish_where_nothing_is(tmp_path: Path) -> None:
    with Index(tmp_path / "index") as index:
        empty = World(MemoryStore(), index)
        page = browse(empty.app(), "/")
    assert page.status == 200
    assert "cyberkv publish NAME --public" in page.text


def test_home_is_paged(tmp_path: Path) -> None:
    world = World(MemoryStore(), Index(tmp_path / "index"))
    for number in range(85):
        world.put(f"talk {number:02}", [], [1], day=1 + number % 28)
    app, seen, url, pages = world.app(), list[str](), "/", 0
    while url:
        page = browse(app, url)
        seen += [link for link in page.links if link.startswith("/ipfs/")]
        url = next((a["href"] for tag, a in page.tags if a.get("rel") == "next"), "")
        pages += 1
    assert pages == 3
    assert Counter(seen) == Counter(f"/ipfs/{root}" for root in world.roots.values())


def test_a_conversation_and_who_shares_it(app: Starlette, world: World) -> None:
    page = browse(app, f"/ipfs/{world.roots['fork']}")
    for words in (
        "What if nobody asked", str(world.roots["fork"]), "Tokens 3,840", "8.4 MiB",
        "240 of 16 tokens", "2026-03-04 09:04 UTC", "llama, 12 layers", "nobody: not signed", "exact",
        "0 to 199 this and 3 others, its parent among them", "200 to 219 this and 1 other", "220 to 239 this one only",
    ):  # fmt: skip
        assert words in page.text, words
    classes = [attributes["class"].split()[0] for tag, attributes in page.tags if cell(tag, attributes)]
    assert Counter(classes) == {"parent": 100, "other": 10, "own": 10}
    labels = [attributes["aria-label"] for tag, attributes in page.tags if cell(tag, attributes)]
    assert (labels[0], labels[-1]) == ("Block 0 to 1, also in 3", "Block 238 to 239, only here")
    assert "0 this and 1 other 1 to 2 this one only" in browse(app, f"/ipfs/{world.roots['short']}").text
    alone = browse(app, f"/ipfs/{world.roots['other model']}")
    assert "No other conversation published here has any of these blocks." in alone.text


def cell(tag: str, attributes: dict[str, str]) -> bool:
    return tag == "a" and attributes.get("aria-label", "").startswith("Block ")


def test_the_text_goes_on_from_window_to_window(app: Starlette, world: World) -> None:
    url, words, windows = f"/ipfs/{world.roots['harbour']}", list[str](), 0
    while url:
        page = browse(app, url)
        body = page.body.decode()
        words += body.partition('<div class="text" dir="auto">')[2].partition("</div>")[0].split()
        url = next((a["href"] for tag, a in page.tags if a.get("rel") == "next"), "")
        url = url and f"/ipfs/{world.roots['harbour']}{url}"
        windows += 1
    assert windows == 5
    assert words == [STORY[at % len(STORY)] for at in range(4800)] + [STORY[21 + at] for at in range(5)]


@pytest.mark.parametrize("block", ["0", "64", "99999999999999", "-1", "x", "", "9" * 5000, "\u0663"])
def test_any_place_that_is_asked_for_gives_a_window(app: Starlette, world: World, block: str) -> None:
    page = browse(
        app,
        f"/ipfs/{world.roots['harbour']}?block={block}"
        if block.isascii()
        else f"/ipfs/{world.roots['harbour']}?block=%D9%A3",
    )
    assert page.status == 200
    wanted = {"64": "Blocks 64 to 127 of 300", "9" * 14: "Blocks 256 to 299 of 300"}
    assert wanted.get(block, "Blocks 0 to 63 of 300") in page.text


def test_without_a_tokenizer_tokens_are_numbers_and_the_page_says_why(world: World) -> None:
    app = world.app(Lookups())
    for path in ("", "/segments/0/links/1/to"):
        page = browse(app, f"/ipfs/{world.roots['short']}{path}")
        assert "knows no tokenizer" in page.text
        assert "harbour" not in page.text
    assert "14 15 16 17" in browse(app, f"/ipfs/{world.roots['short']}").text
    assert (
        "this server does not measure leaves" in browse(app, f"/ipfs/{world.roots['short']}/segments/0/links/1/to").text
    )


def test_a_tokenizer_is_looked_for_by_model_and_loaded_once(world: World) -> None:
    asked: list[Cid] = []

    def find(model: Cid) -> None:
        asked.append(model)

    app = world.app(Lookups(text=find))
    browse(app, f"/ipfs/{world.roots['short']}")
    assert {*asked} == {world.model}  # one that is not there may be registered later
    loaded = world.app()
    assert "harbour" in browse(loaded, f"/ipfs/{world.roots['harbour']}").text


def test_a_segment_and_its_neighbours(app: Starlette, world: World) -> None:
    root = world.roots["harbour"]
    first = browse(app, f"/ipfs/{root}/segments/0")
    assert "0 to 63 64 to 127 128 to 191 192 to 255" in first.text
    assert f"/ipfs/{root}/segments/1" in first.links
    assert f"/ipfs/{root}/segments/0/links/63/to" in first.links
    assert f"/ipfs/{root}/segments/0/links/64/to" not in first.links
    assert f"/ipfs/{root}/segments/0/links/64/to" in browse(app, f"/ipfs/{root}/segments/0?from=64").links
    last = browse(app, f"/ipfs/{root}/segments/1")
    assert "Segment before" in last.text
    assert "Next segment" not in last.text
    assert "299 4,784" in last.text


def test_a_block_where_it_stands_and_by_itself(app: Starlette, world: World) -> None:
    root = world.roots["fork"]
    inside = browse(app, f"/ipfs/{root}/segments/0/links/17/to")
    assert "Block 17" in inside.text
    assert "272 to 287" in inside.text
    assert {f"/ipfs/{root}/segments/0/links/{at}/to" for at in (16, 18)} <= {*inside.links}
    assert "Also in fork of the fork, The harbour master's two books, continued, The harbour master's two books." in (
        inside.text
    )
    assert "In no other conversation" in browse(app, f"/ipfs/{root}/segments/0/links/230/to").text
    cid = next(text for text in re.findall(r"bafyrei\w{52}", inside.body.decode()) if text != str(root))
    alone = browse(app, f"/ipfs/{cid}")
    assert alone.status == 200
    assert "Positions" in inside.text
    assert "Positions" not in alone.text
    numbers = re.findall(r'<td class="h\d">([\d.]+)</td>', inside.body.decode())
    assert len(numbers) == 12 * 6
    assert numbers == re.findall(r'<td class="h\d">([\d.]+)</td>', alone.body.decode())


def test_every_axis_of_a_model(app: Starlette, world: World) -> None:
    from dataclasses import fields

    from cyberkv.cybergraph.nodes import Model, Rope

    page = browse(app, f"/ipfs/{world.roots['fork']}/model")
    names = {field.name for field in fields(Model)} - {"rope"} | {f"rope.{field.name}" for field in fields(Rope)}
    shown = re.findall(r'<th scope="row">([^<]*)</th>', page.body.decode())
    assert sorted(shown) == sorted(name.replace("_", " ").replace(".", " ") for name in names)
    assert "full \u00d7 9, window:512 \u00d7 3" in page.text
    assert "2.2 KiB" in page.text
    assert "What if nobody asked" in page.text
    assert "other model" not in page.text


def test_a_comparison(app: Starlette, world: World) -> None:
    def compare(a: str, b: str) -> str:
        return browse(app, f"/diff?a={world.roots[a]}&b={world.roots[b]}").text

    fork = compare("harbour", "fork")
    assert "Common tokens 3,200 Common blocks 200 Stored once 7.0 MiB" in fork
    assert "At token 3,200." in fork
    assert "the same model" in fork
    grown = compare("harbour", "grown")
    assert "Common tokens 4,800 Common blocks 300" in grown
    other = compare("harbour", "other model")
    assert "Common tokens 96 Common blocks 0 Stored once 0 B" in other
    assert "b goes on Nothing: it ends here." in other
    assert "weights blake3:" in other
    assert "norm eps 1e-05 1e-06" in other
    assert "Nowhere" in compare("fork", "fork")
    assert "Nowhere" not in fork
    swapped = compare("fork", "harbour")
    assert "Common tokens 3,200 Common blocks 200" in swapped


def test_a_comparison_that_cannot_be_made(app: Starlette, world: World) -> None:
    form = browse(app, "/diff")
    assert form.status == 200
    assert {a["name"] for tag, a in form.tags if tag == "input"} == {"a", "b"}
    root = world.roots["fork"]
    for query in (f"a={root}&b=nonsense", f"a={root}&b={world.model}", f"a={ABSENT}&b={root}"):
        page = browse(app, f"/diff?{query}")
        assert page.status == 404
        assert "is not the CID of a conversation that can be read here" in page.text
    assert "Common tokens" in browse(app, f"/diff?a=ipfs://{root}&b={root}").text


def test_pages_are_asked_for_again_and_sent_only_if_they_changed(app: Starlette, world: World) -> None:
    target = f"/ipfs/{world.roots['harbour']}"
    page = browse(app, target)
    assert page.headers["cache-control"] == "no-cache"
    again = browse(app, target, if_none_match=f'"other", W/{page.headers["etag"]}')
    assert (again.status, again.body) == (304, b"")
    assert browse(app, target, if_none_match='"other"').status == 200
    assert browse(app, f"{target}?block=64").headers["etag"] != page.headers["etag"]
    assert "etag" not in browse(app, f"/ipfs/{ABSENT}").headers


def test_a_page_changes_when_something_is_published(tmp_path: Path) -> None:
    world = World(MemoryStore(), Index(tmp_path / "index"))
    chain = world.put_blocks(range(160))
    world.put("first", chain)
    app, target = world.app(), f"/ipfs/{world.roots['first']}"
    before = browse(app, target)
    world.put("second", chain[:5], title="came later")
    after = browse(app, target)
    assert "came later" in after.text
    assert before.headers["etag"] != after.headers["etag"]


def test_the_stylesheet_is_kept_under_the_address_that_pages_give(app: Starlette) -> None:
    address = next(a["href"] for tag, a in browse(app, "/").tags if a.get("rel") == "stylesheet")
    style = browse(app, address)
    assert (style.status, style.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in style.headers["cache-control"]
    assert "immutable" not in browse(app, "/style.css").headers["cache-control"]
    assert "immutable" not in browse(app, "/style.css?older").headers["cache-control"]
    assert browse(app, address, if_none_match=f'"other", {style.headers["etag"]}').status == 304
    assert browse(app, address, if_none_match='"other"').status == 200


def test_a_program_at_the_same_address_gets_bytes(app: Starlette, world: World) -> None:
    target = f"/ipfs/{world.roots['harbour']}"
    for accept in ("*/*", "application/vnd.ipld.raw", ""):
        assert browse(app, target, accept=accept).body == world.store.get(world.roots["harbour"])
    head = browse(app, target, method="HEAD")
    assert head.status == 200
    assert head.headers["content-type"] == "text/html; charset=utf-8"


def test_the_command_to_fetch_names_this_server_and_nothing_else(app: Starlette, world: World) -> None:
    target = f"/ipfs/{world.roots['harbour']}"
    command = f"cyberkv fetch {world.roots['harbour']} --from "
    assert f"{command}http://127.0.0.1:5001 " in browse(app, target).text
    assert f"{command}http://[::1]:80 " in browse(app, target, host="[::1]:80").text
    for host in ("x;rm -rf ~", "a$(b)", "a'b", "x/../y", "a b", "a&b", 'a"b'):
        page = browse(app, target, host=host)
        assert re.search(f"{command}(URL|http://127.0.0.1:5001) ", page.text), host


def test_refusals_are_pages_too(app: Starlette) -> None:
    for target, status in {f"/ipfs/{ABSENT}": 404, "/ipfs/nonsense": 400, "/nosuch": 404}.items():
        page = browse(app, target)
        assert (page.status, page.headers["cache-control"]) == (status, "no-store")
        assert [tag for tag, _ in page.tags].count("h1") == 1
        assert page.headers["content-security-policy"] == SAFETY["Content-Security-Policy"]
    reflected = browse(app, "/ipfs/" + "%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert "script" not in {tag for tag, _ in reflected.tags}


def test_pages_of_a_content_without_a_home() -> None:
    class Nothing:
        def roots(self) -> list[Cid]:
            return []

        def size_bytes(self, _cid: Cid) -> None:
            return None

    content = Nothing()
    page = browse(build_app(content, Pages(content)), "/")  # type: ignore[arg-type]
    assert "Nothing is published here yet." in page.text
