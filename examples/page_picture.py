"""A picture of the page of `unida serve` with some answers on it: docs/serve.png was made with it.

    unida serve RUN --port 8000
    python examples/page_picture.py http://127.0.0.1:8000 a.png b.png --out docs/serve.png

It needs playwright and a browser: `pip install playwright`, and chromium, chrome or the one in UNIDA_BROWSER.
"""

import argparse
import io
import os
import shutil
from pathlib import Path

from PIL import Image


def main() -> None:
    parser = argparse.ArgumentParser(description="A picture of the page.")
    parser.add_argument("address")
    parser.add_argument("images", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1200)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    browser_file = os.environ.get("UNIDA_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as starter:
        browser = starter.chromium.launch(executable_path=browser_file, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(
            viewport={"width": options.width, "height": 800}, color_scheme="dark" if options.dark else "light"
        )
        page.goto(options.address)
        while not page.request.get(f"{options.address.rstrip('/')}/about").json()["is_ready"]:
            page.wait_for_timeout(500)
        page.reload()
        for image in options.images:
            page.set_input_files("#files", image)
            page.wait_for_selector(".card:first-child:not(.waits)")
        for image in page.query_selector_all(".strip img"):
            image.wait_for_element_state("visible")
            while not image.evaluate("image => image.complete && image.naturalWidth > 0"):
                page.wait_for_timeout(50)
        taken = Image.open(io.BytesIO(page.screenshot(full_page=True)))
        browser.close()
    taken.convert("RGB").quantize(256).save(options.out, optimize=True)  # a third of the bytes
    print(f"wrote {options.out}, {options.out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
