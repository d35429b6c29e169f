"""The pictures of docs/report.md and docs/serve.md, on drawn pictures, in a browser without window.

# how to run
    python examples/screenshots.py                      # writes report.png, grid_report.png and serve.png, in minutes
    python examples/screenshots.py --dark --browser PATH --work DIR --out DIR

Needs playwright, Chromium, and unida[report,serve,offline].
"""

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    parser = argparse.ArgumentParser(description="Pictures of the reports and of the served page.")
    parser.add_argument("--browser", default=shutil.which("chromium"))
    parser.add_argument("--work", type=Path, help="keep pictures and runs here, and find them again")
    parser.add_argument("--out", type=Path, default=DOCS)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    if options.browser is None:
        sys.exit("no chromium found: give its path with --browser")
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or Path(folder)
        grid = make_grid(work)
        run, with_words = (folder_of(grid, row) for row in ("source-only", "ovanet+spa"))
        for shown in (run, grid):  # from inside: the page shows paths as they are given
            unida("report", str(shown.relative_to(work)), folder=work)
        with sync_playwright() as playwright, served(with_words) as address:
            browser = playwright.chromium.launch(executable_path=options.browser, args=FLAGS.split())
            look = {"color_scheme": "dark" if options.dark else "light"}
            top = {"width": 1200, "height": 2300}
            save(report_picture(browser, run, viewport=top, **look), options.out / "report.png")
            top["height"] = 1500
            save(report_picture(browser, grid, viewport=top, **look), options.out / "grid_report.png")
            new = new_pictures(work)
            save(
                page_picture(browser, address, new, viewport={"width": 1200, "height": 800}, **look),
                options.out / "serve.png",
            )


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


def folder_of(grid: Path, row: str) -> Path:
    return next(
        path for path in sorted((grid / "runs").iterdir()) if re.fullmatch(rf"drawn-{re.escape(row)}-\d+", path.name)
    )


def new_pictures(work: Path) -> list[Path]:
    """One of a class of the source, and one of a class that the source does not have; no run has seen them."""
    drawn = write_glyphs(work / "more", shared=6, source_private=2, target_private=4, per_class=1, size=96, seed=7)
    names = {path.name for path in drawn.source.iterdir()}
    known, unknown = (
        [one for one in sorted(drawn.target.rglob("*.png")) if (one.parent.name in names) is of] for of in (True, False)
    )
    return [unknown[0], known[0]]


@contextmanager
def served(run: Path) -> Iterator[str]:
    """The address of a server that answers for this run."""
    command = [sys.executable, "-m", "unida", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield next(found.group() for line in server.stdout if (found := re.search(r"http://\S+/", line)))
        server.terminate()


def report_picture(browser: Any, folder: Path, **look: Any) -> bytes:
    """The top of a report."""
    page = browser.new_page(**look)
    page.goto((folder / "report.html").as_uri())
    page.wait_for_selector("html[data-ready=yes]", timeout=120_000)
    return bytes(page.screenshot())


def page_picture(browser: Any, address: str, images: list[Path], **look: Any) -> bytes:
    """The served page with answers for these images."""
    page = browser.new_page(**look)
    page.goto(address)
    while not page.request.get(f"{address}about").json()["is_ready"]:
        page.wait_for_timeout(500)
    page.reload()
    for image in images:
        page.set_input_files("#files", image)
        page.wait_for_selector(".card:first-child:not(.waits)")
    page.wait_for_function("[...document.querySelectorAll('.strip img')].every(image => image.naturalWidth > 0)")
    return bytes(page.screenshot(full_page=True))


def save(taken: bytes, out: Path) -> None:
    """Few colours: a quarter of the bytes, and nobody sees it."""
    Image.open(io.BytesIO(taken)).convert("RGB").quantize(224).save(out, optimize=True)
    print(f"wrote {out} ({out.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
