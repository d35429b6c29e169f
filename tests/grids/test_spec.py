"""A spec becomes a plan of runs, or one line that says what is wrong, before anything runs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from unida.config import flat_options
from unida.errors import UserError
from unida.grids.folder import refuse_out, saved_grid
from unida.grids.local import default_workers, devices_of
from unida.grids.plan import check_plan, config_of, plan
from unida.grids.results import public_command
from unida.grids.spec import Grid, folder_part, grid_from, paper_spec, parse_spec, read_spec
from unida.methods import METHODS

SPEC: dict[str, Any] = {
    "benchmark": "office31",
    "pairs": ["A:D", "webcam:amazon"],
    "settings": ["unida", "osda"],
    "seeds": [0, 3],
    "options": {"train": "head", "batch-size": 12},
    "rows": {"plain": {"method": "ovanet"}, "words": {"method": "ovanet", "spa": True, "spa.preset": "paper"}},
}


def grid_of(root: Path, **changes: Any) -> Grid:
    return grid_from({**SPEC, **changes}, root=root)


def test_a_grid_is_all_combinations_seed_by_seed(tmp_path: Path) -> None:
    tasks = plan(grid_of(tmp_path), tmp_path / "out")
    assert len(tasks) == len({task.name for task in tasks}) == 2 * 2 * 2 * 2
    assert [task.seed for task in tasks] == [0] * 8 + [3] * 8
    assert {task.pair for task in tasks} == {"amazon:dslr", "webcam:amazon"}
    last = tasks[-1]
    assert (last.name, last.folder) == ("webcam-amazon-osda-words-3", tmp_path / "out/runs/webcam-amazon-osda-words-3")
    config = flat_options(config_of(last))
    expected = {"pair": "webcam:amazon", "setting": "osda", "seed": 3, "batch_size": 12, "spa_preset": "paper"}
    assert expected.items() <= config.items()
    check_plan(tasks)


def test_the_command_of_a_task_says_the_same_as_its_options(tmp_path: Path) -> None:
    from unida.cli.parsing import parse
    from unida.config import config_class

    task = plan(grid_of(tmp_path, options={"train": "head", "lr": "5e-4", "strict": False}), tmp_path / "out")[-1]
    parsed = parse(config_class("ovanet"), "unida adapt", task.words[1:], "")
    assert flat_options(parsed) == flat_options(config_of(task))
    assert flat_options(parsed)["lr"] == 5e-4  # YAML reads it as a word
    shown = public_command(task)
    assert str(tmp_path) not in shown and "--root DIR" in shown and "--out RUN" in shown and "--cache" not in shown


def test_all_pairs_are_the_default_and_parts_can_be_chosen(tmp_path: Path) -> None:
    grid = grid_from({"benchmark": "Office-31", "rows": {"a": {}, "b": {}}}, root=tmp_path)
    assert (len(grid.pairs), list(grid.settings), list(grid.seeds)) == (6, ["unida"], [0])
    part = grid.chosen(rows=["b"], pairs=["D:A"], seeds=[7])
    assert (list(part.rows), list(part.pairs), list(part.seeds)) == (["b"], ["dslr:amazon"], [7])
    for wrong in ({"rows": ["c"]}, {"pairs": ["D:moon"]}, {"settings": ["osda"]}, {"seeds": [-1]}):
        with pytest.raises(UserError):
            grid.chosen(**wrong)  # type: ignore[arg-type]


def test_folders_and_paths_are_relative_to_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data/a", "data/b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "w.pth").touch()
    content = {
        "folders": {"my shop": {"source": "data/a", "target": "data/b", "target_labels": True}},
        "options": {"weights": "w.pth", "cache": "kept"},
        "rows": {"ovanet": None},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir("/")
    grid = read_spec(tmp_path / "spec.yaml")
    (task,) = plan(grid, tmp_path / "out")
    assert (task.name, task.pair, task.setting) == ("my-shop-ovanet-0", "my shop", "")
    wanted = {"source": "data/a", "target": "data/b", "weights": "w.pth", "cache": "kept"}
    assert {name: task.options[name] for name in wanted} == {k: str(tmp_path / v) for k, v in wanted.items()}
    assert task.options["target_labels"] is True
    (tmp_path / "again.yaml").write_text(grid.to_yaml())
    assert read_spec(tmp_path / "again.yaml") == grid


def test_a_method_of_ones_own_comes_with_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine-of-a-grid", METHODS["ovanet"])  # so that it is taken out again
    (tmp_path / "my_method_file.py").write_text(
        "from dataclasses import dataclass\nfrom unida.methods import METHODS, Card\n"
        "@dataclass(frozen=True)\nclass O:\n    weight: float = 1.0\n"
        "METHODS['mine-of-a-grid'] = Card('mine-of-a-grid', 't', 'p', 'UniDA', O, code='my_method_file:M')\n"
    )
    text = "methods: [my_method_file.py]\nbenchmark: office31\nrows: {m: {method: mine-of-a-grid, weight: 2.0}}"
    grid = parse_spec(text, "spec", tmp_path, tmp_path)
    assert config_of(plan(grid, tmp_path / "out")[0]).method.weight == 2.0


def test_rows_of_missing_methods_are_left_out_of_a_papers_grid_and_refused_elsewhere(tmp_path: Path) -> None:
    grid = paper_spec("unida-office31", tmp_path)
    assert {"ovanet", "dcc+spa"} <= grid.rows.keys() and not set(grid.skipped) & grid.rows.keys()
    check_plan(plan(grid, tmp_path / "out"))
    with pytest.raises(UserError, match=r"row 'x'.*no method 'nothing'"):
        check_plan(plan(grid_of(tmp_path, rows={"x": {"method": "nothing"}}), tmp_path / "out"))


YAML = "benchmark: office31\nrows: {a: {}}\n"
WRONG = {
    "misspelt method": (YAML.replace("{}", "{method: ovnet}"), "row 'a'.*'ovnet' .did you mean 'ovanet'"),
    "misspelt option": (YAML.replace("{}", "{stpes: 3}"), "row 'a'.*'stpes' .did you mean 'steps'"),
    "wrong value": (YAML.replace("{}", "{steps: many}"), "row 'a'.*'steps' is 'many'"),
    "impossible number": (YAML + "options: {batch_size: 0}", "row 'a'.*--batch-size is 0"),
    "impossible pair": (YAML + "pairs: [amazon:moon]", "no domain 'moon'"),
    "pair of one": (YAML + "pairs: [amazon:A]", "amazon on both sides"),
    "pair twice": (YAML + "pairs: [A:D, amazon:dslr]", "'amazon:dslr' twice"),
    "setting": (YAML + "settings: [unidaa]", "no setting 'unidaa'"),
    "benchmark": (YAML.replace("office31", "ofice31"), "'ofice31' .did you mean 'office31'"),
    "two rows of one name": (
        "benchmark: office31\nrows:\n  a: {}\n  a: {steps: 2}\n",
        "'a' stands there twice.*line 4",
    ),
    "two rows of one folder": ("benchmark: office31\nrows: {a b: {}, a-b: {}}", "'a b' and 'a-b'.*rename"),
    "no rows": ("benchmark: office31", "no rows"),
    "no data": ("rows: {a: {}}", "names no data"),
    "two kinds of data": (YAML + "folders: {x: {source: ., target: .}}", "benchmark and folders exclude"),
    "folder": ("folders: {x: {source: gone, target: .}}\nrows: {a: {}}", "gone is not a folder"),
    "half a pair of folders": ("folders: {x: {source: .}}\nrows: {a: {}}", "'x' has no target"),
    "seed": (YAML + "seeds: [one]", "seeds has 'one'"),
    "no seed": (YAML + "seeds: []", "seeds is empty"),
    "key": (YAML + "sedes: [0]", "no key 'sedes' .did you mean 'seeds'"),
    "set by the grid": (YAML.replace("{}", "{seed: 3}"), "'seed', which the grid sets"),
    "no mapping": ("- a\n- b", "names with values"),
    "no yaml": ("rows: [", "is not YAML"),
    "published table": (YAML + "published: unida-ofice31", "did you mean 'unida-office31'"),
    "root": (YAML + "root: 7", "root is 7: it must be a path"),
    "root that is gone": (YAML + "root: gone", "gone is not a folder"),
    "source": ("folders: {x: {source: 5, target: .}}\nrows: {a: {}}", "source is 5: it must be a path"),
    "weights": (YAML.replace("{}", "{weights: gone.pth}"), "weights gone.pth is not a file"),
    "several processes": (YAML + "options: {devices: 2}", "a run of a grid is one process"),
    "option twice": (YAML.replace("{}", "{batch-size: 3, batch_size: 4}"), "'batch_size' twice"),
    "long name": (f"benchmark: office31\nrows: {{{'a' * 300}: {{}}}}", "too long for a folder"),
    "numbers as names": ("benchmark: office31\nrows:\n  1: {}\n  '1': {}\n", "'1' stands there twice"),
    "one folder for two runs": (
        "folders: {a: {source: ., target: .}, a-b: {source: ., target: .}}\nrows: {b-c: {}, c: {}}",
        "would share the folder 'a-b-c-0'",
    ),
    "method file": (YAML + "methods: [gone.py]", "gone.py is not a file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_spec_is_one_line(name: str, tmp_path: Path) -> None:
    text, expected = WRONG[name]
    root = None if name.startswith("root") or text.startswith("folders") else tmp_path
    with pytest.raises(UserError, match=expected) as caught:
        check_plan(plan(parse_spec(text, "my.yaml", tmp_path, root), tmp_path / "out"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_row_cannot_change_its_meaning(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    grid = grid_of(tmp_path)
    (out / "grid.yaml").write_text(grid.to_yaml())
    refuse_out(out, grid)
    refuse_out(out, grid_of(tmp_path, seeds=[0, 1, 2, 3], rows={**SPEC["rows"], "third": {}}))
    for change in ({"rows": {"plain": {"method": "dcc"}}}, {"options": {"train": "head", "batch_size": 6}}):
        with pytest.raises(UserError, match=r"row '(plain|words)' has (method|batch_size)"):
            refuse_out(out, grid_of(tmp_path, **change))
    (out / "grid.yaml").unlink()
    (out / "holiday.jpg").touch()
    with pytest.raises(UserError, match="already holds other files"):
        refuse_out(out, grid)


def test_parts_of_folder_names() -> None:
    assert folder_part("DCC, faithful (10)") == "dcc-faithful-10"
    assert folder_part("ovanet+spa") == "ovanet+spa"
    assert folder_part("…") == "row"


def test_on_and_off_are_words_in_a_spec(tmp_path: Path) -> None:
    text = "benchmark: office31\nrows: {a: {spa: true, spa.preset: paper, spa.pretext: off}}"
    options = plan(parse_spec(text, "spec", tmp_path, tmp_path), tmp_path / "out")[0].options
    assert (options["spa"], options["spa_pretext"]) == (True, "off")


def test_workers_share_gpus_if_there_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [devices_of(worker, 2, 1.0) for worker in range(3)] == [["0"], ["1"], ["0"]]
    assert [devices_of(worker, 4, 2.0) for worker in range(2)] == [["0", "1"], ["2", "3"]]
    assert (default_workers(1, 4, 2.0), default_workers(1, 2, 0.5)) == (2, 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert devices_of(1, 2, 0.5) == ["7"]
    assert devices_of(0, 0, 1.0) == []


def test_merged_mappings_and_auto_are_read(tmp_path: Path) -> None:
    text = "benchmark: office31\npublished: auto\noptions: &o {steps: 5}\nrows: {a: {<<: *o, method: dcc}}"
    task = plan(parse_spec(text, "spec", tmp_path, tmp_path), tmp_path / "out")[0]
    assert (task.options["steps"], task.options["method"]) == (5, "dcc")


def test_results_can_be_read_when_the_pictures_are_gone(tmp_path: Path) -> None:
    for name in ("a", "b", "out"):
        (tmp_path / name).mkdir()
    grid = grid_from({"folders": {"x": {"source": "a", "target": "b"}}, "rows": {"r": {}}}, folder=tmp_path)
    (tmp_path / "out" / "grid.yaml").write_text(grid.to_yaml())
    (tmp_path / "a").rmdir()
    assert saved_grid(tmp_path / "out") == grid
    with pytest.raises(UserError, match="a is not a folder"):
        read_spec(tmp_path / "out" / "grid.yaml")
