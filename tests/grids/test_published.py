"""The paper's tables against themselves and each other, and the specs against unida."""

import itertools
import statistics
from typing import Any

import pytest
import yaml

from unida.config import config_from_options
from unida.data.benchmarks import load_benchmark
from unida.errors import UserError
from unida.grids.published import Published, load_published, published_for, published_names, spec_names, spec_text
from unida.methods import METHODS
from unida.methods.spa.options import resolve

# Rows and columns of each table in the paper. Three rows of DomainNet's have no numbers.
SHAPES = {
    "unida-office31": (11, 7),
    "unida-domainnet": (8, 7),
    "unida-officehome": (8, 13),
    "osda-officehome": (8, 13),
    "osda-office31": (9, 7),
    "osda-office31-os": (8, 14),
    "ablation": (10, 2),
    "private-probe": (2, 2),
    "pretext": (7, 2),
    "complexity": (2, 3),
}

# The paper's mistakes: printed averages that are not those of their columns.
WRONG_AVERAGES = {
    ("osda-office31-os", "rtn", "average os"),
    ("osda-office31-os", "rtn", "average os_star"),
    ("osda-office31-os", "sta", "average os_star"),
}

# Methods of the paper that need not exist yet; any other name in a spec is a mistake.
OF_THE_PAPER = {
    *("uan", "cmu", "ros", "dance", "iuan", "usfda", "zhu", "sta", "osbp", "gda"),
    *("inheritune", "osht-sc", "rtn", "dann", "ati"),
}


def numbers(table: Published, row: str) -> dict[str, float]:
    return {column: number.value for column, number in table.rows[row].values.items()}


def spec(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(spec_text(name))
    return content


# Tables


def test_every_table_is_there_and_whole() -> None:
    tables = [load_published(name) for name in published_names()]
    assert {table.name: (len(table.rows), len(table.columns)) for table in tables} == SHAPES
    for table in tables:
        assert all(tuple(row.values) == table.columns for row in table.rows.values()), table.name


def test_a_row_has_the_papers_label_and_numbers() -> None:
    row = load_published("osda-office31-os").rows["dcc+spa"]
    assert row.label == "DCC +SPA"
    assert row.values["amazon:webcam os"] == (96.1, 0.5)
    assert row.values["webcam:dslr os_star"] == (100.0, 0.0)
    assert row.values["average os"] == (94.8, None)


@pytest.mark.parametrize("name", SHAPES)
def test_benchmark_setting_and_pairs_exist(name: str) -> None:
    table = load_published(name)
    benchmark = load_benchmark(table.benchmark)
    assert benchmark.name == table.benchmark
    assert table.setting is None or table.setting in benchmark.settings
    for column in table.columns:
        if ":" in column:
            pair = column.removesuffix(" os").removesuffix(" os_star")
            assert ":".join(benchmark.parse_pair(pair)) == pair


def test_averages_are_those_of_their_columns_but_for_three() -> None:
    wrong = set()
    for name in published_names():
        table = load_published(name)
        for row, average in itertools.product(table.rows, table.columns):
            if not average.startswith("average"):
                continue
            metric = average.removeprefix("average")
            printed = numbers(table, row)
            computed = statistics.mean(v for c, v in printed.items() if ":" in c and c.endswith(metric))
            if abs(printed[average] - computed) > 0.06:
                wrong.add((name, row, average))
                assert f"printed {printed[average]}, computed {computed:.2f}" in table.note
    assert wrong == WRONG_AVERAGES


@pytest.mark.parametrize("row", ["inheritune", "dcc+spa"])
def test_os_and_os_star_give_the_hos_in_one_order_of_columns_only(row: str) -> None:
    """The paper's headings are in another order; with OS = (10 OS* + unknown) / 11, this is the proof."""
    hos, other = (numbers(load_published(name), row) for name in ("osda-office31", "osda-office31-os"))
    pairs = [column for column in hos if column != "average"]
    known = [other[f"{pair} os_star"] for pair in pairs]
    unknown = [min(11 * other[f"{pair} os"] - 10 * other[f"{pair} os_star"], 100) for pair in pairs]
    expected = [2 * a * b / (a + b) for a, b in zip(known, unknown, strict=True)]
    fitting = [
        order
        for order in itertools.permutations(pairs)
        if all(abs(hos[pair] - value) < 0.25 for pair, value in zip(order, expected, strict=True))
    ]
    assert fitting == [tuple(pairs)]


@pytest.mark.parametrize("setting", ["osda", "unida"])
def test_the_ablation_starts_and_ends_with_the_averages_of_the_main_tables(setting: str) -> None:
    ablation, main = load_published("ablation"), published_for("office-home", setting)
    assert main is not None
    for row in ("ovanet", "ovanet+spa", "dcc", "dcc+spa"):
        assert numbers(ablation, row)[setting] == numbers(main, row)["average"]


@pytest.mark.parametrize(
    ("benchmark", "setting", "name"),
    [
        ("office31", "unida", "unida-office31"),
        ("office31", "osda", "osda-office31"),
        ("office-home", "unida", "unida-officehome"),
        ("domainnet", "unida", "unida-domainnet"),
        ("office31", "osda:ros", None),
        ("visda2017", "unida", None),
    ],
)
def test_a_benchmark_and_setting_have_one_table_of_hos(benchmark: str, setting: str, name: str | None) -> None:
    found = published_for(benchmark, setting)
    assert (None if found is None else found.name) == name


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"no published table 'unida-ofice31' \(did you mean 'unida-office31'\?\)"):
        load_published("unida-ofice31")
    with pytest.raises(UserError, match=r"no spec 'abblation' \(did you mean 'ablation'\?\); there are ablation,"):
        spec_text("abblation")


# Specs


@pytest.mark.parametrize("name", spec_names())
def test_a_spec_names_what_exists(name: str) -> None:
    content = spec(name)
    assert list(content) == ["title", "benchmark", "pairs", "settings", "seeds", "published", "options", "rows"]
    benchmark = load_benchmark(content["benchmark"])
    assert benchmark.name == content["benchmark"]
    assert [":".join(benchmark.parse_pair(pair)) for pair in content["pairs"]] == content["pairs"]
    assert set(content["settings"]) <= set(benchmark.settings)
    assert {options["method"] for options in content["rows"].values()} <= OF_THE_PAPER | set(METHODS)


@pytest.mark.parametrize("name", spec_names())
def test_no_row_of_a_spec_hides_another(name: str) -> None:
    """In YAML the last of two equal keys wins without a word."""
    top = {key.value: value for key, value in yaml.compose(spec_text(name)).value}
    rows = [key.value for key, _ in top["rows"].value]
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("name", spec_names())
def test_rows_of_a_spec_are_runs(name: str) -> None:
    content = spec(name)
    for row, options in content["rows"].items():
        if options["method"] not in METHODS:
            continue
        data = {"benchmark": content["benchmark"], "root": "data", "out": "runs"}
        for pair, setting, seed in itertools.product(content["pairs"], content["settings"], content["seeds"]):
            run = {**data, "pair": pair, "setting": setting, "seed": seed, **content["options"], **options}
            assert config_from_options(run).spa.spa is ("+" in row)


def test_rows_of_the_ablation_have_the_parts_that_they_are_named_after() -> None:
    for row, options in spec("ablation")["rows"].items():
        method, *parts = row.split("+")
        assert options["method"] == method
        if parts:
            chosen = resolve(config_from_options({**options, "source": "photos", "target": "sketches"}).spa)
            switches = {part: getattr(chosen, f"spa_{part}") for part in ("words", "entropy", "pretext")}
            on = {part for part, switch in switches.items() if switch == "on"}
            assert on == (set(switches) if parts == ["spa"] else set(parts)), row


@pytest.mark.parametrize("name", [name for name in spec_names() if spec(name)["published"]])
def test_a_spec_has_the_rows_and_columns_of_its_table_in_their_order(name: str) -> None:
    content = spec(name)
    table = load_published(content["published"])
    assert [row for row in content["rows"] if row != "source-only"] == list(table.rows)  # source-only is ours
    if table.setting is None:
        assert content["settings"] == list(table.columns)
    else:
        assert content["settings"] == [table.setting]
        pairs = dict.fromkeys(column.partition(" os")[0] for column in table.columns if ":" in column)
        assert content["pairs"] == list(pairs)
