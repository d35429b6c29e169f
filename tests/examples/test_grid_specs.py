"""The specs of examples/grids are grids that can be run, and have the rows that docs/ shows."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from unida.grids.plan import Task, check_plan, config_of, plan
from unida.grids.results import read_results
from unida.grids.spec import Grid, parse_spec, read_spec
from unida.methods import METHODS

SPECS = Path(__file__).parents[2] / "examples" / "grids"
MEASURED = {"office31.yaml": "backbones.csv", "office31-published.yaml": "office31.csv"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of the specs, with the folders that they name."""
    place = Path(shutil.copytree(SPECS, tmp_path / "examples" / "grids"))
    for folder in ("photos/labelled", "photos/sorted", "../../demo/data/source", "../../demo/data/target"):
        (place / folder).mkdir(parents=True)
    return place


def grid_of(name: str, place: Path) -> Grid:
    return read_spec(place / name, place if "benchmark:" in (place / name).read_text() else None)


def tasks_of(grid: Grid, place: Path) -> list[Task]:
    return plan(grid.chosen(seeds=[0]), place / "out")


@pytest.mark.parametrize("name", sorted(path.name for path in SPECS.iterdir()))
def test_all_options_of_a_spec_are_valid(name: str, place: Path) -> None:
    grid = grid_of(name, place)
    tasks = tasks_of(grid, place)
    check_plan(tasks)
    assert grid.title and list(grid.seeds) == [0, 1, 2]
    assert len({task.name for task in tasks}) == len(tasks)
    for task in tasks:
        assert config_of(task).spa.spa is ("+spa" in task.row)


@pytest.mark.parametrize("name", MEASURED)
def test_a_spec_has_all_rows_pairs_and_settings_of_its_results(name: str, place: Path, repository: Path) -> None:
    grid = grid_of(name, place)
    there = {(task.row, task.pair, task.setting) for task in tasks_of(grid, place)}
    for record in read_results(repository / "docs" / MEASURED[name]):
        assert (record["row"], record["pair"], record["setting"]) in there
        assert record["seed"] in grid.seeds and record["benchmark"] == grid.benchmark
        options = {**grid.options, **grid.rows[record["row"]]}  # a row's own options win
        for option in options.keys() & {"backbone", "train", "regime"}:
            assert record[option] == options[option]


def test_two_folders_are_evaluated_with_labels_of_the_target(place: Path) -> None:
    for task in tasks_of(grid_of("two-folders.yaml", place), place):
        data = config_of(task).data
        assert data.source == place / "photos" / "labelled" and data.target == place / "photos" / "sorted"
        assert data.target_labels


def test_the_specs_of_the_docs_are_valid(place: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(METHODS, "mine", METHODS["ovanet"])  # the file below replaces it; it is gone afterwards
    shutil.copy(repository / "examples" / "own_method.py", place / "my_method.py")
    for name in ("shop", "street"):
        (place / "photos" / name).mkdir()
    page = (repository / "docs" / "grids.md").read_text(encoding="utf-8")
    whole, folders, own = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    own = folders.partition("rows:")[0] + own
    counts = []
    for text, root in ((whole, place), (folders, None), (own, None)):
        tasks = plan(parse_spec(text, "docs/grids.md", place, root), place / "out")
        check_plan(tasks)
        counts.append(len(tasks))
    assert counts == [36, 4, 4]  # 36: as the page says
    assert type(config_of(tasks[-1]).method).__name__ == "MineOptions"
