"""The explorer in a real browser: walked by keyboard and by mouse, in light and dark, wide and narrow.

With $CYBERKV_SCREENSHOTS naming a folder, what the browser showed is kept there as PNG files.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.compat.places import NODE, chromium, need
from tests.wire.conftest import running
from tests.wire.explorer import World, make_world

pytestmark = pytest.mark.compat

MOST_TABS = 60
SHOTS = os.environ.get("CYBERKV_SCREENSHOTS")
AXE = NODE / "node_modules" / "axe-core" / "axe.min.js"


@dataclass
class Site:
    """The world, where it is served, and a browser."""

    world: World
    url: str
    browser: Browser
    noise: list[str] = field(default_factory=list)
    """What the browser had to say, and what it asked of others."""

    def page(self, **settings: Any) -> Page:
        page = self.browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **settings})
        page.on("console", lambda message: self.noise.append(message.text))
        page.on("pageerror", lambda error: self.noise.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))
        return page

    def _asked(self, url: str) -> None:
        if not url.startswith((self.url, "data:")):
            self.noise.append(f"asked for {url}")

    def paths(self) -> dict[str, str]:
        fork, harbour = self.world.roots["fork"], self.world.roots["harbour"]
        return {
            "home": "/",
            "conversation": f"/ipfs/{fork}",
            "segment": f"/ipfs/{harbour}/segments/1",
            "block": f"/ipfs/{fork}/segments/0/links/17/to",
            "model": f"/ipfs/{fork}/model",
            "diff": f"/diff?a={harbour}&b={fork}",
            "models": f"/diff?a={harbour}&b={self.world.roots['other model']}",
            "choose": "/diff",
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    program = chromium()
    world = make_world(tmp_path_factory.mktemp("world"))
    with running(world.app()) as served, sync_playwright() as playwright:
        # As root Chromium has no sandbox; what it opens here is ours.
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        yield Site(world, served.url, browser)
        browser.close()


@pytest.fixture(autouse=True)
def quiet(site: Site) -> Iterator[None]:
    """No page says anything to the console, and none asks anything of anybody else."""
    site.noise.clear()
    yield
    assert site.noise == []


def tab_to(page: Page, text: str) -> None:
    """Press Tab until something with `text` has the focus; what has it shows so."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return [e.innerText, s.outlineStyle, parseFloat(s.outlineWidth)] }"
        )
        assert focused[1] != "none"
        assert focused[2] >= 2
        if focused[0].strip() == text:
            return
    pytest.fail(f"{text!r} is not reached by {MOST_TABS} tabs")


def heading(page: Page) -> str:
    return page.locator("h1").inner_text()


def test_a_walk_by_keyboard(site: Site) -> None:
    page = site.page()
    page.goto(site.url)
    tab_to(page, "Skip to content")
    page.keyboard.press("Enter")
    tab_to(page, "What if nobody asked")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/ipfs/{site.world.roots['fork']}")
    tab_to(page, "Skip the strip")
    page.keyboard.press("Enter")
    tab_to(page, "segment 0")  # the strip's 120 cells were left out
    page.keyboard.press("Enter")
    page.wait_for_url("**/segments/0")
    tab_to(page, "2")
    page.keyboard.press("Enter")
    page.wait_for_url("**/segments/0/links/2/to")
    assert heading(page) == "Block 2"
    tab_to(page, "llama, 12 layers")
    page.keyboard.press("Enter")
    page.wait_for_url("**/model")
    assert heading(page) == "Model llama"
    tab_to(page, "Compare")
    page.keyboard.press("Enter")
    page.wait_for_url("**/diff")
    page.focus("#a")
    page.keyboard.type(str(site.world.roots["harbour"]))
    page.keyboard.press("Tab")
    page.keyboard.type(str(site.world.roots["fork"]))
    page.keyboard.press("Enter")
    page.wait_for_url("**/diff?a=*")
    assert "At token 3,200." in page.inner_text("main")
    page.close()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_a_walk_by_mouse(site: Site, script: bool) -> None:
    page = site.page(java_script_enabled=script)
    page.goto(site.url)
    page.get_by_role("link", name="The harbour master's two books", exact=True).click()
    assert heading(page) == "The harbour master's two books"
    page.get_by_role("link", name="Block 200 to 203, also in 1").click()
    page.wait_for_url("**?block=200#text")
    assert "Blocks 192 to 255 of 300" in page.inner_text("main")
    page.get_by_role("link", name="Next").click()
    page.wait_for_url("**?block=256#text")
    page.get_by_label("Block", exact=True).fill("70")
    page.get_by_role("button", name="Go").click()
    page.wait_for_url("**?block=70#text")
    page.get_by_role("link", name="segment 0").click()
    page.get_by_role("link", name="192 to 255").click()
    page.get_by_role("link", name="200", exact=True).click()
    assert heading(page) == "Block 200"
    page.get_by_role("link", name="Next block").click()
    page.get_by_role("navigation", name="Path").get_by_role("link", name="Root").click()
    page.get_by_role("link", name="compare").first.click()
    assert heading(page) == "Compare two conversations"
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 320])
def test_every_page_fits_and_is_accessible(site: Site, scheme: Any, width: int) -> None:
    need(f"axe-core in {NODE}", AXE.exists())
    page = site.page(color_scheme=scheme, viewport={"width": width, "height": 900})
    for name, path in site.paths().items():
        page.goto(site.url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run(document, {preload: false})")
        assert [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found["violations"]] == [], (
            name
        )
        assert len(found["passes"]) > 15
        if SHOTS:
            page.screenshot(path=Path(SHOTS) / f"explorer-{name}-{scheme}-{width}.png", full_page=True)
    page.close()


def test_control_the_check_finds_what_is_wrong(site: Site) -> None:
    need(f"axe-core in {NODE}", AXE.exists())
    page = site.page()
    page.set_content("<html><body><img src='data:,'><input><p style='color:#ccc'>pale</p></body></html>")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {preload: false})")
    assert {"image-alt", "label", "color-contrast"} <= {each["id"] for each in found["violations"]}
    page.close()


def test_light_and_dark_differ_and_print_has_no_controls(site: Site) -> None:
    page = site.page()
    page.goto(site.url + site.paths()["conversation"])
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len({*grounds}) == 2
    assert page.locator(".pager").is_visible()
    page.emulate_media(media="print", color_scheme="light")
    assert not page.locator(".pager").is_visible()
    assert page.locator(".text").is_visible()
    page.close()


def test_a_hostile_title_is_text(site: Site) -> None:
    page = site.page()
    page.on("dialog", lambda _: site.noise.append("a dialog"))
    page.goto(f"{site.url}/ipfs/{site.world.roots['hostile']}")
    assert heading(page).startswith('<script>alert("1")</script>')
    page.close()


@pytest.mark.skipif(not SHOTS, reason="writes pictures only where it is told to: set CYBERKV_SCREENSHOTS")
def test_pictures_for_the_documentation(site: Site) -> None:
    for name, scheme, height in (("home", "light", 520), ("conversation", "light", 900), ("block", "dark", 1180)):
        page = site.page(color_scheme=scheme, viewport={"width": 1100, "height": height})
        page.goto(site.url + site.paths()[name])
        path = Path(str(SHOTS)) / f"explorer-{name}.png"
        page.screenshot(path=path)
        assert struct.unpack(">II", path.read_bytes()[16:24]) == (1100, height)
        page.close()
