"""The page of `unida serve` in a real browser. Skipped where there is none."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unida.data.glyphs import write_glyphs

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

CHROMIUM = os.environ.get("UNIDA_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
TOKEN = "a-token-for-the-page"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: install chromium, or set UNIDA_BROWSER to one"),
    pytest.mark.skipif("UNIDA_BROWSER_TESTS" not in os.environ, reason="slow: set UNIDA_BROWSER_TESTS=1"),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glyphs")
    return write_glyphs(folder, shared=3, source_private=1, target_private=2, per_class=4, size=64).target


@pytest.fixture(scope="module")
def address(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a token, with words, in a process of its own."""
    out = tmp_path_factory.mktemp("runs") / "spa"
    words = f"adapt --source {target.parent / 'source'} --target {target} --out {out} --cache {out.parent / 'cache'}"
    options = (
        "--backbone test_resnet --weights none --train all --spa --image-size 72 --crop 64 --batch-size 4 --steps 2"
    )
    python = [sys.executable, "-m", "unida"]
    subprocess.run([*python, *words.split(), *options.split(), "--engine", "torch"], check=True, capture_output=True)
    command = [*python, "serve", str(out), "--port", "0", "--token", TOKEN]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = next(match for line in server.stdout if (match := re.search(r"http://\S+", line)))
        yield found.group()
    finally:
        server.terminate()
        assert server.wait(30) == 0


@pytest.fixture
def page(address: str) -> Iterator[Any]:
    with playwright.sync_playwright() as starter:
        browser = starter.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        page = browser.new_page()
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.fill("#token", TOKEN)
        page.press("#token", "Enter")
        page.wait_for_selector("#run:has-text('ovanet+spa')")
        yield page
        # The browser itself tells of refused requests: the first has no token, and one file is no image.
        assert [text for text in problems if "status of 401" not in text and "status of 422" not in text] == []
        assert all(url.startswith((address, f"blob:{address}")) for url in asked)
        browser.close()


def test_the_page_answers_an_image_that_is_chosen(page: Any, target: Path) -> None:
    first, second = sorted(target.rglob("*.png"))[:2]
    page.set_input_files("#files", [first, second])
    page.wait_for_selector(".card:not(.waits) >> nth=1")
    for card in page.query_selector_all(".card"):
        assert re.fullmatch("unknown|star|house|heart|arrow", card.query_selector(".label").inner_text())
        assert card.query_selector(".probability").inner_text().endswith("%")
        heat, sent = card.query_selector(".heat").bounding_box(), card.query_selector(".sent").bounding_box()
        assert heat["width"] == pytest.approx(sent["width"] * 64 / 72, abs=1)  # the crop that the network sees
        bar, fill = card.query_selector(".bar").bounding_box(), card.query_selector(".fill").bounding_box()
        shown = float(card.query_selector(".probability").inner_text().removesuffix("%"))
        assert fill["width"] == pytest.approx(bar["width"] * shown / 100, abs=1)
    assert [card.inner_text() for card in page.query_selector_all(".card .name")] == [first.name, second.name]
    assert "probability" in page.inner_text("#told") and page.inner_text("#status") == ""
    page.wait_for_selector('.group.target img[src^="blob:"]')


DROP = """(bytes) => {
    const given = new DataTransfer();
    given.items.add(new File([new Uint8Array(bytes)], "<img src=x onerror=alert(1)>.png", { type: "image/png" }));
    document.querySelector("#drop").dispatchEvent(new DragEvent("drop", { dataTransfer: given, bubbles: true }));
}"""


def test_the_page_answers_an_image_that_is_dropped_and_shows_its_name_as_text(page: Any, target: Path) -> None:
    page.evaluate(DROP, list(min(target.rglob("*.png")).read_bytes()))
    page.wait_for_selector(".card:not(.waits)")
    assert page.inner_text(".card .name") == "<img src=x onerror=alert(1)>.png"
    assert page.query_selector(".name img") is None
    assert "%" in page.inner_text(".card .probability")


COPY = """async (bytes) => {
    const image = new Blob([new Uint8Array(bytes)], { type: "image/png" });
    await navigator.clipboard.write([new ClipboardItem({ "image/png": image })]);
}"""


def test_the_page_answers_an_image_that_is_pasted(page: Any, target: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("navigator.clipboard.writeText('only words')")
    page.keyboard.press("Control+V")
    page.wait_for_selector("#status:has-text('no image in what you pasted')")
    assert page.query_selector(".card") is None
    page.evaluate(COPY, list(min(target.rglob("*.png")).read_bytes()))
    page.keyboard.press("Control+V")
    page.wait_for_selector(".card:not(.waits)")
    assert re.fullmatch("unknown|star|house|heart|arrow", page.inner_text(".card .label"))
    assert page.locator(".card .sent").evaluate("image => [image.naturalWidth, image.naturalHeight]") == [64, 64]


def test_a_file_that_is_no_image_gets_its_reason(page: Any, tmp_path: Path) -> None:
    bad = tmp_path / "notes.png"
    bad.write_text("no image")
    page.set_input_files("#files", bad)
    page.wait_for_selector(".is-problem:not(.waits)")
    assert page.inner_text(".label") == "notes.png: not an image, or damaged from its first bytes"


def test_the_keyboard_alone_suffices(page: Any, target: Path) -> None:
    def tab_to(selector: str) -> None:
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
        pytest.fail(f"Tab does not reach {selector}")

    tab_to("#files")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Space")
    chooser.value.set_files(min(target.rglob("*.png")))
    page.wait_for_selector(".card:not(.waits) .words:not([hidden])")
    tab_to(".words input")
    page.keyboard.press("ArrowLeft")  # to "none"
    assert not page.query_selector(".heat").is_visible()
    tab_to("#clear")
    page.keyboard.press("Enter")
    assert page.query_selector(".card") is None
    assert page.evaluate("document.activeElement.id") == "files"
