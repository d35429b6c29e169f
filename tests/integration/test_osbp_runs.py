"""OSBP and DANN as a user runs them: killed they end with the same bits, by two processes, on renamed folders."""

from typing import Any

import pytest
from safetensors.torch import load_file
from test_honesty import assert_same_weights, renamed, renamings
from tiny_runs import (
    adapt_arguments,
    all_weights,
    assert_nearly_same_run,
    assert_same_state,
    kill_after,
    lines_of,
    model_hash,
    run_here,
    run_two,
)
from torch import Tensor, nn

from unida.data.glyphs import GlyphFolders, write_glyphs

OPTIONS = {"steps": 4, "batch_size": 6, "bottleneck": 8, "train": "tail"}
both = pytest.mark.parametrize("method", ["osbp", "dann"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("osbp") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=4, size=40)


def arguments(folders: GlyphFolders, method: str, name: str, **changes: Any) -> list[str]:
    place = folders.source.parent.parent
    given = {"source": folders.source, "target": folders.target, "out": place / name, "cache": place / "cache"}
    return adapt_arguments(**{**given, "method": method, **OPTIONS, **changes})


@both
def test_killed_it_resumes_to_the_same_bits_and_reads_no_name(
    folders: GlyphFolders, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """OSBP draws dropout in every step. The second run has all target images in the folder of one source class."""
    place = folders.source.parent.parent
    whole, killed = place / f"whole {method}", place / f"killed {method}"
    assert run_here(arguments(folders, method, whole.name)) == 0
    target = renamed(folders.target, place / f"renamed for {method}", renamings(folders)["one"])
    kill_after(2, monkeypatch, arguments(folders, method, killed.name, target=target, checkpoint_every=2))
    assert run_here(["adapt", "--out", str(killed), "--resume"]) == 0
    assert_same_weights(killed, whole)
    assert_same_state(killed, whole)
    assert model_hash(killed) == model_hash(whole) and lines_of(killed) == lines_of(whole)
    saved = {key.removeprefix("method/") for key in all_weights(whole) if key.startswith("method/")}
    left_out = saved - set(load_file(whole / "checkpoint" / "model.safetensors"))
    assert {name.split(".")[0] for name in left_out} == ({"discriminator"} if method == "dann" else set())


@both
def test_two_processes_equal_one(folders: GlyphFolders, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Dropout draws other numbers in each process, and BatchNorm has the statistics of its own share: without both."""

    def scaled(layer: nn.BatchNorm1d, features: Tensor) -> Tensor:
        return features * layer.weight + layer.bias

    monkeypatch.setattr(nn.BatchNorm1d, "forward", scaled)
    monkeypatch.setattr(nn.Dropout, "forward", lambda layer, features: features)
    one, two = (folders.source.parent.parent / f"{number} {method}" for number in ("one", "two"))
    options = {"backbone": "test_vit", "steps": 2}
    assert run_here(arguments(folders, method, one.name, **options)) == 0
    code, printed = run_two(arguments(folders, method, two.name, **options, devices=2))
    assert code == 0, printed
    assert_nearly_same_run(two, one)
