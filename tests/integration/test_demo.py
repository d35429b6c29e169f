"""The demo from start to end, on fewer pictures."""

from pathlib import Path
from typing import Any

import pytest

from unida.config import Config
from unida.models.weights import LITE0_WHEEL
from unida.runs import demo
from unida.support import progress
from unida.support.signals import Interrupted


def test_demo_says_what_it_does_counts_what_it_draws_and_shows_every_method(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(LITE0_WHEEL, reason="needs unida[offline]")
    for name, number in {"SHARED": 3, "SOURCE_PRIVATE": 1, "TARGET_PRIVATE": 2, "PER_CLASS": 2}.items():
        monkeypatch.setattr(demo, name, number)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    out = tmp_path / "demo"
    answer = cli(["demo", "--steps", "1", "--out", out])
    assert answer.code == 0, answer.err
    lines = answer.err.splitlines()
    # Two pictures of 4 classes of the source and 5 of the target.
    assert "draws 18 pictures" in lines[0] and "1 steps each" in lines[0] and "about two minutes" in lines[0]
    drawn = [line.split()[1] for line in lines if line.startswith("drawing: ")]
    assert drawn == [f"{done}/18" for done in range(1, 19)]
    assert len(list((out / "data").rglob("*.png"))) == 18
    for method in ("source-only", "ovanet", "ovanet+spa"):
        assert f"│ {method} " in answer.out
        assert (out / method / "metrics.json").exists()
    assert f"next: unida predict {out / 'ovanet+spa'} {out / 'data' / 'target'} --csv answers.csv" in answer.out


def test_a_demo_that_is_interrupted_while_it_draws_is_to_be_started_again(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "write_glyphs", interrupted)
    answer = cli(["demo", "--out", tmp_path / "demo"])
    assert answer.code == 130
    assert answer.err.splitlines()[-1].endswith("start it again")


def test_an_interrupted_demo_says_how_to_continue(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(config: Config) -> None:
        assert config.output.out is not None
        config.output.out.mkdir()
        (config.output.out / "config.yaml").touch()  # the first run had begun
        raise Interrupted("interrupted at step 3, saved")

    monkeypatch.setattr(demo, "SHARED", 1)
    monkeypatch.setattr(demo, "PER_CLASS", 1)
    monkeypatch.setattr(demo, "execute", interrupted)
    answer = cli(["demo", "--out", tmp_path / "demo"])
    assert answer.code == 130
    assert answer.err.splitlines()[-1] == (
        f"interrupted at step 3, saved. Continue with: unida demo --out {tmp_path / 'demo'}"
    )
