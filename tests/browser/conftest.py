"""A browser for tests of pages. Without UNIDA_BROWSER_TESTS, playwright or a browser, these tests skip, and say why.

`make test-browser` runs them.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))  # tiny_reports.py

FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
FLAGS += "--disable-component-update --disable-sync"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "UNIDA_BROWSER_TESTS" in os.environ:
        return
    skip = pytest.mark.skip(reason="browser tests run by `make test-browser`")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    path = os.environ.get("UNIDA_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: install one of {', '.join(BROWSERS)}, or set UNIDA_BROWSER to its path")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=FLAGS.split())
        yield opened
        opened.close()


class Opened:
    """A page, and all that went wrong on it."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda told: self.errors.append(told.text) if told.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]", timeout=60_000)


@pytest.fixture(scope="session")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_reports import add_groups, make_run

    from unida.reports.run_report import write_run_report

    run = make_run(tmp_path_factory.mktemp("browser"))
    add_groups(run)
    write_run_report(run, run / "report.html")
    return run / "report.html"


@pytest.fixture(scope="session")
def grid_page(run_page: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_reports import make_grid

    from unida.reports.grid_report import write_grid_report

    grid = make_grid(tmp_path_factory.mktemp("browser_grid") / "grid", run_page.parent)
    (grid / "runs" / "mine-base-0" / "report.html").write_bytes(run_page.read_bytes())
    write_grid_report(grid, grid / "report.html")
    return grid / "report.html"


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    pages: list[Opened] = []

    def open_it(file: Path, **options: Any) -> Opened:
        pages.append(Opened(browser, file, **options))
        return pages[-1]

    yield open_it
    for opened in pages:
        opened.context.close()
