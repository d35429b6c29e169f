"""The tables of Office-31: what is averaged over what, and the paper's columns."""

import json
import re
import statistics
from pathlib import Path

import office31
import office31_tables
import pytest
from office31_tables import MEASURED, PAIRS, PAPER_COLUMNS, PAPER_HOS, Row
from scripts import Script


def row(method: str, pair: str, seed: int, hos: float, setting: str = "unida") -> Row:
    return {"setting": setting, "pair": pair, "seed": seed, "method": method, **dict.fromkeys(MEASURED, hos)}


def line(drawn: str, method: str) -> list[str]:
    """The cells of a method's line."""
    (found,) = [text for text in drawn.splitlines() if text.startswith(f"| {method} |")]
    return [cell.strip() for cell in found.split("|")[1:-1]]


def test_averages_are_over_the_pairs_of_each_seed_first() -> None:
    hos = {("A:D", 0): 0.5, ("A:W", 0): 0.7, ("A:D", 1): 0.7, ("A:W", 1): 0.5}
    rows = [row("ovanet", pair, seed, value) for (pair, seed), value in hos.items()]
    cells = line(office31_tables.table(rows, "unida", False), "ovanet")
    assert cells[1:4] == ["60.0 ± 14.1", "60.0 ± 14.1", "60.0 ± 0.0"]


def test_a_seed_without_all_pairs_is_not_averaged_and_one_seed_has_no_deviation() -> None:
    rows = [row("ovanet", pair, 0, 0.5) for pair in PAIRS] + [row("ovanet", "A:D", 1, 0.9)]
    cells = line(office31_tables.table(rows, "unida", False), "ovanet")
    assert cells[1:3] == ["70.0 ± 28.3", "50.0"]
    assert cells[1 + len(PAIRS)] == "50.0"


def test_differences_are_paired() -> None:
    """Against runs of the same pair and seed, though those of the other method are more."""
    ours = [row("dcc", "A:D", 0, 0.6), row("dcc", "A:D", 1, 0.8)]
    others = [row("ovanet", "A:D", 0, 0.5), row("ovanet", "A:D", 1, 0.6), row("ovanet", "A:W", 0, 0.1)]
    drawn = office31_tables.differences(ours + others, "unida", ["ovanet"])
    assert line(drawn, "dcc − ovanet")[1:3] == ["2", "+15.0 ± 5.0"]
    assert office31_tables.differences(ours[:1] + others, "unida", ["ovanet"]) == ""  # one has no standard error


def test_differences_to_several_methods_are_not_shown_in_both_directions() -> None:
    rows = [row(method, "A:D", seed, 0.5) for method in ("ovanet", "null", "spa") for seed in (0, 1)]
    drawn = office31_tables.differences(rows, "unida", ["ovanet", "null"])
    assert re.findall(r"\| (\w+ − \w+)", drawn) == ["null − ovanet", "spa − ovanet", "spa − null"]


@pytest.mark.parametrize("setting", PAPER_HOS)
def test_the_papers_averages_are_those_of_its_pairs(setting: str) -> None:
    for *pairs, average in PAPER_HOS[setting].values():
        assert len(pairs) == 6
        assert statistics.mean(pairs) == pytest.approx(average, abs=0.06)


def test_the_papers_columns_agree_with_its_other_table() -> None:
    """OS = (10 OS* + UNK) / 11 gives UNK, and so HOS, of DCC+SPA. This table's headings are right."""
    os_and_known = {
        "A:W": (96.1, 97.0),
        "A:D": (96.2, 97.0),
        "D:W": (96.0, 96.0),
        "W:D": (99.5, 100.0),
        "D:A": (89.2, 89.0),
        "W:A": (91.9, 92.0),
    }
    printed = dict(zip(PAPER_COLUMNS, PAPER_HOS["osda"]["dcc+spa"], strict=False))
    for pair, (mean, known) in os_and_known.items():
        unknown = 11 * mean - 10 * known
        assert 2 * known * unknown / (known + unknown) == pytest.approx(printed[pair], abs=0.25), pair


def test_rows_of_the_paper_stand_below_ours() -> None:
    rows = [row("dcc", pair, 0, 0.5) for pair in PAIRS]
    cells = line(office31_tables.table(rows, "unida", True), "dcc (paper, ResNet-50)")
    assert cells[1:8] == ["88.5", "78.5", "70.2", "79.3", "75.9", "88.6", "80.2"]
    assert len(cells) == len(line(office31_tables.table(rows, "unida", True), "dcc"))
    assert "paper" not in office31_tables.table(rows, "unida", False)


def test_the_papers_average_is_not_shown_beside_a_part_of_its_pairs() -> None:
    cells = line(office31_tables.table([row("dcc", "A:D", 0, 0.5)], "unida", True), "dcc (paper, ResNet-50)")
    assert cells[1:3] == ["88.5", ""]


def test_finished_runs_are_read_and_their_csv_gives_the_same_tables(tmp_path: Path, script: Script) -> None:
    for name, hos in {"AD-unida-dcc-0": 0.612345678, "AD-unida-dcc+spa-0": 0.7, "AD-osda-dcc-1": 0.8}.items():
        (tmp_path / name).mkdir()
        content = {"alone": {"method": dict.fromkeys(MEASURED, hos)}, "cost": {"seconds": 12.0}}
        (tmp_path / name / "metrics.json").write_text(json.dumps(content))
    (tmp_path / "AW-unida-dcc-0").mkdir()  # not finished
    words = ["--root", "nowhere", "--out", tmp_path, "--only-finished", "--methods", "dcc", "dcc+spa", "--with-paper"]
    answer = script(office31, *words)
    assert answer.code == 0
    assert line(answer.out.split("### OSDA")[0], "dcc")[1] == "61.2"
    assert line(answer.out, "dcc+spa")[1] == "70.0"
    assert line(answer.out.split("### OSDA")[1], "dcc")[1] == "80.0"
    again = script(office31_tables, "--results", tmp_path / "results.csv", "--with-paper")
    assert again.out == answer.out == (tmp_path / "results.md").read_text()
    whole = (tmp_path / "results.csv").read_text()
    part = script(office31, *words[:5], "--methods", "dcc", "--settings", "unida", "--seeds", 0)
    assert part.code == 0 and "dcc+spa" not in part.out and "OSDA" not in part.out
    assert (tmp_path / "results.csv").read_text() == whole, "every finished run stays in it"


def test_a_pages_tables_are_drawn_with_the_options_beside_them(tmp_path: Path, script: Script) -> None:
    rows = [row(m, p, 0, hos) for m, hos in (("ovanet", 0.5), ("a, b", 0.6), ("dcc", 0.7)) for p in ("A:D", "A:W")]
    office31_tables.write_rows([*rows, row("dcc", "A:D", 0, 0.8, "osda")], tmp_path / "results.csv")
    choices = '--methods "a, b" ovanet --settings unida --pairs A:W'
    page = f"before\n<!-- office31_tables.py {choices} -->\nold\n<!-- end of tables -->\nbetween\n"
    page += "<!-- office31_tables.py --settings osda -->\n<!-- end of tables -->\nafter\n"
    (tmp_path / "page.md").write_text(page)
    words = ["--results", tmp_path / "results.csv", "--into", tmp_path / "page.md"]
    assert script(office31_tables, *words).out.startswith("changed:")
    drawn = (tmp_path / "page.md").read_text()
    assert re.sub(r"(-->)[^<]*(<!-- end)", r"\1\n\2", drawn) == page.replace("old\n", "")
    first, second = drawn.split("between")
    assert re.findall(r"^\| ([^|]+) \|", first, re.MULTILINE)[1:] == ["a, b", "ovanet"] and "A→D" not in first
    assert line(second, "dcc")[1] == "80.0" and "old" not in first
    assert script(office31_tables, *words).out.startswith("as it was:")


def test_the_results_page_is_drawn_from_the_csv() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "results.md").read_text(encoding="utf-8")
    assert "<!-- office31_tables.py" in page
    assert office31_tables.redrawn(page, office31_tables.read_rows(docs / "office31.csv")) == page


def test_no_finished_run_leaves_old_tables_alone(tmp_path: Path, script: Script) -> None:
    (tmp_path / "results.csv").write_text("old")
    answer = script(office31, "--root", "nowhere", "--out", tmp_path, "--only-finished")
    assert answer.code == 2 and "holds no finished run" in answer.err
    assert (tmp_path / "results.csv").read_text() == "old"
