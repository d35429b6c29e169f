"""The options of `unida grid`."""

from pathlib import Path
from typing import Any

import pytest

import unida
from unida.errors import UserError
from unida.grids.options import GridOptions


def given(*words: str) -> GridOptions:
    return GridOptions(Path("spec.yaml"), out=Path("out"), set=words)


def test_set_reads_plain_values_and_leaves_words_alone() -> None:
    """YAML takes on and off for true and false; options take the words."""
    words = ("steps=50", "lr=0.01", "spa=true", "--backbone=tf_efficientnet_lite0", "frame=off", "spa.pretext=on")
    found = given(*words).overrides()
    assert found == {
        "steps": 50,
        "lr": 0.01,
        "spa": True,
        "backbone": "tf_efficientnet_lite0",
        "frame": "off",
        "spa.pretext": "on",
    }


@pytest.mark.parametrize("word", ["steps", "=50", "steps=[1"])
def test_other_words_are_refused_at_once(word: str) -> None:
    with pytest.raises(UserError, match=r"--set .*"):
        given(word).check()


@pytest.mark.parametrize(
    "wrong", [{"engine": "slurm"}, {"workers": "2"}, {"rows": 5}, {"root": 3}, {"seeds": ["a"]}, {"layout": "wide"}]
)
def test_wrong_values_from_python_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        unida.grid({"benchmark": "office31", "rows": {"a": {}}}, tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()
