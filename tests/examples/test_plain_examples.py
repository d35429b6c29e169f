"""The plain examples run as they stand, on pictures that they draw."""

import contextlib
import io
import runpy
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from unida.methods import METHODS

STEPS = "2"
ARGUMENTS = {  # after the folder to write to
    "own_folders": (STEPS,),
    "benchmark_pair": (STEPS,),
    "own_method": (STEPS,),
    "other_backbone": ("test_resnet", "none"),
}
MOST_LINES = 45


class Example(NamedTuple):
    folder: Path
    output: str


Ended = dict[str, Example]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """All of them. One adds a method to the known ones, and is not to leave it there."""
    place = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNIDA_CACHE", str(place / "cache"))
        patch.chdir(place)
        found = {}
        for name, words in ARGUMENTS.items():
            found[name] = Example(place / name, run_here(name, [str(place / name), *words]))
    METHODS.pop("mine")
    return found


def run_here(name: str, words: list[str]) -> str:
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(sys, "argv", [str(path_of(name)), *words])
        runpy.run_path(str(path_of(name)), run_name="__main__")
    return printed.getvalue()


def path_of(name: str) -> Path:
    return Path(__file__).parents[2] / "examples" / f"{name}.py"


def test_two_folders_give_answers_and_metrics(ended: Ended) -> None:
    *answers, metrics = ended["own_folders"].output.splitlines()
    assert len(answers) == 5 and all("unknown score 0." in line for line in answers)
    assert metrics.startswith("HOS 0.") and (ended["own_folders"].folder / "run" / "predictions.csv").is_file()


def test_a_benchmark_pair_gives_metrics(ended: Ended) -> None:
    lines = ended["benchmark_pair"].output.splitlines()
    assert [line.split()[0] for line in lines] == ["hos", "known", "unknown", "auroc"]
    assert all(0 <= float(line.split()[1]) <= 1 for line in lines)
    config = (ended["benchmark_pair"].folder / "run" / "config.yaml").read_text()
    assert "benchmark: office31" in config and "pair: amazon:dslr" in config


def test_a_method_of_ones_own_is_trained_with_its_own_option(ended: Ended) -> None:
    run = ended["own_method"].folder / "run"
    config = (run / "config.yaml").read_text()
    assert "method: mine" in config and "  weight: 0.05" in config
    losses = (run / "metrics.jsonl").read_text()
    assert '"closed"' in losses and '"entropy"' in losses
    assert len((run / "predictions.csv").read_text().splitlines()) == 1 + 6 * 6  # a heading, then 6 classes of 6 images


def test_another_backbone_gives_features_and_maps(ended: Ended) -> None:
    taps, shapes = ended["other_backbone"].output.splitlines()
    assert taps == "test_resnet: taps stem, layer1, layer2, layer3, layer4"
    assert shapes == "features (8, 96); maps at layer3 (8, 192, 5, 5); skipped 0 files"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_each_is_short_enough_to_be_read_at_once(name: str) -> None:
    assert len(path_of(name).read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", ["own_folders", "benchmark_pair", "other_backbone"])
def test_help_is_no_folder_to_write_to(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=rf"python examples/{name}\.py \[OUT\]"):
        run_here(name, ["--help"])
    assert not list(tmp_path.iterdir())
