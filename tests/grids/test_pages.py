"""`unida table`, and pages that say themselves how their tables are drawn."""

import re
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import pytest

from unida.cli import main
from unida.grids.pages import BEGIN, END, write_page
from unida.grids.published import load_published
from unida.grids.results import write_results
from unida.grids.spec import Grid, grid_from
from unida.methods.compare import MEASURED

REPOSITORY = Path(__file__).parents[2]
PAGES = ("README.md", "docs/backbones.md", "docs/methods.md", "docs/results.md", "docs/studies/spa.md")


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Answer]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line in this process."""

    def call(*words: object) -> Answer:
        capsys.readouterr()
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Answer(code, *capsys.readouterr())

    return call


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two rows on two pairs and seeds, UniDA, and one of them under OSDA."""
    records = [
        {"row": row, "pair": pair, "seed": seed, "setting": "unida", "hos": hos + 0.1 * seed, "alone_hos": hos / 2}
        for row, hos in (("ovanet", 0.5), ("a, b", 0.6))
        for pair in ("amazon:dslr", "amazon:webcam")
        for seed in (0, 1)
    ]
    records += [{"row": "ovanet", "pair": "amazon:dslr", "seed": 0, "setting": "osda", "hos": 0.8, "alone_hos": 0.4}]
    write_results([{**record, "benchmark": "office31", "status": "done"} for record in records], tmp_path / "all.csv")
    return tmp_path / "all.csv"


@pytest.fixture
def page(results: Path) -> Path:
    """A page in a folder below the results."""
    (results.parent / "docs").mkdir()
    return results.parent / "docs" / "page.md"


def place(words: str, content: str = "") -> str:
    return f"{BEGIN}{words} -->\n{content}{END}\n"


# The pages of the repository


def test_all_pages_with_tables_are_known() -> None:
    found = sorted((*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")))
    has_place = [path for path in found if re.search(f"^{BEGIN}", path.read_text(encoding="utf-8"), re.MULTILINE)]
    assert [str(path.relative_to(REPOSITORY)) for path in has_place] == list(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_it_would_be_drawn(name: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "docs" / "studies").mkdir(parents=True)
    for path in (*REPOSITORY.glob("docs/*.csv"), REPOSITORY / name):
        shutil.copy(path, tmp_path / path.relative_to(REPOSITORY))
    answer = cli("table", "--into", tmp_path / name)
    assert answer.code == 0, answer.err
    assert (tmp_path / name).read_text(encoding="utf-8") == (REPOSITORY / name).read_text(encoding="utf-8")
    assert answer.out.startswith("as it was:")


@pytest.mark.parametrize(("setting", "results"), [("UniDA", "methods.csv"), ("OSDA", "osda.csv")])
def test_what_methods_are_compared_by_is_what_the_results_give(cli: Cli, setting: str, results: str) -> None:
    words = ["--settings", setting.lower(), "--layout", "overview", "--answers", "both", "--format", "csv"]
    answer = cli("table", REPOSITORY / "docs" / results, *words)
    assert answer.out == (files("unida.methods") / MEASURED[setting]).read_text("utf-8")


# The page of a grid


PAPER_ROWS = ("uan", "cmu", "dcc")


def grid_of(published: str | None, root: Path, setting: str = "unida") -> Grid:
    content = {"title": "Mine", "benchmark": "office31", "published": published, "settings": [setting]}
    return grid_from({**content, "rows": {row: {"method": row} for row in PAPER_ROWS}}, root=root)


def test_a_grid_has_a_page_with_its_tables_beside_the_papers(tmp_path: Path) -> None:
    numbers = {"hos": 0.9, "alone_hos": 0.5, "os": 0.9, "os_star": 0.9, "alone_os": 0.7, "alone_os_star": 0.6}
    for setting, table, rows in (("unida", "unida-office31", PAPER_ROWS), ("osda", "osda-office31-os", ["dcc"])):
        names = {"benchmark": "office31", "setting": setting, "seed": 0, "status": "done"}
        pairs = load_published(table).columns if setting == "unida" else ["amazon:dslr"]
        records = [{**names, "row": row, "pair": p, **numbers} for row in rows for p in pairs if p != "average"]
        write_results(records, tmp_path / "results.csv")
        page = write_page(grid_of(table, tmp_path, setting), tmp_path)
        assert page is not None
        text = page.read_text()
        assert text.startswith("# Mine\n") and text.count("## ") == (3 if setting == "unida" else 5)
        assert text.count("(paper) |") >= 2 and "    unida table DIR --layout ranks" in text


def test_without_numbers_there_is_no_page_and_without_a_paper_there_are_only_own_answers(tmp_path: Path) -> None:
    record = {"row": "dcc", "benchmark": "office31", "pair": "amazon:dslr", "setting": "unida", "seed": 0}
    write_results([{**record, "status": "failed"}], tmp_path / "results.csv")
    assert write_page(grid_of(None, tmp_path), tmp_path) is None and not (tmp_path / "results.md").exists()
    write_results([{**record, "status": "done", "hos": 0.5}], tmp_path / "results.csv")
    page = write_page(grid_of(None, tmp_path), tmp_path)
    assert page is not None and page.read_text().count("## ") == 1


# Pages


def test_a_pages_tables_are_drawn_with_the_words_beside_them(page: Path, cli: Cli) -> None:
    first = place('../all.csv --rows "a, b" ovanet --settings unida --pairs A:W', "old\n")
    second = place("../all.csv --settings osda")
    before = f"before\n{first}between, with {BEGIN}… --> in a line\n{second}after\n"
    page.write_text(before)
    assert cli("table", "--into", page).out.startswith("changed:")
    text = page.read_text()
    around = re.sub(r"(?<= -->\n)\n.*?\n\n(?=<!-- end)", "", text, flags=re.DOTALL)
    assert around == before.replace("old\n", "")
    one, other = text.split("between, with")
    assert re.findall(r"^\| ([^|]+) \|", one, re.MULTILINE)[1:] == ["a, b", "ovanet"] and "A→D" not in one
    assert "| ovanet | 80.0 | 1 |" in other and "old" not in text
    assert cli("table", "--into", page).out.startswith("as it was:")
    assert page.read_text() == text


def test_words_of_a_place_may_take_several_lines(page: Path, cli: Cli) -> None:
    page.write_text(place("../all.csv\n  --settings osda"))
    assert cli("table", "--into", page).code == 0
    assert "| ovanet | 80.0 | 1 |" in page.read_text()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no place here\n", "has no place for a table"),
        (f"a line that mentions {BEGIN}all.csv -->\n{END}\n", "has no place for a table"),
        (f"{BEGIN}../all.csv -->\nkept\n{place('../gone.csv')}", f"no line {END} follows {BEGIN}../all.csv -->"),
        (f"{place('../all.csv')}{BEGIN}../all.csv -->\nkept\n", f"no line {END} follows"),
        (place("../gone.csv"), "gone.csv is not there"),
        (place("../all.csv --lines ovanet"), "there is no option '--lines'"),
        (place("../all.csv --rows ovnet"), "there is no row 'ovnet' (did you mean 'ovanet'?)"),
        (place('../all.csv --rows "ovanet'), "No closing quotation"),
        (place("--into page.md"), "a place cannot have --into or --out"),
        (place("../all.csv --out table.md"), "a place cannot have --into or --out"),
        (place("--layout overview"), "give the folder of a grid or its results.csv"),
        (f"{place('../all.csv --settings osda')}{place('../gone.csv')}", f"{BEGIN}../gone.csv -->: "),
    ],
)
def test_a_page_that_cannot_be_drawn_stays_as_it_was(text: str, reason: str, page: Path, cli: Cli) -> None:
    page.write_text(text)
    answer = cli("table", "--into", page)
    assert answer.code == 2 and answer.err.count("\n") == 1
    assert answer.err.startswith("error: --into ") and reason in answer.err
    assert page.read_text() == text


def test_a_page_that_is_no_text_is_refused(page: Path, cli: Cli) -> None:
    assert "cannot be read" in cli("table", "--into", page).err
    page.write_bytes(b"\xff\xfe")
    answer = cli("table", "--into", page)
    assert answer.code == 2 and "cannot be read" in answer.err


def test_into_stands_alone(page: Path, results: Path, cli: Cli) -> None:
    page.write_text(place("../all.csv --settings osda"))
    for words in ((results,), ("--out", "table.md")):
        answer = cli("table", *words, "--into", page)
        assert answer.code == 2 and "--into PAGE stands alone" in answer.err


# Results


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no results.csv of a grid"),
        ("row,pair,seed\n", "no results.csv of a grid"),
        ("a,b\n1,2\n", "no results.csv of a grid"),
        (
            "row,pair,seed,hos\novanet,one,0,high\n",
            "could not convert string to float: 'high', in the line of ovanet one",
        ),
        ("row,pair,seed,hos\novanet,one,first,0.5\n", "'first', in the line of ovanet one"),
    ],
)
def test_a_damaged_csv_is_one_line(text: str, reason: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "results.csv").write_text(text)
    for place in (tmp_path, tmp_path / "results.csv"):
        answer = cli("table", place)
        assert answer.code == 2 and answer.err.count("\n") == 1 and reason in answer.err


def test_a_csv_needs_only_names_and_numbers(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "results.csv").write_text("row,pair,seed,hos\novanet,one,0,0.5\n")
    assert "| ovanet | 50.0 | 1 |" in cli("table", tmp_path / "results.csv").out


# What is printed


def test_several_tables_have_titles_and_each_its_caption(results: Path, cli: Cli) -> None:
    text = cli("table", results).out
    assert re.findall(r"^\*\*(.+)\*\*$", text, re.MULTILINE) == ["UniDA, HOS", "OSDA, HOS"]
    assert text.count("± between seeds.") == 2
    one = cli("table", results, "--settings", "osda").out
    assert "**OSDA" not in one and one.count("± between seeds.") == 1


def test_beside_the_paper_answers_are_alone_unless_others_are_asked_for(results: Path, cli: Cli) -> None:
    words = ("table", results, "--settings", "osda")
    assert "| ovanet | 80.0 |" in cli(*words).out
    beside = cli(*words, "--published", "auto").out
    assert "| ovanet | 40.0 |" in beside and "| OVANet (paper) | 89.5 |" in beside
    given = cli(*words, "--published", "auto", "--answers", "given").out
    assert "| ovanet | 80.0 |" in given and "(paper)" not in given
    assert "(paper)" not in cli(*words, "--published", "none").out


def test_one_csv_is_one_table(results: Path, cli: Cli, tmp_path: Path) -> None:
    answer = cli("table", results, "--format", "csv")
    assert answer.code == 2 and "writes one table, not 2" in answer.err
    out = tmp_path / "new" / "table.csv"
    assert cli("table", results, "--format", "csv", "--settings", "osda", "--out", out).code == 0
    assert out.read_text().splitlines() == ["row,A→D,seeds", "ovanet,80.0,1"]


def test_a_table_of_the_paper_and_all_their_names(cli: Cli) -> None:
    assert "| DCC+SPA |" in cli("table", "--published", "unida-office31").out
    listed = cli("table", "--published", "list").out
    assert "unida-office31: UniDA on Office-31" in listed and "osda-officehome" in listed
    assert r"\toprule" in cli("table", "--published", "ablation", "--format", "latex").out
