"""The tables by backbone are drawn from runs, or from their csv, and docs show what the csv says."""

import json
from pathlib import Path

import backbones
from backbones import ALL, END, FROZEN, NUMBERS, WAYS
from scripts import Script


def finished_run(folder: Path, name: str, train: str, alone: float, together: float) -> None:
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(f"model: {{backbone: net, train: {train}}}\ntraining: {{regime: kept}}\n")
    numbers = {"alone": alone, "together": together}
    content = {way: {rule: dict.fromkeys(NUMBERS, numbers[way])} for way, rule in WAYS.items()}
    (run / "metrics.json").write_text(json.dumps(content))


def test_runs_become_a_csv_and_pages(tmp_path: Path, script: Script) -> None:
    for seed, hos in ((0, 0.5), (1, 0.7)):
        finished_run(tmp_path / "runs", f"AD-unida-ovanet+spa-{seed}", "head", hos, 0.9)
        finished_run(tmp_path / "runs", f"DA-unida-ovanet+spa-{seed}", "head", hos + 0.1, 0.9)
    finished_run(tmp_path / "runs", "AD-unida-ovanet+spa-2", "head", 0.1, 0.1)  # not all pairs: its seed is left out
    finished_run(tmp_path / "tails", "AD-osda-dcc-0", "tail", 0.4, 0.8)
    table = tmp_path / "backbones.csv"
    for name, begin in (("all", ALL), ("frozen", FROZEN)):
        (tmp_path / name).write_text(f"before\n{begin}\nold\n{END}\nafter\n")
    pages = (tmp_path / "all", tmp_path / "frozen")
    answer = script(backbones, "--runs", tmp_path / "runs", tmp_path / "tails", "--csv", table, "--into", *pages)
    assert answer.code == 0
    whole, short = (page.read_text() for page in pages)
    assert "| net | head | kept | ovanet+spa | 2 × 2 | 65.0 ± 14.1 | 90.0 ± 0.0 |" in whole
    assert "| net | tail | kept | dcc | 1 × 1 | 40.0 | 80.0 |" in whole
    assert "| `net` | ovanet+spa | 65.0 ± 14.1 | 90.0 ± 0.0 | not measured | not measured |" in short
    assert "dcc" not in short and "old" not in whole + short
    assert script(backbones, "--csv", table, "--into", *pages).code == 0
    assert [page.read_text() for page in pages] == [whole, short]


def test_the_docs_show_what_the_csv_says(repository: Path) -> None:
    rows = backbones.read_rows(repository / "docs" / "backbones.csv")
    assert backbones.tables(rows) in (repository / "docs" / "backbones.md").read_text(encoding="utf-8")
    assert backbones.short_table(rows) in (repository / "README.md").read_text(encoding="utf-8")
