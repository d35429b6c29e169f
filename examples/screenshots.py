"""The pictures of docs/report.md: a report of a run and one of a grid, on drawn pictures, in a browser without window.

# how to run
    python examples/screenshots.py                      # writes docs/report.png and docs/grid_report.png, in minutes
    python examples/screenshots.py --browser PATH --work DIR

Needs playwright, Chromium, and unida[report,offline].
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from PIL import Image
from playwright.sync_api import sync_playwright

from unida.data.glyphs import write_glyphs

DOCS = Path(__file__).parents[1] / "docs"
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
FLAGS += "--disable-component-update --disable-sync"
ROWS = {"source-only": {"method": "source-only"}, "ovanet": {"method": "ovanet"}}
ROWS["ovanet+spa"] = {"method": "ovanet", "spa": True}


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures of reports.")
    parser.add_argument("--browser", default=shutil.which("chromium"))
    parser.add_argument("--work", type=Path, help="keep pictures and runs here, and find them again")
    parser.add_argument("--out", type=Path, default=DOCS)
    options = parser.parse_args()
    if options.browser is None:
        sys.exit("no chromium found: give its path with --browser")
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or Path(folder)
        grid = make_grid(work)
        run = next(path for path in sorted((grid / "runs").iterdir()) if path.name.startswith("drawn-source-only"))
        for shown in (run, grid):  # from inside: the page shows paths as they are given
            unida("report", str(shown.relative_to(work)), folder=work)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=options.browser, args=FLAGS.split())
            picture_of(browser, run / "report.html", options.out / "report.png", height=2300)
            picture_of(browser, grid / "report.html", options.out / "grid_report.png", height=1500)


def make_grid(work: Path) -> Path:
    """Three rows of two seeds on drawn pictures."""
    grid = work / "grid"
    if not (grid / "results.csv").exists():
        drawn = write_glyphs(
            work / "drawn", shared=6, source_private=2, target_private=4, per_class=16, size=96, seed=0
        )
        folders = {"drawn": {"source": str(drawn.source), "target": str(drawn.target), "target_labels": True}}
        options = {"backbone": "tf_efficientnet_lite0", "image_size": 96, "crop": 80, "cache": str(work / "cache")}
        spec = {"seeds": [0, 1], "options": options, "rows": ROWS, "folders": folders}
        (work / "grid.yaml").write_text(yaml.safe_dump(spec))
        unida("grid", str(work / "grid.yaml"), "--out", str(grid), "--workers", "1", "--no-estimate")
    return grid


def unida(*words: str, folder: Path | None = None) -> None:
    subprocess.run([sys.executable, "-m", "unida", *words], check=True, cwd=folder)


def picture_of(browser: Any, page_file: Path, out: Path, height: int) -> None:
    """The top of the page. Few colours: a quarter of the bytes, and nobody sees it."""
    page = browser.new_context(viewport={"width": 1200, "height": height}).new_page()
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-ready=yes]", timeout=120_000)
    page.screenshot(path=str(out))
    small = Image.open(out).convert("RGB").quantize(224)
    small.save(out, optimize=True)
    print(f"wrote {out} ({out.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
