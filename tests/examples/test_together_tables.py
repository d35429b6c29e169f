"""The tables of answering together are drawn from runs, or from their csv, and docs show what the csv says."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import together
import unknown_share
from scripts import Script
from together import BEGIN, END, MEASURED, WAYS

from unida.grids.folder import SPEC
from unida.grids.plan import Task, plan
from unida.grids.spec import grid_from

CONTENT = {"benchmark": "office31", "pairs": ["A:D", "D:A", "A:W"], "rows": {"ovanet+spa": {"spa": True}}}


@pytest.fixture
def tasks(tmp_path: Path) -> list[Task]:
    """The runs of a grid whose folder is there; none of them is finished."""
    grid = grid_from(CONTENT, root=tmp_path)
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / SPEC).write_text(grid.to_yaml())
    return plan(grid, tmp_path / "grid")


def finish(task: Task, hos: tuple[float, ...]) -> None:
    task.folder.mkdir(parents=True)
    (task.folder / "config.yaml").write_text("model: {train: tail}\n")
    content: dict[str, dict[str, dict[str, float]]] = {}
    for (way, threshold), value in zip(WAYS, hos, strict=True):
        content.setdefault(way, {})[threshold] = dict.fromkeys(MEASURED, value)
    (task.folder / "metrics.json").write_text(json.dumps(content))


def test_runs_become_a_csv_and_a_page(tmp_path: Path, tasks: list[Task], script: Script) -> None:
    finish(tasks[0], (0.5, 0.55, 0.6, 0.7))
    finish(tasks[1], (0.6, 0.55, 0.6, 0.7))  # the third one is not finished
    page, table = tmp_path / "page.md", tmp_path / "together.csv"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    answer = script(together, "--runs", tmp_path / "grid", "--csv", table, "--into", page)
    assert answer.code == 0, answer.err
    line = next(line for line in answer.out.splitlines() if line.startswith("| ovanet+spa, tail"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:6] == ["2", "55.0", "55.0", "60.0", "70.0"]
    assert cells[6:8] == ["+15.0 ± 5.0", "+10.0 (D→A)"]
    drawn = page.read_text()
    assert drawn.startswith(f"before\n{BEGIN}\n") and drawn.endswith(f"{END}\nafter\n") and "old" not in drawn
    again = script(together, "--csv", table, "--into", page)
    assert again.out == answer.out and page.read_text() == drawn


def test_folders_without_finished_runs_change_nothing(tmp_path: Path, tasks: list[Task], script: Script) -> None:
    table = tmp_path / "together.csv"
    table.write_text("old")
    for folder, reason in ((tmp_path / "grid", "no finished run"), (tmp_path, "not the folder of a grid")):
        answer = script(together, "--runs", folder, "--csv", table)
        assert answer.code == 2 and reason in answer.err
    assert table.read_text() == "old" and not tasks[0].is_finished


def test_the_docs_show_what_the_csv_says(repository: Path) -> None:
    text = together.tables(together.read_rows(repository / "docs" / "together.csv"))
    assert text in (repository / "docs" / "together.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", unknown_share.KINDS)
@pytest.mark.parametrize("share", unknown_share.SHARES)
def test_as_many_images_are_drawn_as_the_share_asks_for(kind: str, share: float) -> None:
    truth = SimpleNamespace(labels=np.repeat(np.arange(30), 40))  # 10 known classes, 20 unknown ones
    index = unknown_share.draw_images(truth, 10, kind, share, seed=0)  # type: ignore[arg-type]
    unknown = truth.labels[index] >= 10
    assert len(set(index)) == len(index) and unknown.mean() == pytest.approx(share, abs=0.02)
    assert (~unknown).any()
