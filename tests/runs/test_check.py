"""`unida check`: what is in the folders, which pictures are in both, and what a run will cost."""

import logging
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from torch import Tensor

from unida.cli import main
from unida.config import config_from_options
from unida.data.folders import scan
from unida.data.glyphs import CLASSES, GlyphFolders, draw, write_glyphs
from unida.data.pixels import open_pixels
from unida.errors import UserError
from unida.methods.base import Losses
from unida.methods.dcc import DCC
from unida.methods.spa.method import SPA
from unida.models.backbone import Backbone, create_backbone
from unida.runs.check import check_run, near_copies
from unida.runs.rehearsal import TIMED
from unida.support.progress import duration


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    """Source: star, house, heart; target: star, house, arrow; three pictures of each."""
    folder = tmp_path_factory.mktemp("glyphs")
    counts = {"shared": 2, "source_private": 1, "target_private": 1, "per_class": 3}
    return write_glyphs(folder, source_domain="photo", target_domain="sketch", size=64, **counts)  # type: ignore[arg-type]


@pytest.fixture
def work(glyphs: GlyphFolders, tmp_path: Path) -> Path:
    """source/ and target/ that the test may spoil."""
    shutil.copytree(glyphs.source, tmp_path / "source")
    shutil.copytree(glyphs.target, tmp_path / "target")
    return tmp_path


def options(work: Path, **changes: Any) -> dict[str, Any]:
    return {
        "source": work / "source",
        "target": work / "target",
        "cache": work / "cache",
        "backbone": "test_resnet.r160_in1k",
        "weights": "none",
        "accelerator": "cpu",
        "image_size": 40,
        "crop": 32,
        "batch_size": 4,
        "steps": 200,
        "train": "tail",
        "regime": "published",
        "views": 2,
        **changes,
    }


SECONDS = 0.25  # an image


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves when images pass through the network, and only then: the rest is multiplication."""
    now, state, stem = [0.0], Backbone.state, Backbone.stem

    def timed_state(self: Backbone, x: Tensor, upto: str | None = None) -> Tensor:
        now[0] += len(x) * SECONDS
        return state(self, x, upto)

    def timed_stem(self: Backbone, images: Tensor) -> Tensor:
        now[0] += len(images) * SECONDS
        return stem(self, images)

    monkeypatch.setattr(Backbone, "state", timed_state)
    monkeypatch.setattr(Backbone, "stem", timed_stem)
    for place in ("unida.runs.rehearsal", "unida.features.kept"):
        monkeypatch.setattr(f"{place}.time", SimpleNamespace(perf_counter=lambda: now[0]))


def lines_of(work: Path, **changes: Any) -> list[str]:
    return list(check_run(config_from_options(options(work, **changes))))


def resave(picture: Path, copy: Path, size: int) -> Path:
    """The same picture as a JPEG of another size: not one byte in common."""
    with Image.open(picture) as image:
        image.resize((size, size), Image.Resampling.LANCZOS).save(copy, quality=80)
    return copy


def near(folder: Path, size: int = 40) -> list[tuple[str, str]]:
    """Names of the pictures that are found in both folder/ours and folder/theirs."""
    ours, theirs = (
        open_pixels(scan(folder / side)[0], resize="squash", size=size, cache_dir=folder / "cache")
        for side in ("ours", "theirs")
    )
    return sorted((ours.files[i].path.stem, theirs.files[j].path.stem) for i, j in near_copies(ours, theirs))


# ---- what is in the folders ------------------------------------------------------------------------------------------


def test_images_are_counted_by_class(work: Path) -> None:
    (work / "source" / "house" / "0002.png").unlink()
    draw("heart", "photo", seed=9, size=64).save(work / "source" / "heart" / "more.png")
    lines = lines_of(work)
    assert lines[1] == "source: 9 images of 3 classes, from 2 (house) to 4 (heart) a class"
    assert lines[2] == "target: 9 images"
    assert "near-duplicates between source and target: none" in lines
    for line, side in zip(lines[3:5], ("source", "target"), strict=True):
        sizes = [path.stat().st_size for path in (work / side).rglob("*.png")]
        kib = f"{min(sizes) / 1024:.0f} to {max(sizes) / 1024:.0f} KiB"
        assert line == f"{side} files: {kib}, {sum(sizes) / 2**20:.1f} MiB in all"


def test_skipped_files_are_listed_under_their_side_with_the_reason(work: Path) -> None:
    (work / "source" / "star" / "torn.jpg").write_bytes(b"no picture")
    (work / "target" / "notes.txt").write_text("no picture")
    (work / "target" / "empty.png").touch()
    lines = lines_of(work)
    heads = [i for i, line in enumerate(lines) if re.match("(source|target) files: ", line)]
    of_source, of_target = lines[heads[0] + 1 : heads[1]], lines[heads[1] + 1 : heads[1] + 3]
    assert len(of_source) == 1 and of_source[0].startswith(f"  skipped {work}/source/star/torn.jpg: ")
    assert sorted(of_target) == [
        f"  skipped {work}/target/empty.png: empty file",
        f"  skipped {work}/target/notes.txt: not an image file: .txt",
    ]
    assert lines[1:3] == ["source: 9 images of 3 classes, from 3 (heart) to 3 (star) a class", "target: 9 images"]


# ---- near-duplicates -------------------------------------------------------------------------------------------------


def test_a_picture_saved_again_in_another_size_is_found(work: Path) -> None:
    copies = {
        resave(work / "source" / name / "0001.png", work / "target" / f"{name}.jpg", size): name
        for name, size in (("star", 97), ("heart", 150))
    }
    lines = lines_of(work)
    start = lines.index("near-duplicates between source and target: 2, please look at them:")
    pairs = {f"  {work / 'source' / name / '0001.png'} ~ {copy}" for copy, name in copies.items()}
    assert set(lines[start + 1 : start + 3]) == pairs
    assert lines[start + 3] == ""


def test_only_ten_near_duplicates_are_shown_and_the_others_counted(work: Path) -> None:
    for number in range(12):
        draw(CLASSES[number], "photo", 5, 64).save(work / "source" / "star" / f"more{number}.png")
        resave(work / "source" / "star" / f"more{number}.png", work / "target" / f"{number}.jpg", 97)
    lines = lines_of(work)
    start = lines.index("near-duplicates between source and target: 12, please look at them:")
    assert all(" ~ " in line for line in lines[start + 1 : start + 11])
    assert lines[start + 11] == "  and 2 more"


@pytest.mark.parametrize("domain", ["photo", "sketch"])
def test_other_pictures_are_no_near_duplicates(domain: str, tmp_path: Path) -> None:
    """Every class against every other one, and against other pictures of the same class."""
    for number, side in enumerate(("ours", "theirs")):
        (tmp_path / side).mkdir()
        for name in CLASSES:
            draw(name, domain, 0, 64, number=number).save(tmp_path / side / f"{name}.png")
    assert near(tmp_path) == []
    resave(tmp_path / "ours" / "key.png", tmp_path / "theirs" / "copy.jpg", 150)
    assert near(tmp_path) == [("key", "copy")]


def test_copies_of_pictures_on_a_plain_ground_are_found(tmp_path: Path) -> None:
    for side in ("ours", "theirs"):
        (tmp_path / side).mkdir()
    for name in CLASSES[:10]:
        draw(name, "flat", 0, 96).save(tmp_path / "ours" / f"{name}.png")
        resave(tmp_path / "ours" / f"{name}.png", tmp_path / "theirs" / f"{name}.jpg", 150)
    assert near(tmp_path) == sorted((name, name) for name in CLASSES[:10])


# ---- cost ------------------------------------------------------------------------------------------------------------


def test_cost_of_training_all(work: Path) -> None:
    lines = lines_of(work, train="all", method="source-only")
    blank = lines.index("")
    what, training, in_all = lines[blank + 1 :]
    assert what == ("source-only on test_resnet.r160_in1k: all of it is trained; 200 steps of 4 images")
    assert re.fullmatch(r"training: \d.*", training)
    assert re.fullmatch(r"in all, on this machine: about \d.*", in_all)
    assert not (work / "cache" / "features").exists()


def test_cost_of_training_the_tail_reports_what_is_kept_and_where(work: Path) -> None:
    lines = lines_of(work, train="tail")
    what, features, training, in_all = lines[lines.index("") + 1 :]
    tap = create_backbone("test_resnet.r160_in1k", "none").default_tap
    assert what == (
        f"ovanet on test_resnet.r160_in1k: frozen up to {tap}, what follows is trained; 200 steps of 8 images"
    )
    # Two random views of 9 + 9 images, and the test view of the target's: nothing looks at the source's.
    assert re.fullmatch(rf"features to compute: 45 views, 0\.\d MiB in {work}/cache/features, \d+ s", features)
    assert training.startswith("training: ") and in_all.startswith("in all, on this machine: about ")


@pytest.mark.parametrize("spa", [False, True])
def test_cost_of_a_frozen_backbone_is_that_of_its_features(work: Path, spa: bool) -> None:
    given: dict[str, Any] = {"spa": True, "spa_vocabulary": 8} if spa else {}
    lines = lines_of(work, train="head", regime="kept", views=None, **given)
    what, features, training, in_all = lines[lines.index("") + 1 :]
    name = "ovanet+spa" if spa else "ovanet"
    assert what == (f"{name} on test_resnet.r160_in1k: all of it is frozen; heads solved on all images, without steps")
    assert features.startswith("features to compute: 18 views, ")  # the test views of both domains
    assert training.startswith("training: ") and in_all.startswith("in all, on this machine: about ")


@pytest.mark.usefixtures("clock")
def test_cost_grows_with_steps_and_images(work: Path) -> None:
    lines = lines_of(work, train="tail", steps=100, engine="torch")  # the clock watches torch
    # A quarter of a second for each of 45 views, of 100 times 4 + 4 images, and of 9 answers.
    assert lines[-3].endswith(", 11 s")
    assert lines[-2:] == ["training: 3 min 20 s", "in all, on this machine: about 3 min 34 s"]
    lines = lines_of(work, train="all", steps=1000)
    assert lines[-2:] == ["training: 33 min 20 s", "in all, on this machine: about 33 min 22 s"]


def test_features_and_mosaics_are_counted_until_a_run_has_kept_them(work: Path) -> None:
    given = {"train": "tail", "views": 1, "spa": True, "spa_pretext": "on", "spa_pool": 64, "spa_vocabulary": 8}
    # A random view and the test view of 9 + 9 images, and 64 mosaics of each domain.
    assert any(line.startswith("features to compute: 164 views, ") for line in lines_of(work, **given))
    words = [w for k, v in options(work, steps=20, views=1).items() for w in (f"--{k.replace('_', '-')}", str(v))]
    spa = ["--spa", "--spa.pretext", "on", "--spa.pool", "64", "--spa.vocabulary", "8"]
    main(["adapt", *words, *spa, "--out", str(work / "run")])  # twenty steps of four draw each of them
    assert any(line.startswith("features to compute: 0 views, 0.0 MiB in ") for line in lines_of(work, **given))


GOAL, OF_WORDS = {"closed", "one_vs_all", "entropy"}, {"words", "count"}


@pytest.mark.parametrize(("preset", "turns"), [("paper", [GOAL, OF_WORDS]), ("best", [GOAL | OF_WORDS])])
def test_a_step_is_timed_with_all_its_turns_and_mosaics(
    preset: str, turns: list[set[str]], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[set[str]] = []
    forward = SPA.forward

    def noted(self: SPA, *arguments: Any) -> Losses:
        found = forward(self, *arguments)
        taken.append(set(found))
        return found

    monkeypatch.setattr(SPA, "forward", noted)
    lines_of(work, train="all", spa=True, spa_preset=preset, spa_pretext="on", spa_vocabulary=8)
    assert taken == turns * (1 + TIMED)


def test_the_run_after_it_is_the_one_without_it(work: Path) -> None:
    """The check takes real steps with a method of its own: nothing of it is left but decoded images and features."""
    words = [w for k, v in options(work, steps=2, train="tail").items() for w in (f"--{k.replace('_', '-')}", str(v))]
    main(["adapt", *words, "--out", str(work / "before")])
    shutil.rmtree(work / "cache")
    lines_of(work, steps=2, train="tail")
    main(["adapt", *words, "--out", str(work / "after")])
    models = [work / run / "checkpoint" / "model.safetensors" for run in ("before", "after")]
    assert models[0].read_bytes() == models[1].read_bytes()


DCC_OPTIONS = {"method": "dcc", "cluster_every": 50, "bottleneck": 64, "images_per_class": 2, "cluster_interval": 1}


@pytest.mark.usefixtures("clock")
def test_dcc_is_timed_with_the_images_that_it_wants_and_its_rounds(
    work: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    losses: list[set[str]] = []
    step = DCC.training_step

    def noted(self: DCC, *arguments: Any) -> Losses:
        found = step(self, *arguments)
        losses.append(set(found))
        return found

    monkeypatch.setattr(DCC, "training_step", noted)
    with caplog.at_level(logging.INFO, logger="unida"):
        lines = lines_of(work, train="tail", **DCC_OPTIONS)
    assert losses == [{"closed", "discrepancy", "closed_matched", "memory"}] * (1 + TIMED)
    # Four of the source, and two of each of three classes, of the clusters that they are matched with, of the clusters.
    assert any(line.endswith("200 steps of 22 images") for line in lines)
    # Before the first step, after 50, 100, 150 and the last: 9 + 9 images each. And 200 steps of 22 images.
    assert lines[-2] == "training: 18 min 42 s, 22 s of it in 5 round(s) over the images"
    assert "clusters of the target" not in caplog.text  # they are of repeated images


@pytest.mark.usefixtures("clock")
def test_a_warm_up_leaves_rounds_to_be_timed(work: Path) -> None:
    lines = lines_of(work, train="all", **DCC_OPTIONS, warm_up=120)
    assert any(line.endswith("200 steps of 22 images") for line in lines)


@pytest.mark.usefixtures("clock")
def test_images_are_counted_where_words_are_looked_for(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, also those that the rehearsal does not look at."""
    monkeypatch.setattr("unida.runs.rehearsal.FEWEST_IMAGES", 4)
    spa = {"spa": True, "spa_vocabulary": 8, "spa_pretext": "on", "spa_bins": "auto"}
    lines = lines_of(work, train="all", steps=100, **spa)
    assert lines[-3].startswith("ovanet+spa on test_resnet") and lines[-3].endswith("100 steps of 16 images")
    # Both domains three times: for words, for how long features are, and for the gap; 8 batches of 4 mosaics of each.
    before = SECONDS * (3 * (9 + 9) + 2 * 8 * 4)
    # 4 + 4 images, as many mosaics, and the target's 4 once more, for the words that the pretrained network gives them.
    in_steps = SECONDS * 100 * (4 + 4 + 8 + 4)
    assert lines[-2] == f"training: {duration(before + in_steps)}"


def test_where_weights_come_from_stands_first_and_a_missing_file_stops_before_the_work(work: Path) -> None:
    given = config_from_options(options(work))
    lines = check_run(given)
    assert next(lines) == "weights: random ones, as --weights none asks"
    assert not (work / "cache").exists()  # nothing is decoded yet
    with pytest.raises(UserError, match=r"no such weight file: .*gone\.pth"):
        lines_of(work, weights="gone.pth")
    assert not (work / "cache").exists()


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": None}, "--source DIR is missing"),
        ({"target": None}, "--target DIR is missing"),
        ({"source": None, "target": None, "benchmark": "office31"}, "--root DIR is missing"),
        ({"source": None, "target": None, "benchmark": "office31", "root": "x"}, "--pair SOURCE:TARGET is missing"),
        ({"target": "gone"}, "gone: no such folder"),
        ({"accelerator": "abacus"}, "--accelerator abacus"),
        ({"method": "dcc", "batch_size": 2, "devices": 2}, "--batch-size 2 is one image in each process"),
        ({"method": "dcc", "warm_up": 200}, "--warm-up 200 ends after the last clustering that training uses"),
        ({"backbone": "test_vit", "crop": 30}, "--crop 30: backbone 'test_vit' cannot take it"),
        ({"method": "dcc", "backbone": "test_vit", "crop": 30}, "--crop 30: backbone 'test_vit' cannot take it"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_what_is_missing_is_named(changes: dict[str, Any], message: str, work: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        lines_of(work, **changes)
    assert "\n" not in str(caught.value)


def test_the_command_prints_it_and_leaves_the_images_decoded(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # the test runner's: messages go to stderr without it
    words = [w for k, v in options(work).items() for w in (f"--{k.replace('_', '-')}", str(v))]
    main(["check", *words])
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "weights: random ones, as --weights none asks"
    assert out[1] == "source: 9 images of 3 classes, from 3 (heart) to 3 (star) a class"
    assert out[-1].startswith("in all, on this machine: about ")
    assert sorted(path.name for path in work.iterdir()) == ["cache", "source", "target"]
    with pytest.raises(SystemExit) as stop:
        main(["check", "--source", str(work / "source")])
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "error: --target DIR is missing: give two folders, or --benchmark NAME --root DIR --pair A:B"
    ]
