"""Checks a built site: every link inside it leads somewhere, and no page loads anything from the network.

    python tools/check_site.py site

Links to other sites are not followed.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself, by tag; all other links wait for a click.
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "manifest"}
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?\s*((?:https?:)?//[^"')\s]+)""")


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = IN_STYLES.findall(text)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and LOADED_LINKS & set(values.get("rel", "").split()):
            self.loaded.append(values.get("href", ""))
        if tag in LOADED and LOADED[tag] in values:
            self.loaded.append(values[LOADED[tag]])
        self.loaded += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]


def problems(site: Path) -> list[str]:
    """A line for each broken link of the site, and for each thing that a page loads from the network."""
    pages = {file.resolve(): Page(file.read_text("utf8")) for file in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site}: there is no page"]
    for file, page in pages.items():
        name = file.relative_to(site.resolve())
        for link in dict.fromkeys(page.loaded):
            if _is_elsewhere(link):
                found.append(f"{name}: loads {link} from the network")
        for link in dict.fromkeys([*page.links, *page.loaded]):
            if not _is_elsewhere(link) and (reason := _broken(link, file, pages, site)):
                found.append(f"{name}: {link}: {reason}")
    for style in sorted(site.rglob("*.css")):
        for link in IN_STYLES.findall(style.read_text("utf8")):
            found.append(f"{style.relative_to(site)}: loads {link} from the network")
    return found


def _is_elsewhere(link: str) -> bool:
    parts = urlsplit(link)
    return bool(parts.netloc) or parts.scheme in ("http", "https")


def _broken(link: str, file: Path, pages: dict[Path, Page], site: Path) -> str | None:
    """Why a link inside the site leads nowhere, or None."""
    parts = urlsplit(link)
    if parts.scheme:  # mailto:, data:
        return None
    path = unquote(parts.path)
    target = file
    if path:
        target = ((site / path.lstrip("/")) if path.startswith("/") else (file.parent / path)).resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "there is no such file"
    if not target.is_relative_to(site.resolve()):
        return "lies outside the site"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"the page has no anchor #{anchor}"
    return None


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]))
    print("\n".join(lines))
    sys.exit(1 if lines else 0)
