"""A run that is killed, at any moment, and resumed ends as one that never was."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_runs import (
    Forked,
    adapt_arguments,
    dying_at_the_first_checkpoint,
    last_step,
    lines_of,
    model_hash,
    run_here,
    saved_step,
)

from unida.data.glyphs import write_glyphs
from unida.support import tensorfile

STEPS = 30
CHECKPOINT_EVERY = 9
# BatchNorm (buffers to restore) and intervals that do not divide each other.
OPTIONS: dict[str, Any] = {"steps": STEPS, "checkpoint_every": CHECKPOINT_EVERY, "eval_every": 7}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pictures; some are large, so that decoding takes long enough to be killed in the middle."""
    folder = tmp_path_factory.mktemp("resume")
    folders = write_glyphs(folder / "data", shared=2, source_private=1, target_private=1, per_class=4, size=40)
    rng = np.random.default_rng(0)
    for i in range(8):
        noise = Image.fromarray(rng.integers(0, 256, (1600, 1600, 3), dtype=np.uint8))
        noise.save(folders.target / folders.target_private[0] / f"large{i}.png", compress_level=1)
    return folder


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    """The run that nobody disturbed."""
    assert run_here(arguments(place, "whole")) == 0
    return place / "whole"


def arguments(place: Path, name: str, **changes: Any) -> list[str]:
    """Each run with a cache of its own: the killed one begins with nothing."""
    source, target = place / "data" / "source", place / "data" / "target"
    return adapt_arguments(source, target, place / name, place / f"cache of {name}", **OPTIONS, **changes)


def resume(run: Path) -> int:
    return run_here(["adapt", "--out", str(run), "--resume"])


def assert_same_end(run: Path, whole: Path) -> None:
    for name in ("checkpoint/model.safetensors", "predictions.csv"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    assert lines_of(run) == lines_of(whole)
    assert last_step(run) == last_step(whole)


def wait_for(happened: Callable[[], object], process: Forked) -> None:
    deadline = time.monotonic() + 1200
    while not happened():
        assert process.code is None, process.printed
        assert time.monotonic() < deadline
        time.sleep(0.001)


def kill(process: Forked) -> None:
    process.send(signal.SIGKILL)
    assert process.end() == -signal.SIGKILL


def lines_written(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_the_undisturbed_run_is_what_the_others_are_held_to(whole: Path) -> None:
    lines = lines_of(whole)
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, STEPS + 1))
    assert [line["step"] for line in lines if line["kind"] == "evaluation"] == list(range(7, STEPS, 7))
    assert lines[0]["total"] != lines[-2]["total"]


def test_killed_while_pictures_are_decoded(place: Path, whole: Path) -> None:
    run = place / "killed early"
    process = Forked(arguments(place, "killed early"))
    half_written = (place / "cache of killed early" / "pixels").glob
    wait_for(lambda: any(half_written("*.tmp-*")), process)
    kill(process)
    assert any(half_written("*.tmp-*"))
    assert not (run / "checkpoint").exists()
    assert resume(run) == 0
    assert_same_end(run, whole)


def test_killed_at_a_random_step(place: Path, whole: Path) -> None:
    run = place / "killed"
    process = Forked(arguments(place, run.name))
    after = random.Random(0).randint(1, STEPS // 2)
    wait_for(lambda: lines_written(run) >= after, process)
    kill(process)
    assert not (run / "checkpoint" / "model.safetensors").exists()
    assert resume(run) == 0
    assert_same_end(run, whole)


def die_at_checkpoint(nth: int, moment: str) -> None:
    """From now on, this process ends before or after the rename of its nth checkpoint."""
    replace, saves = os.replace, []

    def replace_and_die(aside: str, path: str) -> None:
        if os.path.basename(path) == "resume.safetensors":
            saves.append(path)
            if len(saves) == nth:
                if moment == "after":
                    replace(aside, path)
                os.kill(os.getpid(), signal.SIGKILL)
        replace(aside, path)

    tensorfile.os.replace = replace_and_die  # type: ignore[attr-defined]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_the_rename_of_a_random_checkpoint(place: Path, whole: Path, moment: str) -> None:
    run = place / f"killed {moment} rename"
    nth = random.Random(moment).randint(2, STEPS // CHECKPOINT_EVERY)
    process = Forked(arguments(place, run.name), lambda: die_at_checkpoint(nth, moment))
    assert process.end() == -signal.SIGKILL, process.printed
    known = nth - 1 if moment == "before" else nth
    assert saved_step(run) == known * CHECKPOINT_EVERY
    assert resume(run) == 0
    assert_same_end(run, whole)


def test_stopped_with_spa(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words, their optimiser, merged classes and the pretrained copy must all be found again."""
    spa = {"spa": True, "spa.preset": "paper", "spa.vocabulary": 16, "spa.pretext": "on", "spa.pool": 64}
    spa |= {"spa.bins": "auto", "train": "tail"}
    name = "SPA"
    monkeypatch.setitem(OPTIONS, "steps", 8)
    monkeypatch.setitem(OPTIONS, "checkpoint_every", 5)
    assert run_here(arguments(place, f"whole {name}", **spa)) == 0
    with dying_at_the_first_checkpoint(monkeypatch):
        run_here(arguments(place, f"killed {name}", **spa))
    assert saved_step(place / f"killed {name}") == 5
    assert resume(place / f"killed {name}") == 0
    assert_same_end(place / f"killed {name}", place / f"whole {name}")


def test_ctrl_c_saves_and_says_how_to_continue(place: Path, whole: Path) -> None:
    run = place / "ctrl c"
    process = Forked(arguments(place, run.name))
    wait_for(lambda: lines_written(run) >= 5, process)
    process.send(signal.SIGINT)
    assert process.end() == 130, process.printed
    errors = process.printed
    assert "Traceback" not in errors
    step = saved_step(run)
    assert 4 <= step < STEPS
    assert f"stopped after step {step} of {STEPS}; the run is saved." in errors
    assert f"Continue with: unida adapt --out '{run}' --resume" in errors
    assert resume(run) == 0
    assert_same_end(run, whole)


def test_resuming_a_finished_run_changes_nothing_that_matters(place: Path, whole: Path) -> None:
    before = {name: (whole / name).read_bytes() for name in ("metrics.jsonl", "predictions.csv", "config.yaml")}
    weights, metrics = model_hash(whole), last_step(whole)
    assert resume(whole) == 0
    assert (model_hash(whole), last_step(whole)) == (weights, metrics)
    assert {name: (whole / name).read_bytes() for name in before} == before


def test_resuming_needs_a_run_and_a_new_run_an_empty_folder(
    place: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = model_hash(whole)
    assert run_here(arguments(place, "whole")) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert run_here(["adapt", "--out", str(whole), "--resume", "--steps", "99"]) == 2
    assert "--steps is 99" in capsys.readouterr().err
    assert model_hash(whole) == before
    assert not any(name.endswith(".tmp") for name in os.listdir(whole))
