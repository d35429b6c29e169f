"""The plain examples run as they stand, each in a process of its own, on pictures that they draw."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = "2"
ARGUMENTS = {  # after the folder to write to
    "own_folders": (STEPS,),
    "benchmark_pair": (STEPS,),
    "own_method": (STEPS,),
    "other_backbone": ("test_resnet", "none"),
}
MOST_LINES = 39

Ended = dict[str, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """All of them, side by side: most of their time is the import of torch."""
    place = tmp_path_factory.mktemp("examples")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "UNIDA_CACHE": str(place / "cache")}
    started = {}
    for name, words in ARGUMENTS.items():
        command = [sys.executable, str(path_of(name)), str(place / name), *words]
        started[name] = subprocess.Popen(
            command, env=environment, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    found = {}
    for name, process in started.items():
        out, err = process.communicate(timeout=300)
        found[name] = subprocess.CompletedProcess([str(place / name)], process.returncode, out, err)
    return found


def path_of(name: str) -> Path:
    return Path(__file__).parents[2] / "examples" / f"{name}.py"


def output_of(ended: Ended, name: str) -> str:
    assert ended[name].returncode == 0, ended[name].stderr
    return ended[name].stdout


def folder_of(ended: Ended, name: str) -> Path:
    return Path(ended[name].args[0])


def test_two_folders_give_answers_and_metrics(ended: Ended) -> None:
    *answers, metrics = output_of(ended, "own_folders").splitlines()
    assert len(answers) == 5 and all("unknown score 0." in line for line in answers)
    assert metrics.startswith("HOS 0.") and (folder_of(ended, "own_folders") / "run" / "predictions.csv").is_file()


def test_a_benchmark_pair_gives_metrics(ended: Ended) -> None:
    lines = output_of(ended, "benchmark_pair").splitlines()
    assert [line.split()[0] for line in lines] == ["hos", "known", "unknown", "auroc"]
    assert all(0 <= float(line.split()[1]) <= 1 for line in lines)
    config = (folder_of(ended, "benchmark_pair") / "run" / "config.yaml").read_text()
    assert "benchmark: office31" in config and "pair: amazon:dslr" in config


def test_a_method_of_ones_own_is_trained_with_its_own_option(ended: Ended) -> None:
    output_of(ended, "own_method")
    run = folder_of(ended, "own_method") / "run"
    config = (run / "config.yaml").read_text()
    assert "method: mine" in config and "  weight: 0.05" in config
    losses = (run / "metrics.jsonl").read_text()
    assert '"closed"' in losses and '"entropy"' in losses
    assert len((run / "predictions.csv").read_text().splitlines()) == 1 + 6 * 6  # a heading, then 6 classes of 6 images


def test_another_backbone_gives_features_and_maps(ended: Ended) -> None:
    taps, shapes = output_of(ended, "other_backbone").splitlines()
    assert taps == "test_resnet: taps stem, layer1, layer2, layer3, layer4"
    assert shapes == "features (8, 96); maps at layer3 (8, 192, 5, 5); skipped 0 files"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_each_is_short_enough_to_be_read_at_once(name: str) -> None:
    assert len(path_of(name).read_text(encoding="utf-8").splitlines()) <= MOST_LINES
