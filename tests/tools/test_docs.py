"""`make docs`: the copy that the site is built from, and the check of the built site."""

from pathlib import Path

import check_site
import pytest

import docs

REPOSITORY = Path(__file__).parents[2]

INDEX = """<link rel="stylesheet" href="style.css"><link rel="canonical" href="https://unida.example/">
<h1 id="top">Start</h1> <a href="sub/page.html#part%20two">page</a> <a href="sub/">folder</a> <a href="#top">up</a>
<a href="https://elsewhere.example/never-fetched">web</a> <a href="mailto:a@b.example">mail</a> <img src="a.png">"""


def site_with(folder: Path, index: str = INDEX, style: str = "p { color: red }") -> Path:
    files = {
        "index.html": index,
        "style.css": style,
        "a.png": "a picture",
        "sub/index.html": '<a href="../index.html#top">up</a> <a href="/a.png">picture</a>',
        "sub/page.html": '<h2 id="part two">Part two</h2>',
    }
    for name, text in files.items():
        (folder / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "site" / name).write_text(text)
    (folder / "outside.html").write_text("not part of the site")
    return folder / "site"


def test_a_whole_site_has_no_problems(tmp_path: Path) -> None:
    assert check_site.problems(site_with(tmp_path)) == []


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ('<a href="sub/gone.html">x</a>', "index.html: sub/gone.html: there is no such file"),
        ('<a href="docs/grids.md">x</a>', "index.html: docs/grids.md: there is no such file"),
        ('<a href="sub/page.html#gone">x</a>', "index.html: sub/page.html#gone: the page has no anchor #gone"),
        ('<a href="#gone">x</a>', "index.html: #gone: the page has no anchor #gone"),
        ('<img src="gone.png">', "index.html: gone.png: there is no such file"),
        ('<source srcset="a.png 1x, gone.png 2x">', "index.html: gone.png: there is no such file"),
        ('<a href="../outside.html">x</a>', "index.html: ../outside.html: lies outside the site"),
        ('<img src="//cdn.example/b.png">', "index.html: loads //cdn.example/b.png from the network"),
        (
            '<script src="https://cdn.example/b.js"></script>',
            "index.html: loads https://cdn.example/b.js from the network",
        ),
        (
            '<link rel="stylesheet" href="https://cdn.example/b.css">',
            "index.html: loads https://cdn.example/b.css from the network",
        ),
        (
            "<style>@import 'https://cdn.example/b.css'</style>",
            "index.html: loads https://cdn.example/b.css from the network",
        ),
    ],
)
def test_each_broken_link_is_one_line(tmp_path: Path, added: str, problem: str) -> None:
    assert check_site.problems(site_with(tmp_path, INDEX + added)) == [problem]


def test_a_font_from_the_network_is_a_problem(tmp_path: Path) -> None:
    site = site_with(tmp_path, style="@font-face { src: url(https://fonts.example/a.woff2) }")
    assert check_site.problems(site) == ["style.css: loads https://fonts.example/a.woff2 from the network"]


def test_an_empty_site_is_a_problem(tmp_path: Path) -> None:
    assert len(check_site.problems(tmp_path)) == 1


def test_pages_lie_in_the_copy_as_in_the_repository(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    files = {
        "README.md": "[a](docs/a.md#part) [own](examples/own.py) [examples](examples) [web](https://x.example/a.py)",
        "docs/a.md": "![b](b.png) [code](../src/unida/code.py) [grids](../examples/grids/) [gone](c.py) [up](../../x)",
        "docs/b.png": "a picture",
        "docs/unlinked.png": "a picture",
        "examples/README.md": "[own](own.py)",
        "examples/own.py": 'text = """\n```\nfence\n```\n"""\n',
        "examples/grids/g.yaml": "rows: {}\n",
        "src/unida/code.py": "x = 1\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "x").write_text("outside the repository")
    copy = tmp_path / "copy"
    docs.copy_pages(root, copy)

    assert (copy / "README.md").read_text() == (
        "[a](docs/a.md#part) [own](examples/own.py.md) [examples](examples/README.md) [web](https://x.example/a.py)"
    )
    assert (copy / "docs/a.md").read_text() == (
        "![b](b.png) [code](../src/unida/code.py.md) [grids](../examples/README.md) [gone](c.py) [up](../../x)"
    )
    shown = (copy / "examples/own.py.md").read_text()
    assert f"{'`' * 8}python\n{files['examples/own.py']}{'`' * 8}\n" in shown
    found = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    pages = {"README.md", "docs/a.md", "examples/README.md"}
    assert found == pages | {"docs/b.png", "examples/own.py.md", "src/unida/code.py.md"}


def test_a_broken_link_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = site_with(tmp_path)
    monkeypatch.setattr(docs, "SITE", site)
    monkeypatch.setattr(docs, "build", lambda: "")
    docs.main()
    assert "3 pages, no broken link" in capsys.readouterr().out
    (site / "a.png").unlink()
    with pytest.raises(SystemExit, match="2 broken links"):
        docs.main()
    assert "index.html: a.png: there is no such file" in capsys.readouterr().out


def test_what_the_builder_says_fails_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "SITE", site_with(tmp_path))
    monkeypatch.setattr(docs, "build", lambda: "unida.gone could not be found")
    with pytest.raises(SystemExit, match=r"unida\.gone could not be found"):
        docs.main()


def test_every_page_is_in_the_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text().partition("nav:")[2].split()
    pages = [path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "docs").rglob("*.md")]
    assert "docs/methods.md" in pages
    assert [page for page in pages if page not in navigation] == []


def test_every_module_of_losses_is_in_the_reference() -> None:
    shown = (REPOSITORY / "docs/reference/losses.md").read_text().split()
    modules = [path.stem for path in (REPOSITORY / "src/unida/losses").glob("[!_]*.py")]
    assert "entropy" in modules
    assert [name for name in modules if f"unida.losses.{name}" not in shown] == []
