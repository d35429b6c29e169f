"""Damaged files, full disks and signals at bad moments: one clear line, and nothing is lost."""

import errno
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from bad_input import AdaptWords
from conftest import Cli
from safetensors import SafetensorError
from tiny_runs import Forked, adapt_arguments, lines_of, model_hash

import unida
from unida.data.glyphs import GlyphFolders
from unida.runs import pipeline
from unida.support import tensorfile
from unida.support.tensorfile import read_tensors, write_tensors

MODEL = "checkpoint/model.safetensors"


def one_line(answer: Any, code: int = 2) -> str:
    """The error that the user sees."""
    assert answer.code == code, answer.err
    errors = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in answer.err, answer.err
    return str(errors[0])


def test_killed_while_the_config_is_written_a_run_starts_again(work: Path, cli: Cli, adapt_words: AdaptWords) -> None:
    out = work / "runs" / "deep" / "one"
    out.mkdir(parents=True)
    (out / ".lock").touch()
    (out / "config.yaml.tmp").write_text("data:\n  sour")
    assert cli(adapt_words({})).code == 0
    assert (out / "metrics.json").exists()
    assert not (out / "config.yaml.tmp").exists()


@pytest.mark.parametrize("moment", ["reading", "answering"])
def test_sigterm_outside_the_loop_says_how_to_continue(
    glyphs: GlyphFolders, tmp_path: Path, cli: Cli, moment: str
) -> None:
    """The moments before the first and after the last step are held long enough to be met."""
    name = "open_domains" if moment == "reading" else "score_pixels"
    work = getattr(pipeline, name)

    def slowly(*arguments: Any, **options: Any) -> Any:
        (tmp_path / "now").touch()
        time.sleep(60)
        return work(*arguments, **options)

    words = adapt_arguments(
        glyphs.source, glyphs.target, tmp_path / "run", tmp_path / "cache", steps=2, target_labels=None
    )
    process = Forked(words, lambda: setattr(pipeline, name, slowly))
    while not (tmp_path / "now").exists():
        assert process.code is None, process.printed
        time.sleep(0.01)
    time.sleep(0.1)
    process.send(signal.SIGTERM)
    assert process.end(60) == 130, process.printed
    assert f"Continue with: unida adapt --out {tmp_path / 'run'} --resume" in process.printed
    assert "Traceback" not in process.printed
    assert cli(["adapt", "--out", tmp_path / "run", "--resume"]).code == 0


def flip(path: Path, place: int, bit: int = 3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_a_flipped_bit_in_a_model_is_noticed(copied_run: Path, glyphs: GlyphFolders) -> None:
    model, draw = copied_run / MODEL, random.Random(0)
    whole = model.read_bytes()
    for place in (0, 9, 40, *(draw.randrange(len(whole)) for _ in range(10))):
        model.write_bytes(whole)
        flip(model, place, draw.randrange(8))
        with pytest.raises(unida.UserError, match=r"model\.safetensors"):
            unida.load(copied_run).predict(glyphs.target)


def test_a_flipped_bit_in_a_checkpoint_is_noticed(copied_run: Path, cli: Cli) -> None:
    (copied_run / "metrics.json").unlink()
    checkpoint = copied_run / "checkpoint" / "resume.safetensors"
    flip(checkpoint, checkpoint.stat().st_size // 2)
    assert "resume.safetensors is damaged" in one_line(cli(["adapt", "--out", copied_run, "--resume"]))


CHANGES: dict[str, Any] = {
    "a field is missing": lambda info: info.pop("classes"),
    "a field too many": lambda info: info.update(other=1),
    "classes are a number": lambda info: info.update(classes=3),
    "classes are numbers": lambda info: info.update(classes=[1, 2, 3, 4]),
    "no class": lambda info: info.update(classes=[]),
    "fewer classes": lambda info: info.update(classes=["a", "b"]),
    "another method": lambda info: info.update(method="none such"),
    "another backbone": lambda info: info.update(backbone="test_vit"),
    "no backbone": lambda info: info.update(backbone="none such"),
    "the mean is text": lambda info: info.update(mean="abc"),
    "a crop of NaN": lambda info: info.update(crop=float("nan")),
    "a crop of text": lambda info: info.update(crop="224"),
    "options of another method": lambda info: info.update(options={"rejection": "entropy"}),
    "options are a list": lambda info: info.update(options=[1]),
    "frozen at no tap": lambda info: info.update(frozen_at="none such"),
    "no number format": lambda info: info.update(feature_format="fp8"),
    "SPA is text": lambda info: info.update(spa="yes"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_of_another_version_is_refused_in_one_line(copied_run: Path, work: Path, cli: Cli, change: str) -> None:
    """Its digest fits: it was written like this."""
    tensors, notes = read_tensors(copied_run / MODEL)
    info = json.loads(notes["model"])
    CHANGES[change](info)
    write_tensors(copied_run / MODEL, tensors, {"model": json.dumps(info)})
    error = one_line(cli(["predict", copied_run, work / "target", "--csv", work / "answers.csv"]))
    assert "model.safetensors" in error


@pytest.mark.parametrize("change", ["renamed", "reshaped", "missing", "checkpoint"])
def test_other_weights_are_refused_in_one_line(copied_run: Path, work: Path, cli: Cli, change: str) -> None:
    tensors, notes = read_tensors(copied_run / MODEL)
    name = next(iter(tensors))
    if change == "renamed":
        tensors["other"] = tensors.pop(name)
    elif change == "reshaped":
        tensors[name] = tensors[name][..., None]
    elif change == "missing":
        del tensors[name]
    write_tensors(copied_run / MODEL, tensors, notes)
    if change == "checkpoint":
        shutil.copy(copied_run / "checkpoint" / "resume.safetensors", copied_run / MODEL)
    assert "model.safetensors" in one_line(cli(["evaluate", copied_run]))


def test_a_model_of_another_run_is_named(copied_run: Path, cli: Cli, adapt_words: AdaptWords, work: Path) -> None:
    assert cli(adapt_words({"--seed": "7"})).code == 0
    shutil.copy(work / "runs/deep/one" / MODEL, copied_run / MODEL)
    assert "belongs to another run" in one_line(cli(["evaluate", copied_run]))
    (copied_run / "metrics.json").unlink()
    shutil.copy(work / "runs/deep/one/checkpoint/resume.safetensors", copied_run / "checkpoint")
    assert "belongs to another run" in one_line(cli(["adapt", "--out", copied_run, "--resume"]))


@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe", b"3", b'{"kind": "train"}', b'{"step": "x", "kind": "train"}'])
def test_damaged_lines_of_metrics_are_left_out(copied_run: Path, cli: Cli, damage: bytes) -> None:
    path = copied_run / "metrics.jsonl"
    before, model = lines_of(copied_run), model_hash(copied_run)
    path.write_bytes(damage + b"\n" + path.read_bytes())
    (copied_run / "metrics.json").unlink()
    answer = cli(["adapt", "--out", copied_run, "--resume"])
    assert answer.code == 0 and "1 damaged line(s) are left out" in answer.err
    assert lines_of(copied_run) == before
    assert model_hash(copied_run) == model


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b"[]"])
def test_a_damaged_result_is_named(copied_run: Path, damage: bytes) -> None:
    (copied_run / "metrics.json").write_bytes(damage)
    with pytest.raises(unida.UserError, match=r"metrics\.json is damaged.*unida evaluate"):
        _ = unida.load(copied_run).metrics


def test_a_full_disk_keeps_the_last_checkpoint(
    work: Path, cli: Cli, adapt_words: AdaptWords, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = adapt_words({"--steps": "6", "--checkpoint-every": "2"})
    save, saves = tensorfile.save_file, []

    def save_until_full(*arguments: Any) -> None:
        saves.append(1)
        if len(saves) == 2:
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tensorfile, "save_file", save_until_full)
        error = one_line(cli(words))
    assert "resume.safetensors cannot be written (No space left on device)" in error and "--resume" in error
    assert cli(["adapt", "--out", work / "runs/deep/one", "--resume"]).code == 0
    assert cli(adapt_words({"--steps": "6", "--checkpoint-every": "2", "--out": work / "whole"})).code == 0
    assert model_hash(work / "whole") == model_hash(work / "runs/deep/one")


def test_a_read_only_disk_is_named(copied_run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (copied_run / "metrics.json").unlink()

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(copied_run / ".lock"))

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    error = one_line(cli(["adapt", "--out", copied_run, "--resume"]))
    assert str(copied_run) in error and "Read-only file system" in error


def test_a_name_that_is_too_long_is_named(cli: Cli, adapt_words: AdaptWords) -> None:
    error = one_line(cli(adapt_words({"--out": "x" * 300})))
    assert "File name too long" in error and len(error) < 400


def test_a_disk_that_fills_while_results_are_written(
    copied_run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copied_run / "metrics.json").unlink()

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(copied_run / "answers.png"))

    with monkeypatch.context() as patch:
        patch.setattr("unida.runs.pipeline.show_answers", refuse)
        error = one_line(cli(["adapt", "--out", copied_run, "--resume"]))
    assert "answers.png" in error and "No space left" in error and "--resume" in error
    assert cli(["adapt", "--out", copied_run, "--resume"]).code == 0


def test_sizes_beyond_memory_are_the_users_to_change(cli: Cli, adapt_words: AdaptWords) -> None:
    error = one_line(cli(adapt_words({"--method": "dcc", "--bottleneck": "65536", "--clusters-per-class": "1000"})))
    assert "--bottleneck 65536" in error and "GiB" in error


def test_out_of_memory_is_the_users_to_change(
    cli: Cli, adapt_words: AdaptWords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:125] DefaultCPUAllocator: can't allocate memory: 1 bytes")

    monkeypatch.setattr("unida.runs.pipeline.score_pixels", refuse)
    assert "out of memory: lower --batch-size" in one_line(cli(adapt_words({})))


def test_a_header_that_is_no_header(copied_run: Path, cli: Cli) -> None:
    (copied_run / MODEL).write_bytes(struct.pack("<Q", 10) + b"not json!!")
    assert "cannot be read as a safetensors file" in one_line(cli(["evaluate", copied_run]))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_output_that_cannot_be_written_is_reported_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "unida", "methods"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: the output cannot be written (No space left on device)\n"


def test_one_pixel_of_one_image_is_too_little_for_batchnorm(cli: Cli, adapt_words: AdaptWords) -> None:
    error = one_line(cli(adapt_words({"--train": "all", "--spa": True, "--batch-size": "1", "--crop": "2"})))
    assert "--batch-size 1 with --crop 2" in error


def test_scores_that_are_not_finite_are_no_answers(cli: Cli, adapt_words: AdaptWords) -> None:
    assert "lower --lr" in one_line(cli(adapt_words({"--train": "all", "--lr": "1e6", "--steps": "2"})))
