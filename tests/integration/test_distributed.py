"""Two processes do what one does, on halves of the same batches.

Held to one process on a backbone without BatchNorm: BatchNorm's statistics are those of a process's own half of the
batch, so that with it two processes train on slightly different features than one, in any data-parallel training.
Everything else is the same up to the order of sums.
"""

import csv
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import Forked, adapt_arguments, last_step, lines_of, run_here, run_two, saved_step, start_process

import unida
from unida.config import config_from_options
from unida.data.domains import Source, Target
from unida.data.folders import labelled_by_folder, scan
from unida.data.glyphs import GlyphFolders, write_glyphs
from unida.data.pixels import decode_in_memory
from unida.errors import UserError
from unida.features.inputs import PixelInputs
from unida.methods.base import Phase, Problem, Want
from unida.methods.build import build_method
from unida.models.backbone import create_backbone
from unida.recipes.base import Made
from unida.recipes.mosaic import Mosaic
from unida.runs.pipeline import refuse_single_images, refuse_uneven_batches
from unida.training.batches import BatchStream

# 21 target images: two processes answer 11 each, and the surplus one must not count twice.
OPTIONS = {"backbone": "test_vit", "batch_size": 6, "steps": 12, "eval_every": 5, "checkpoint_every": 5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("two") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=7, size=40)


def arguments(folders: GlyphFolders, name: str, **changes: Any) -> list[str]:
    place = folders.source.parent.parent
    options = {"target": folders.target, **OPTIONS, **changes}
    return adapt_arguments(source=folders.source, out=place / name, cache=place / f"cache of {name}", **options)


@pytest.fixture(scope="module")
def alone(folders: GlyphFolders) -> Path:
    assert run_here(arguments(folders, "alone")) == 0
    return folders.source.parent.parent / "alone"


def end_of(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Exit code and what was printed; a run that hangs is a failure."""
    try:
        output, errors = process.communicate(timeout=1200)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output + errors


def answers(run: Path) -> dict[str, tuple[str, float, float]]:
    with (run / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {row["path"]: (row["label"], float(row["probability"]), float(row["unknown_score"])) for row in rows}


def test_two_processes_train_and_answer_as_one(folders: GlyphFolders, alone: Path) -> None:
    """Started by the run itself, from the real entry point. Other tests start them as torchrun does."""
    name = "two"
    code, printed = end_of(start_process(arguments(folders, name, devices=2), start_new_session=True))
    assert code == 0, printed
    run = alone.parent / name

    for ours, expected in zip(lines_of(run), lines_of(alone), strict=True):
        assert ours.pop("kind") == expected.pop("kind")
        assert ours == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert last_step(run) == pytest.approx(last_step(alone))
    ours, expected = answers(run), answers(alone)
    assert len(ours) == 21
    assert {path: label for path, (label, _, _) in ours.items()} == {p: label for p, (label, _, _) in expected.items()}
    for path in ours:
        assert ours[path][1:] == pytest.approx(expected[path][1:], abs=2e-3)

    def of_answers(run: Path) -> dict[str, Any]:
        content = json.loads((run / "metrics.json").read_text())
        return {name: content[name] for name in ("alone", "together")} | {"found": content["answering"].pop("found")}

    for name, by_name in of_answers(run).items():  # every way of answering, and the threshold that is found
        for rule, numbers in by_name.items():
            assert numbers == pytest.approx(of_answers(alone)[name][rule], abs=2e-3), (name, rule)

    # one process speaks, one writes
    assert printed.count("source: 21 images of 3 classes; target: 21 images") == 1
    assert [printed.count(f"step {step}: HOS") for step in (5, 10)] == [1, 1]
    assert len(list(run.glob("events.*"))) == 1
    assert (run / "log.txt").read_text().count("target images are unknown") == 1


def test_an_error_of_the_main_process_stops_all(folders: GlyphFolders, tmp_path: Path) -> None:
    """Found after the processes have met, while the others wait for the main one to read the data."""
    (tmp_path / "empty").mkdir()
    words = arguments(folders, "error", devices=2, target=tmp_path / "empty")
    code, printed = run_two(words)  # in time: the others do not wait for ever
    assert code == 2, printed
    assert printed.count("error:") == 1
    assert "holds no image" in printed
    assert "Traceback" not in printed
    assert not (folders.source.parent.parent / "error").exists()


def test_ctrl_c_stops_both_and_saves_once(folders: GlyphFolders) -> None:
    run = folders.source.parent.parent / "stopped"
    # Long enough to be stopped: every image is answered again after every step.
    words = arguments(folders, "stopped", devices=2, eval_every=1, steps=400, checkpoint_every=1000)
    both = [Forked(words, environment=place) for place in places()]
    metrics = run / "metrics.jsonl"
    while both[0].code is both[1].code is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 4):
        time.sleep(0.01)
    for one in both:  # as a terminal does
        one.send(signal.SIGINT)
    codes = [one.end() for one in both]
    printed = "".join(one.printed for one in both)
    assert codes == [130, 130], printed
    assert "Traceback" not in printed
    assert printed.count("the run is saved") == 1
    step = saved_step(run)
    assert 2 <= step < 400
    assert [line["step"] for line in lines_of(run) if line["kind"] == "train"] == list(range(1, step + 1))


def places() -> list[dict[str, object]]:
    """What torchrun tells each of two processes of their place."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**shared, "RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "tests"} for rank in (0, 1)]


PHASE = Phase(turns=())
MOSAICS = [Want("pretext", "source", recipe="mosaics"), Want("pretext", "target", recipe="mosaics")]


def stream_of(folders: GlyphFolders, rank: int, processes: int) -> BatchStream:
    source_files, _ = scan(folders.source)
    classes, labels = labelled_by_folder(source_files)
    config = config_from_options({"batch_size": 6, "seed": 4})
    return BatchStream(
        Source(decode_in_memory(source_files, "squash", 40), labels, tuple(classes)),
        Target(decode_in_memory(scan(folders.target)[0], "squash", 40)),
        PixelInputs(32, (0.5,) * 3, (0.25,) * 3, torch.device("cpu")),
        config,
        SimpleNamespace(global_rank=rank, world_size=processes),  # type: ignore[arg-type]
        {"mosaics": Mosaic(2)},
    )


@pytest.mark.parametrize("processes", [2, 3, 6])
def test_the_shares_of_all_processes_are_the_batch_of_one(folders: GlyphFolders, processes: int) -> None:
    alone = stream_of(folders, 0, 1)
    shares = [stream_of(folders, rank, processes) for rank in range(processes)]
    for step in (0, 1, 3, 17):
        whole = alone.batch(step, PHASE)
        parts = [share.batch(step, PHASE) for share in shares]
        for domain in (0, 1):
            assert not whole[domain].extra
            for field in {"images", "labels", "indices"} & set(whole[domain]._fields):
                joined = torch.cat([getattr(part[domain], field) for part in parts])
                assert torch.equal(joined, getattr(whole[domain], field)), (step, domain, field)
        assert all(len(part[0].labels) == 6 // processes for part in parts)


def test_what_a_method_wants_leaves_all_other_draws_as_they_are(folders: GlyphFolders) -> None:
    stream = stream_of(folders, 0, 1)
    for step in (0, 5):
        for one, other in zip(stream.batch(step, PHASE), stream.batch(step, PHASE, MOSAICS), strict=True):
            assert torch.equal(one.images, other.images) and torch.equal(one.indices, other.indices)
            assert not one.extra
            mosaics = other.extra["pretext"].images
            assert mosaics.shape == other.images.shape
            assert not torch.equal(mosaics, other.images)


def test_processes_cut_mosaics_from_their_own_images_by_draws_of_their_own(folders: GlyphFolders) -> None:
    def made(rank: int, step: int) -> tuple[Made, list[int]]:
        batch = stream_of(folders, rank, 2).batch(step, PHASE, MOSAICS)[1]
        return batch.extra["pretext"], batch.indices.tolist()

    for rank in (0, 1):
        mosaics, own = made(rank, 0)
        assert mosaics.images.shape == (3, 3, 32, 32)
        assert set(mosaics.of.flatten().tolist()) <= set(own)
    assert torch.equal(made(1, 0)[0].images, made(1, 0)[0].images)
    drawn = torch.stack([made(rank, step)[0].labels for rank in (0, 1) for step in range(6)]).unflatten(0, (2, 6))
    assert not torch.equal(drawn[0], drawn[1])


def test_images_that_a_method_names_are_whole_on_every_process(folders: GlyphFolders) -> None:
    wants = [Want("some", domain, np.array([4, 1, 4, 7, 2])) for domain in ("source", "target")]
    alone, *others = [
        stream_of(folders, rank, processes).batch(3, PHASE, wants) for rank, processes in ((0, 1), (0, 2), (1, 2))
    ]
    for domain in (0, 1):
        expected = alone[domain].extra["some"]
        assert expected.of.flatten().tolist() == [4, 1, 4, 7, 2]
        assert not torch.equal(expected.images[0], expected.images[2])  # a view each
        for other in others:
            assert torch.equal(other[domain].extra["some"].images, expected.images)


def test_with_spa_and_kept_mosaics_two_processes_train_as_one(folders: GlyphFolders) -> None:
    """In turns, in each of which some parameters have no gradient. Mosaics are drawn for the global batch."""
    spa = {"train": "tail", "spa": True, "spa.preset": "paper", "spa.vocabulary": 16, "spa.pool": 64, "spa.tap": "norm"}
    options = {**spa, "steps": 6, "eval_every": 0}
    assert run_here(arguments(folders, "SPA alone", **options)) == 0
    code, printed = run_two(arguments(folders, "SPA by two", **options, devices=2))
    assert code == 0, printed
    place = folders.source.parent.parent
    for ours, expected in zip(lines_of(place / "SPA by two"), lines_of(place / "SPA alone"), strict=True):
        assert ours.pop("kind") == expected.pop("kind")
        usage = ("usage_entropy", "words_in_use")  # of a share's images: their mean is not that of all
        assert {name: ours.pop(name) for name in usage} == pytest.approx(
            {name: expected.pop(name) for name in usage}, rel=0.1
        )
        assert ours == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_with_spa_all_processes_answer_with_the_model_that_is_saved(folders: GlyphFolders) -> None:
    """Words found before the first step, mosaics of each process's own images: the weights stay the same on all."""
    options = {"spa": True, "spa.vocabulary": 16, "spa.pretext": "on", "spa.bins": "auto", "devices": 2, "steps": 4}
    code, printed = run_two(arguments(folders, "SPA best", **options, eval_every=0))
    assert code == 0, printed
    assert "Warning" not in printed
    run = folders.source.parent.parent / "SPA best"
    again = {p.path: p for p in unida.load(run).predict(folders.target)}
    for path, (label, probability, unknown_score) in answers(run).items():
        assert again[path].label == label
        assert (again[path].probability, again[path].unknown_score) == pytest.approx(
            (probability, unknown_score), abs=2e-4
        )


def test_processes_see_different_images(folders: GlyphFolders) -> None:
    seen = [stream_of(folders, rank, 2).batch(0, PHASE)[1].indices.numpy() for rank in (0, 1)]
    assert not np.intersect1d(*seen).size  # within an epoch, no target image twice


def test_a_batch_that_cannot_be_shared_evenly_is_refused() -> None:
    config = config_from_options({"batch_size": 6})
    for processes in (3, 6):
        refuse_uneven_batches(config, processes)
    with pytest.raises(UserError, match="--batch-size 6 cannot be shared evenly by 4 processes"):
        refuse_uneven_batches(config, 4)


def test_one_image_in_each_process_is_refused_for_a_method_that_normalises_over_its_images() -> None:
    def refuse(name: str, processes: int) -> None:
        config = config_from_options({"batch_size": 6, "method": name})
        method = build_method(name, create_backbone("test_resnet", "none"), Problem(3), config.method, None)
        refuse_single_images(method, config, processes)

    refuse("dcc", 3)
    refuse("ovanet", 6)
    with pytest.raises(UserError, match=r"--batch-size 6 is one image in each process, .* dcc .* choose 12 or more"):
        refuse("dcc", 6)


def test_with_batchnorm_all_processes_answer_with_the_model_that_is_saved(folders: GlyphFolders) -> None:
    """Each process has statistics of its own half after the last step; the saved ones must give all answers."""
    name = "two with BatchNorm"
    changes = {"backbone": "test_resnet", "devices": 2, "steps": 4, "eval_every": 0}
    code, printed = run_two(arguments(folders, name, **changes))
    assert code == 0, printed
    run = folders.source.parent.parent / name
    again = {p.path: p for p in unida.load(run).predict(folders.target)}
    for path, (label, probability, unknown_score) in answers(run).items():
        assert again[path].label == label
        assert (again[path].probability, again[path].unknown_score) == pytest.approx(
            (probability, unknown_score), abs=2e-4
        )
