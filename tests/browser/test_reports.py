"""Reports in a real browser: no error, no network, the slider, the gallery by keyboard alone, tables that sort."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_run_opens_without_error_and_without_network(open_page: Any, run_page: Path, scheme: str) -> None:
    opened = open_page(run_page, color_scheme=scheme)
    assert opened.errors == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    charts = opened.page.locator(".chart")
    assert charts.count() >= 6
    assert all(charts.nth(i).locator("svg").count() for i in range(charts.count()))
    assert opened.page.evaluate("typeof boom") == "undefined"  # a class is named <script>boom()<


def test_the_slider_starts_with_the_runs_numbers_and_changes_them(open_page: Any, run_page: Path) -> None:
    page = open_page(run_page).page
    last = json.loads((run_page.parent / "metrics.json").read_text())["last_step"]
    shown = {name: page.locator(f"#{name}").inner_text() for name in ("accuracy-known", "accuracy-unknown", "hos")}
    assert shown == {
        "accuracy-known": f"{100 * last['known']:.1f}",
        "accuracy-unknown": f"{100 * last['unknown']:.1f}",
        "hos": f"{100 * last['hos']:.1f}",
    }
    own = page.locator("#count-unknown").inner_text()
    page.locator("#slider").focus()
    page.keyboard.press("Home")
    assert page.locator("#count-unknown").inner_text() == "16"
    assert page.locator("#accuracy-unknown").inner_text() == "100.0"
    page.keyboard.press("End")
    assert page.locator("#count-unknown").inner_text() == "0" and page.locator("#slider-value").inner_text() == "1.000"
    assert page.evaluate("document.getElementById('chart-scores').layout.shapes[0].x0") == 1
    page.locator("#slider-reset").press("Enter")
    assert page.locator("#count-unknown").inner_text() == own


def test_the_gallery_needs_no_mouse(open_page: Any, run_page: Path) -> None:
    page = open_page(run_page).page
    first = page.locator("#gallery .picture").first
    first.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#viewer")
    assert dialog.is_visible()
    name = dialog.locator("strong").inner_text()
    assert name == first.get_attribute("data-path")
    page.keyboard.press("ArrowRight")
    assert dialog.locator("strong").inner_text() != name
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    of = page.locator("#gallery .picture").count()
    assert f"({of} of {of})" in dialog.inner_text()  # before the first comes the last
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert page.evaluate("document.activeElement.classList.contains('picture')")


def test_the_map_shows_pictures(open_page: Any, run_page: Path) -> None:
    page = open_page(run_page).page
    page.locator("#map").scroll_into_view_if_needed()
    page.evaluate(
        """() => { const chart = document.getElementById("chart-map");
        chart.emit("plotly_hover", {points: [{customdata: [0, "a &lt;b&gt;"]}], event: {clientX: 5, clientY: 5}}); }"""
    )
    assert page.locator("#tip").is_visible() and page.locator("#tip p").inner_text() == "a <b>"


def test_the_map_needs_no_mouse(open_page: Any, run_page: Path) -> None:
    opened = open_page(run_page)
    page = opened.page
    tip, said, ring = page.locator("#tip p"), page.locator("#map-said"), page.locator("#map-ring")
    chart = page.locator("#chart-map")
    page.locator("#slider").focus()
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "chart-map":
            break
    assert tip.is_visible() and ring.is_visible()  # the first point, as soon as the map has the focus
    assert chart.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    traces = chart.evaluate("one => one.data.map(({ x, y, customdata }) => ({ x, y, customdata }))")
    titles = [title for trace in traces for _, title in trace["customdata"]]
    seen = []
    for _ in titles:
        assert tip.inner_text() == said.inner_text() and ring.is_visible()
        seen.append(said.inner_text())
        page.keyboard.press("PageDown")
    plain = page.evaluate(
        "titles => titles.map(one => new DOMParser().parseFromString(one, 'text/html').body.innerText)", titles
    )
    assert seen == plain and said.inner_text() == plain[0]  # every image, then the first again

    def place() -> tuple[float, float]:
        box = ring.bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    before = place()
    page.keyboard.press("ArrowRight")
    if place() == before:  # it lay at the right edge
        page.keyboard.press("ArrowLeft")
        assert place()[0] < before[0]
    else:
        assert place()[0] > before[0]
    last = None
    while place() != last:  # to an edge: no point is farther in this direction's cone
        last = place()
        page.keyboard.press("ArrowUp")
        assert place()[1] <= last[1]
    # The ring is at the point that plotly draws there.
    points = chart.locator(".scatterlayer .point").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).map(box => [box.x + box.width / 2, box.y + box.height / 2])"
    )
    assert min(abs(x - last[0]) + abs(y - last[1]) for x, y in points) < 2
    page.keyboard.press("Tab")
    assert not tip.is_visible() and not ring.is_visible() and opened.errors == []


def test_tables_sort_by_click_and_by_key(open_page: Any, grid_page: Path) -> None:
    opened = open_page(grid_page)
    page = opened.page
    head = page.locator("#runs thead th", has_text="HOS").first
    column = "#runs tbody tr td:nth-child(5)"

    def numbers() -> list[float]:
        return [float(text) for text in page.locator(column).all_inner_texts()]

    head.locator("button").click()
    assert numbers() == [64.0, 60.0, 52.0, 50.0] and head.get_attribute("aria-sort") == "descending"
    head.locator("button").press("Enter")
    assert numbers() == [50.0, 52.0, 60.0, 64.0] and head.get_attribute("aria-sort") == "ascending"
    assert opened.errors == []


def test_a_grid_leads_to_its_runs(open_page: Any, grid_page: Path) -> None:
    page = open_page(grid_page).page
    links = page.locator("#runs a")
    assert links.count() == 1
    links.first.click()
    page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
    assert page.locator("#gallery").count() == 1


def test_it_prints(open_page: Any, run_page: Path) -> None:
    opened = open_page(run_page, color_scheme="dark")
    paper = opened.page.pdf()
    assert paper.startswith(b"%PDF") and opened.errors == []
