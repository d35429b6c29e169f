"""The README's table is drawn from a csv, between two markers, and nothing else is touched."""

from pathlib import Path

import pytest
import readme_table
import together
from office31_tables import MEASURED, PAIRS, write_rows
from readme_table import BEGIN, END
from scripts import Script

HEAD, TAIL = "# A title — with a dash\n\nWords.\n\n", "\n\nMore words, and a table:\n\n| a |\n|---|\n| 1 |\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """ovanet: two seeds of UniDA; dcc: one of UniDA, and of OSDA one pair only."""
    runs = [("ovanet", "unida", pair, seed, 0.5 + 0.1 * seed) for pair in PAIRS for seed in (0, 1)]
    runs += [("dcc", "unida", pair, 0, 0.4 if pair == "A:D" else 0.7) for pair in PAIRS]
    runs += [("dcc", "osda", "A:D", 0, 0.9), ("ovanet+spa, null", "unida", "A:D", 0, 0.9)]
    rows = [
        {"method": method, "setting": setting, "pair": pair, "seed": seed, **dict.fromkeys(MEASURED, hos)}
        for method, setting, pair, seed, hos in runs
    ]
    path = tmp_path / "results.csv"
    write_rows(rows, path)
    return path


@pytest.fixture
def in_groups(tmp_path: Path) -> Path:
    """ovanet, UniDA, one seed: 0.8 together with the found threshold, less in the other ways."""
    rows = [
        {"setting": "unida", "pair": pair, "seed": 0, "method": f"ovanet, {mode}", "way": way, "threshold": threshold}
        | dict.fromkeys(together.MEASURED, 0.8 if (mode, way, threshold) == ("tail", "together", "auto") else 0.1)
        for pair in PAIRS
        for mode in ("tail", "head")
        for way, threshold in together.WAYS
    ]
    together.write_rows(rows, tmp_path / "together.csv")
    return tmp_path / "together.csv"


def test_the_table_is_drawn_and_drawn_again_is_the_same(
    tmp_path: Path, results: Path, in_groups: Path, script: Script
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{HEAD}{BEGIN}\nwhat was there\n{END}{TAIL}", encoding="utf-8")
    answer = script(readme_table, "--results", results, "--together", in_groups, "--readme", readme)
    assert (answer.code, answer.out.split(":")[0]) == (0, "changed")
    drawn = readme.read_text(encoding="utf-8")
    assert drawn.startswith(HEAD + BEGIN) and drawn.endswith(END + TAIL)
    assert drawn.removeprefix(HEAD + BEGIN).removesuffix(END + TAIL).strip().splitlines() == [
        "| method | UniDA, alone | UniDA, together | OSDA, alone | OSDA, together |",
        "|---|---|---|---|---|",
        "| ovanet | 55.0 ± 7.1 | 80.0 (1 seed) | not measured | not measured |",
        "| dcc | 65.0 (1 seed) | not measured | not measured | not measured |",
    ]
    again = script(readme_table, "--results", results, "--together", in_groups, "--readme", readme)
    assert again.out.startswith("as it was")
    assert readme.read_text(encoding="utf-8") == drawn


@pytest.mark.parametrize("text", ["no marker", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_readme_without_the_two_markers_is_refused(
    tmp_path: Path, results: Path, in_groups: Path, script: Script, text: str
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text, encoding="utf-8")
    answer = script(readme_table, "--results", results, "--together", in_groups, "--readme", readme)
    assert answer.code == 2 and str(readme) in answer.err and BEGIN in answer.err
    assert readme.read_text(encoding="utf-8") == text


def test_a_missing_csv_is_named(tmp_path: Path, script: Script) -> None:
    answer = script(readme_table, "--results", tmp_path / "none.csv", "--readme", tmp_path / "none.md")
    assert answer.code == 2 and "none.csv is not there" in answer.err


def test_the_projects_own_readme_shows_its_own_csv(repository: Path) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    rows = readme_table.read_rows(repository / "docs" / "office31.csv")
    together_rows = readme_table.read_together(repository / "docs" / "together.csv")
    assert readme_table.with_table(text, readme_table.summary(rows, together_rows)) == text
