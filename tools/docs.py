"""`make docs`: builds the site from README.md, CONTRIBUTING.md, CHANGELOG.md and docs/, then checks its links.

Pages link to each other and to source files as a repository browser understands it. So the site is built from a
copy in which every page lies where it lies in the repository. Only two kinds of links change in the copy: a link to
a source file leads to a page that shows the file, and a link to a folder leads to the nearest README.md above.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from check_site import problems

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "docs"  # docs_dir of mkdocs.yml
SITE = ROOT / "site"
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "examples/**/README.md")
SHOWN = {".py": "python", ".yaml": "yaml"}  # source files that get a page, by the language to colour them in
LINK = re.compile(r"(?<=\]\()([^)#\s]+)")


def copy_pages(root: Path, copy: Path) -> None:
    """Copies all pages, and the files that they link to, from `root` to the same places below `copy`."""
    for pattern in PAGES:
        for page in sorted(root.glob(pattern)):
            text = LINK.sub(
                lambda link, page=page: _copy_linked(root, copy, page, link.group()), page.read_text("utf8")
            )
            _write(copy / page.relative_to(root), text)


def _copy_linked(root: Path, copy: Path, page: Path, link: str) -> str:
    """Copies the file that a page links to, and gives the link as it must be in the copy."""
    file = (page.parent / link).resolve()
    if "://" in link or not file.exists() or not file.is_relative_to(root):
        return link  # to the web, or broken: the check of the links finds it
    place = copy / file.relative_to(root)
    if file.is_dir():
        readme = next(folder for folder in (file, *file.parents) if (folder / "README.md").exists()) / "README.md"
        return Path(os.path.relpath(readme, page.parent)).as_posix()
    if file.suffix in SHOWN:
        _write(place.with_name(f"{file.name}.md"), _shown(file, file.relative_to(root)))
        return f"{link}.md"
    if file.suffix != ".md":
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    return link


def _shown(file: Path, name: Path) -> str:
    fence = "`" * 8  # longer than any inside the file
    head = f"---\ntitle: {name.name}\nsearch:\n  exclude: true\n---\n\n# `{name.as_posix()}`\n\n"
    return f"{head}{fence}{SHOWN[file.suffix]}\n{file.read_text('utf8')}{fence}\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf8")


def build() -> str:
    """Builds the site from the copy, and gives what the builder said if it could not."""
    for folder in (COPY, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    copy_pages(ROOT, COPY)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--config-file", "mkdocs.yml"]
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}, **told)
    if (SITE / "search.json").exists():
        # Opened from the disk, pages look for their search index in a script: a browser reads no other file there.
        (SITE / "search.js").write_text(f"var __index = {(SITE / 'search.json').read_text('utf8')}", "utf8")
    return done.stdout if done.returncode != 0 else ""


def main() -> None:
    said = build()
    if said:
        sys.exit(f"{said}\ndocs: the site could not be built; the builder's words are above")
    if found := problems(SITE):
        print("\n".join(found))
        sys.exit(f"docs: {len(found)} broken links; they are listed above")
    print(f"docs: {len(list(SITE.rglob('*.html')))} pages, no broken link; open {SITE / 'index.html'}")
    print(f"docs: for the search, a server is needed: python -m http.server --bind 127.0.0.1 --directory {SITE}")


if __name__ == "__main__":
    main()
