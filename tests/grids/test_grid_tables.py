"""Tables of a grid: what is averaged over what, what is compared with what, and how it is written down."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import pearsonr, rankdata

from unida.errors import UserError
from unida.grids.cells import Table
from unida.grids.formats import as_csv, latex, markdown
from unida.grids.options import TableOptions
from unida.grids.published import published_for
from unida.grids.results import Record
from unida.grids.tables import draw

PAIRS = ("amazon:dslr", "amazon:webcam", "dslr:amazon", "dslr:webcam", "webcam:amazon", "webcam:dslr")


def run(row: str = "ovanet", pair: str = "A:D", seed: int = 0, hos: float = 0.5, **more: Any) -> Record:
    domains = {"A": "amazon", "D": "dslr", "W": "webcam"}
    pair = ":".join(domains.get(name, name) for name in pair.split(":"))
    names = {"row": row, "benchmark": "office31", "pair": pair, "setting": "unida", "seed": seed, "status": "done"}
    return {**names, "hos": hos, **more}


def drawn(records: list[Record], **options: Any) -> list[Table]:
    chosen = TableOptions(results=Path("results.csv"), **options)
    chosen.check()
    return draw(records, chosen)


def line(table: Table, name: str) -> list[str]:
    """The cells of a line."""
    (found,) = [cells for cells in (*table.lines, *table.below) if cells[0].text == name]
    return [cell.text for cell in found]


def best(table: Table, column: str) -> list[str]:
    """The lines whose number is marked."""
    place = table.heading.index(column)
    return [cells[0].text for cells in table.lines if cells[place].best]


# Averages


def test_averages_are_over_the_pairs_of_each_seed_first() -> None:
    hos = {("A:D", 0): 0.5, ("A:W", 0): 0.7, ("A:D", 1): 0.7, ("A:W", 1): 0.5}
    (table,) = drawn([run(pair=pair, seed=seed, hos=value) for (pair, seed), value in hos.items()])
    assert table.heading[:4] == ["row", "A→D", "A→W", "average HOS"]
    assert line(table, "ovanet")[1:4] == ["60.0 ± 14.1", "60.0 ± 14.1", "60.0 ± 0.0"]


def test_a_seed_without_all_pairs_is_not_averaged_and_one_seed_has_no_deviation() -> None:
    records = [run(pair=pair) for pair in PAIRS] + [run(seed=1, hos=0.9)]
    (table,) = drawn(records)
    assert line(table, "ovanet")[1:3] == ["70.0 ± 28.3", "50.0"]
    assert line(table, "ovanet")[1 + len(PAIRS)] == "50.0"


def test_a_row_without_all_pairs_has_no_average() -> None:
    (table,) = drawn([run(), run(pair="A:W"), run("dcc")])
    assert line(table, "dcc")[1:4] == ["50.0", "", ""]


def test_other_metrics_are_averages() -> None:
    (table,) = drawn([run(known=0.4), run(pair="A:W", known=0.6)], also=("known",))
    assert table.heading == ["row", "A→D", "A→W", "average HOS", "known", "seeds"]
    assert line(table, "ovanet") == ["ovanet", "50.0", "50.0", "50.0", "50.0", "1"]


def test_one_pair_needs_no_average() -> None:
    records = [run(seed=seed, known=0.4, seconds=seconds) for seed, seconds in enumerate((3.0, 5.0, 700.0))]
    (table,) = drawn(records, also=("known",))
    assert table.heading == ["row", "A→D", "known", "seeds", "s a run"]
    assert line(table, "ovanet") == ["ovanet", "50.0 ± 0.0", "40.0 ± 0.0", "3", "5"], "the first run computed features"


def test_runs_that_failed_do_not_count() -> None:
    records = [run(), {**run("dcc"), "status": "failed"}]
    (table,) = drawn(records)
    assert [cells[0].text for cells in table.lines] == ["ovanet"]
    with pytest.raises(UserError, match="no finished run"):
        drawn(records[1:])


def test_each_setting_has_a_table() -> None:
    one, other = drawn([run(), run(setting="osda", hos=0.6)])
    assert (one.title, other.title) == ("UniDA, HOS", "OSDA, HOS")
    assert line(one, "ovanet")[1] == "50.0" and line(other, "ovanet")[1] == "60.0"


def test_two_runs_that_differ_do_not_share_a_line() -> None:
    """Their mean would stand for neither."""
    records = [run(backbone="a", train="head"), run(backbone="b", train="head")]
    with pytest.raises(UserError, match=r"two runs of ovanet, amazon:dslr unida, seed 0 .* differ in backbone: .*--by"):
        drawn(records)
    (table,) = drawn(records, by=("backbone", "row"))
    assert [cells[0].text for cells in table.lines] == ["a, ovanet", "b, ovanet"]
    with pytest.raises(UserError, match="two runs of ovanet"):  # rows are compared, whatever --by says
        drawn([*records, run("dcc", backbone="a")], by=("backbone", "row"), against=("ovanet",))


# Differences


def test_differences_are_paired() -> None:
    """Against runs of the same pair and seed, though those of the other row are more."""
    ours = [run("dcc", hos=0.6), run("dcc", seed=1, hos=0.8)]
    others = [run(hos=0.5), run(seed=1, hos=0.6), run(pair="A:W", hos=0.1)]
    main, table = drawn(ours + others, against=("ovanet",))
    assert line(table, "dcc − ovanet") == ["dcc − ovanet", "2", "+15.0 ± 5.0"]
    assert "standard error" in table.caption and "standard error" not in main.caption
    assert len(drawn(ours[:1] + others, against=("ovanet",))) == 1  # one difference has no standard error


def test_differences_to_several_rows_are_not_shown_in_both_directions() -> None:
    records = [run(row, seed=seed) for row in ("ovanet", "null", "spa") for seed in (0, 1)]
    _, table = drawn(records, against=("ovanet", "null"))
    assert [cells[0].text for cells in table.lines] == ["null − ovanet", "spa − ovanet", "spa − null"]


def test_differences_alone() -> None:
    records = [run(row, seed=seed, oscr=0.1 * seed) for row in ("ovanet", "dcc") for seed in (0, 1)]
    (table,) = drawn(records, layout="differences", against=("ovanet",), also=("oscr",))
    assert table.heading == ["difference", "runs", "HOS", "OSCR"]
    with pytest.raises(UserError, match="nothing to compare with ovanet"):
        drawn([run(), run("dcc")], layout="differences", against=("ovanet",))
    with pytest.raises(UserError, match="needs --against"):
        drawn(records, layout="differences")


# The paper's rows


def with_paper(records: list[Record], **options: Any) -> Table:
    paper = published_for("office31", "unida")
    assert paper is not None
    (table,) = draw(records, TableOptions(**options), [paper])
    return table


def test_rows_of_the_paper_stand_below_ours_with_its_columns_put_right() -> None:
    records = [run("dcc", pair=pair, alone_hos=0.5, seconds=1.0) for pair in PAIRS]
    table = with_paper(records, answers="alone", also=("hos_sample",))
    assert [cells[0].text for cells in table.lines] == ["dcc"]
    assert [cells[0].text for cells in table.below] == ["DCC (paper)"], "no other row than ours"
    assert line(table, "DCC (paper)")[1:8] == ["88.5", "78.5", "70.2", "79.3", "75.9", "88.6", "80.2"]
    assert len(line(table, "DCC (paper)")) == len(line(table, "dcc")) == len(table.heading)
    assert not any(cell.best for cell in table.below[0])


def test_the_papers_average_is_not_shown_beside_a_part_of_its_pairs() -> None:
    table = with_paper([run("dcc", pair=pair, alone_hos=0.5) for pair in PAIRS[:2]], answers="alone")
    assert line(table, "DCC (paper)") == ["DCC (paper)", "88.5", "78.5", "", ""]


def test_the_paper_does_not_stand_beside_other_answers_settings_or_metrics() -> None:
    numbers = {"alone_hos": 0.5, "alone_auroc": 0.5}
    records = [run("dcc", **numbers)]
    assert with_paper(records, answers="alone").below
    assert not with_paper(records, answers="given").below
    assert not with_paper(records, answers="alone", metric="auroc").below
    assert not with_paper([run("dcc", setting="osda", **numbers)], answers="alone").below
    assert not with_paper([run("mine", **numbers)], answers="alone").below


# The order of the rows


def test_places_in_both_orders_and_how_alike_they_are() -> None:
    """Ours: DCC, CMU, UAN. The paper's: DCC 80.2, CMU 73.1, UAN 63.5; it has no source-only."""
    hos = {"source-only": 0.9, "uan": 0.3, "cmu": 0.4, "dcc": 0.5}
    records = [run(row, pair=pair, hos=0.8, alone_hos=value) for row, value in hos.items() for pair in PAIRS]
    table = with_paper(records, layout="ranks")
    assert table.heading == ["row", "HOS alone", "place", "HOS (paper)", "place", "HOS together"]
    assert line(table, "uan") == ["uan", "30.0", "3", "63.5", "3", "80.0"]
    assert line(table, "source-only") == ["source-only", "90.0", "", "–", "", "80.0"], "no place: the paper has none"
    assert table.caption.endswith("3 rows: Spearman's ρ +1.00, Kendall's τ +1.00.")


def test_orders_that_differ_and_ties() -> None:
    hos = {"uan": 0.5, "cmu": 0.5, "ros": 0.2, "dcc": 0.1}  # the paper: 63.5, 73.1, 82.1, 80.2
    records = [run(row, pair=pair, alone_hos=value) for row, value in hos.items() for pair in PAIRS]
    table = with_paper(records, layout="ranks")
    assert [line(table, row)[2] for row in hos] == ["1", "1", "3", "4"]
    oracle = pearsonr(rankdata([0.5, 0.5, 0.2, 0.1]), rankdata([63.5, 73.1, 82.1, 80.2])).statistic
    assert f"Spearman's ρ {oracle:+.2f}" in table.caption


def test_a_part_of_the_pairs_or_two_rows_have_no_order() -> None:
    whole = [run(row, pair=pair, alone_hos=0.5) for row in ("uan", "cmu", "ros") for pair in PAIRS]
    part = [run("dcc", alone_hos=0.9)]
    assert line(with_paper([*whole, *part], layout="ranks"), "dcc")[1:3] == ["", ""]
    assert with_paper(whole[:-6], layout="ranks").caption.endswith("Too few rows stand in both to compare their order.")
    with pytest.raises(UserError, match="the paper has no table of these runs"):
        drawn([run(alone_hos=0.5)], layout="ranks")


# The best


def test_the_best_is_marked_with_all_that_print_the_same() -> None:
    records = [run(row, hos=hos) for row, hos in (("a", 0.60049), ("b", 0.59951), ("c", 0.5994))]
    (table,) = drawn([*records, *(run(row, pair="A:W", hos=hos) for row, hos in (("a", 0.1), ("b", 0.2)))])
    assert best(table, "A→D") == ["a", "b"] and best(table, "A→W") == ["b"] and best(table, "average HOS") == ["b"]
    assert best(table, "row") == best(table, "seeds") == []
    assert markdown(table).splitlines()[3] == "| b | **60.0** | **20.0** | **40.0** | 1 |"


def test_a_single_line_has_no_best() -> None:
    (table,) = drawn([run()])
    assert best(table, "A→D") == []


# Ways to answer


def test_answers_alone_and_given_are_different_numbers() -> None:
    records = [run(hos=0.7, alone_hos=0.4)]
    assert line(drawn(records)[0], "ovanet")[1] == line(drawn(records, answers="given")[0], "ovanet")[1] == "70.0"
    assert line(drawn(records, answers="alone")[0], "ovanet")[1] == "40.0"
    alone, given = drawn(records, answers="both")
    assert line(alone, "ovanet")[1] == "40.0" and line(given, "ovanet")[1] == "70.0"
    assert "each image alone" in alone.caption and "the runs' own answers" in given.caption


def test_a_table_without_a_number_is_refused_with_what_there_is() -> None:
    alone = {**run(alone_hos=0.4), "hos": None}
    with pytest.raises(UserError, match="--answers given: give --answers alone"):
        drawn([alone])
    unlabelled = {**run("dcc", unknown_answers=0.25), "hos": None}
    with pytest.raises(UserError, match=r"labels of the target.*--metric unknown_answers"):
        drawn([unlabelled])
    (table,) = drawn([unlabelled, {**unlabelled, "row": "ovanet", "unknown_answers": 0.5}], metric="unknown_answers")
    assert line(table, "dcc")[1] == "25.0" and best(table, "A→D") == [], "more of it is not better"


# The overview


def test_the_overview_has_settings_and_answers_side_by_side() -> None:
    numbers = {"backbone": "net", "train": "head"}
    records = [run(pair=pair, seed=s, hos=0.9, alone_hos=0.5, **numbers) for pair in ("A:D", "D:A") for s in (0, 1)]
    records += [run(seed=2, hos=0.1, alone_hos=0.1, **numbers)]  # not all pairs: its seed is left out
    records += [run("dcc", setting="osda", hos=0.8, alone_hos=0.4, **numbers)]
    (table,) = drawn(records, layout="overview", answers="both", by=("backbone", "row"))
    assert table.heading[:4] == ["backbone", "row", "UniDA, alone", "UniDA, together"]
    assert table.heading[4:] == ["OSDA, alone", "OSDA, together", "pairs × seeds"]
    lines = [[cell.text for cell in cells] for cells in table.lines]
    assert lines[0] == ["net", "ovanet", "50.0 ± 0.0", "90.0 ± 0.0", "–", "–", "2 × 2"]
    assert lines[1] == ["net", "dcc", "–", "–", "40.0", "80.0", "1 × 1"]
    assert "--train head" in table.caption and "backbone" not in table.caption, "the lines say it"


@pytest.mark.parametrize("layout", ["overview", "pairs"])
def test_a_table_says_what_was_re_implemented_from_an_abstract(layout: str) -> None:
    records = [run("ovanet"), run("osht-sc"), run("mine", method="zhu+spa")]
    told = "Re-implemented here from the paper's abstract: "
    assert drawn(records, layout=layout)[0].caption.endswith(f"{told}osht-sc, zhu.")
    assert told not in drawn(records[:1], layout=layout)[0].caption


def test_an_average_of_fewer_pairs_is_not_the_best() -> None:
    records = [run("all", hos=0.5), run("all", pair="A:W", hos=0.5), run("also", hos=0.4), run("also", pair="A:W")]
    (table,) = drawn([*records, run("part", hos=0.9)], layout="overview")
    assert line(table, "part") == ["part", "90.0", "1 × 1"]
    assert best(table, "HOS") == ["all"]


def test_the_overview_names_metrics_if_there_are_several() -> None:
    (table,) = drawn([run(auroc=0.8)], layout="overview", also=("auroc",), by=("row", "method"))
    assert table.heading == ["row", "method", "HOS", "AUROC", "pairs × seeds"]
    assert [cell.text for cell in table.lines[0]] == ["ovanet", "", "50.0", "80.0", "1 × 1"]


# What is chosen


def test_rows_and_pairs_stand_in_the_order_that_is_asked_for() -> None:
    """Also if the first pair does not have the first row."""
    records = [run("b"), run("b", pair="A:W"), run("c"), run("c", pair="A:W"), run("a", pair="A:W")]
    (table,) = drawn(records, rows=("a", "c"), pairs=("A:D", "amazon:webcam"))
    assert [cells[0].text for cells in table.lines] == ["a", "c"]
    assert table.heading[:3] == ["row", "A→D", "A→W"]
    (table,) = drawn(records, rows=("c", "a"), pairs=("A:W", "A:D"))
    assert [cells[0].text for cells in table.lines] == ["c", "a"]
    assert table.heading[:3] == ["row", "A→W", "A→D"]


def test_rows_that_are_compared_are_still_chosen() -> None:
    same = ("ovanet", "dcc")
    records = [run(row, seed=seed) for row in ("spa", *same) for seed in (0, 1)]
    table, compared = drawn(records, rows=same, against=same)
    assert [cells[0].text for cells in table.lines] == list(same)
    assert [cells[0].text for cells in compared.lines] == ["dcc − ovanet"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "hoss"}, r"no metric 'hoss' \(did you mean 'hos'\?\); there are known, .*unknown_answers"),
        ({"also": ("hos", "F1")}, "no metric 'F1'"),
        ({"by": ("seed",)}, "--by has 'seed'; it takes row, method, backbone, train, regime"),
        ({"rows": ("ovnet",)}, r"no row 'ovnet' \(did you mean 'ovanet'\?\); there are ovanet"),
        ({"against": ("dcc",)}, "no row 'dcc'; there are ovanet"),
        ({"pairs": ("A:W",)}, "no pair 'amazon:webcam'; there are amazon:dslr"),
        ({"pairs": ("A:X",)}, "X"),
        ({"settings": ("osda",)}, "no setting 'osda'; there are unida"),
    ],
)
def test_what_is_not_there_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        drawn([run()], **options)


def test_runs_can_be_chosen_by_what_they_are() -> None:
    records = [run(train="head", hos=0.7), run(train="tail", hos=0.3)]
    (table,) = drawn(records, where=("train=tail",))
    assert line(table, "ovanet")[1] == "30.0"
    for wrong, message in (("train=all", "no finished run to show with train=all"), ("train", "NAME=VALUE")):
        with pytest.raises(UserError, match=message):
            drawn(records, where=(wrong,))


def test_two_folders_have_their_own_names() -> None:
    (table,) = drawn([{**run(), "benchmark": "", "pair": "old:new", "setting": ""}], pairs=("old:new",))
    assert table.title == "HOS" and table.heading[1] == "old:new"


# Ways to write


ODD = "50 % of_it & {more} #1 $x$ ~^\\ <b> a|b"


def odd_table() -> Table:
    records = [run(row, pair=pair, alone_hos=0.5, train="tail") for row in (ODD, "dcc") for pair in PAIRS]
    return with_paper(records, answers="alone", also=("known", "auroc"))


def unescaped(text: str) -> str:
    """LaTeX without what stands for a letter of the text."""
    return re.sub(r"\\(?:[&%$#_{}\\]|text\w+)", "", text)


def test_latex_is_well_formed() -> None:
    table = odd_table()
    text = latex(table)
    plain = unescaped(text)
    assert plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0
    assert not re.search(r"[%#_~^]", plain)
    assert "–" not in text and "→" not in text and "±" not in text
    assert r"50 \% of\_it \& \{more\} \#1 \$x\$ \textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    lines = text.splitlines()
    rules = [text for text in lines if text in (r"\toprule", r"\midrule", r"\bottomrule")]
    assert rules == [r"\toprule", r"\midrule", r"\midrule", r"\bottomrule"]  # the second one above the paper's rows
    (tabular,) = [text for text in lines if text.startswith(r"\begin{tabular}")]
    assert tabular == rf"\begin{{tabular}}{{l{'c' * (len(table.heading) - 1)}}}"
    body = [text for text in lines if text.endswith(r" \\")]
    assert len(body) == 1 + len(table.lines) + len(table.below)
    assert {unescaped(text.removesuffix(r" \\")).count("&") for text in body} == {len(table.heading) - 1}
    assert sum(text.startswith(r"\begin") for text in lines) == sum(text.startswith(r"\end") for text in lines) == 2
    assert r"\textbf{50.0}" in text and r"A$\rightarrow$D" in text
    assert "-{}-train tail" in text, "two hyphens would become one dash"


def test_csv_reads_back() -> None:
    table = odd_table()
    heading, *lines = csv.reader(io.StringIO(as_csv(table)))
    assert heading == table.heading
    assert lines == [[cell.text for cell in cells] for cells in (*table.lines, *table.below)]
    assert lines[0][0] == ODD


def test_no_name_breaks_a_table_in_markdown() -> None:
    table = odd_table()
    lines = [re.sub(r"\\\|", "", text) for text in markdown(table).splitlines()]
    assert len(lines) == 2 + len(table.lines) + len(table.below)
    assert {text.count("|") for text in lines} == {len(table.heading) + 1}
