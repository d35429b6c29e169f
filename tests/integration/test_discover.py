"""`unida discover`: groups of a run's unknown images as files and folders, and what it refuses."""

import csv
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli
from tiny_runs import run_here

import unida
from unida.answering.alone import BATCH_ON_CPU
from unida.data.glyphs import GlyphFolders
from unida.runs import discover, groupfiles


@pytest.fixture(scope="module")
def unknowing(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, which now calls most of its target unknown: 16 of 20 images. Not to be changed: copy it."""
    run = Path(shutil.copytree(finished, tmp_path_factory.mktemp("unknowing") / "run"))
    assert run_here(["adapt", "--out", str(run), "--resume", "--unknown-share", "0.8"]) == 0
    return run


@pytest.fixture
def run(unknowing: Path, work: Path) -> Path:
    return Path(shutil.copytree(unknowing, work / "run"))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_table_sheets_and_folders_tell_the_same(run: Path, work: Path, cli: Cli) -> None:
    answer = cli(["discover", run, "--link", work / "new"])
    assert answer.code == 0, answer.err
    rows = rows_of(run / "groups.csv")
    unknown = {row["path"] for row in rows_of(run / "predictions.csv") if row["label"] == "unknown"}
    assert len(rows) == 16 and {row["path"] for row in rows} == unknown
    assert [(row["path"], row["group"]) for row in rows] == [
        (image.path, image.group) for image in unida.load(run).discover().images
    ]
    sizes = Counter(row["group"] for row in rows if row["group"] != "none")
    assert sizes  # or the test would see nothing
    assert {sheet.stem for sheet in (run / "groups").iterdir()} == set(sizes)
    told = json.loads((run / "groups.json").read_text())
    assert {group["name"]: group["size"] for group in told["groups"]} == sizes
    assert told["measured"]["found"] == len(sizes) and told["measured"]["true"] == 2
    linked = {(str(path.resolve()), path.parent.name) for path in (work / "new").rglob("*.png")}
    assert linked == {(str(Path(row["path"]).resolve()), row["group"]) for row in rows if row["group"] != "none"}
    assert f"16 unknown images: {len(sizes)} groups" in answer.out and "H³" in answer.out


def test_renamed_groups_are_source_classes(run: Path, work: Path, cli: Cli, tiny: dict[str, str]) -> None:
    """Link, rename, put the old classes beside, adapt."""
    found = unida.load(run).discover()
    largest = found.groups[0]
    groupfiles.link_groups(found, work / "more", copy=False)
    (work / "more" / largest.name).rename(work / "more" / "something new")
    for other in found.groups[1:]:
        shutil.rmtree(work / "more" / other.name)
    for folder in (work / "source").iterdir():
        (work / "more" / folder.name).symlink_to(folder)
    options = [word for pair in {**tiny, "--steps": "1"}.items() for word in pair]
    words = ["--source", work / "more", "--target", work / "target", "--duplicates", "drop", "--out", work / "second"]
    answer = cli(["adapt", *words, *options])
    assert answer.code == 0, answer.err
    assert "something new" in unida.load(work / "second").classes
    assert len(rows_of(work / "second" / "predictions.csv")) == 20 - largest.size


def test_copies_do_not_need_the_target_and_names_do_not_clash(run: Path, work: Path) -> None:
    images = []
    for place in ("a", "b"):
        path = work / place / "one.png"
        path.parent.mkdir()
        path.write_text(place)
        images.append(discover.GroupedImage(str(path), "group-01", 1.0))
    found = discover.Discovery(tuple(images), (discover.Group("group-01", 2, "star", 1.0),), None)
    groupfiles.link_groups(found, work / "copies", copy=True)
    copies = {path.name: path for path in (work / "copies" / "group-01").iterdir()}
    assert {name: path.read_text() for name, path in copies.items()} == {"one.png": "a", "one-2.png": "b"}
    assert not any(path.is_symlink() for path in copies.values())


def test_groups_do_not_depend_on_labels(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = unida.load(run).discover()
    read = discover.read_truth_of_run

    def shuffled(*arguments: object) -> object:
        truth = read(*arguments)  # type: ignore[arg-type]
        truth.labels[:] = np.random.default_rng(0).permutation(truth.labels)
        return truth

    monkeypatch.setattr(discover, "read_truth_of_run", shuffled)
    after = unida.load(run).discover()
    assert after.images == before.images and after.groups == before.groups
    assert after.measured != before.measured  # it did see other labels


def test_images_that_answered_alone_are_looked_at_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features that were not kept are computed: the same as those that were kept."""
    opened = unida.load(run)
    kept = discover.look_at_unknown(opened._finished, "features", visible=False)
    monkeypatch.setattr(discover, "CHUNK", BATCH_ON_CPU + 1)
    alone = replace(opened._finished, answered=replace(opened._answered, kept=None))
    computed = discover.look_at_unknown(alone, "features", visible=False)
    assert [file.path for file in kept.files] == [file.path for file in computed.files]
    cosine = torch.nn.functional.cosine_similarity(kept.features, computed.features)
    assert len(cosine) == 16 and cosine.min() > 0.999


def test_a_run_that_knows_everything_has_no_groups(run: Path, work: Path, cli: Cli) -> None:
    assert run_here(["adapt", "--out", str(run), "--resume", "--no-unknown"]) == 0
    answer = cli(["discover", run, "--out", work / "found", "--link", work / "new"])
    assert answer.code == 0 and "0 unknown images: 0 groups" in answer.out
    assert rows_of(work / "found" / "groups.csv") == [] and not (work / "new").exists()


def test_what_is_wrong_is_told_in_a_line(run: Path, work: Path, glyphs: GlyphFolders, cli: Cli) -> None:
    (work / "linked" / "group-01").mkdir(parents=True)
    (work / "full").mkdir()
    (work / "full" / "notes.txt").touch()
    (work / "file").touch()
    for words, told in {
        (run, "--copy"): "--copy needs --link",
        (run, "--space", "words"): "--space words needs SPA's words",
        (run, "--space", "both"): "make the run again with --spa",
        (run, "--space", "pixels"): "pixels",
        (work / "full",): "is not the folder of a run",
        (run, "--link", work / "full"): "already holds other files",
        (run, "--link", work / "linked"): "already holds other files: choose a new folder",
        (run, "--link", glyphs.source / "new"): f"lies inside {glyphs.source}, which is read: choose a folder outside",
        (run, "--out", glyphs.target / "found"): f"lies inside {glyphs.target}, which is read",
        (run, "--link", work / "file"): "--link",
        (run, "--out", work / "file"): "--out",
    }.items():
        answer = cli(["discover", *words])
        assert answer.code == 2 and told in answer.err and answer.err.count("\n") == 1, (words, answer)
    assert not (run / "groups.csv").exists()


def test_images_that_are_gone_or_changed_are_named(run: Path, work: Path, cli: Cli) -> None:
    table = run / "predictions.csv"
    original = table.read_text()
    first = next(row["path"] for row in rows_of(table) if row["label"] == "unknown")
    moved = work / "elsewhere.png"
    for text, told in {
        original.replace(first, str(moved)): "elsewhere.png of the images",
        original.replace(f"{first},unknown", f"{first},star"): "was changed",
        "path\n": "was changed",
    }.items():
        table.write_text(text)
        answer = cli(["discover", run])
        assert answer.code == 2 and told in answer.err and answer.err.count("\n") == 1, answer
    shutil.copyfile(next((work / "source").rglob("*.png")), moved)
    table.write_text(original.replace(first, str(moved)))
    answer = cli(["discover", run])
    assert answer.code == 2 and "has changed since the run" in answer.err
    table.unlink()
    assert "put the run's own file back" in cli(["discover", run]).err


def test_a_stop_in_the_middle_leaves_nothing_half(run: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = unida.load(run).discover()
    groupfiles.write_groups(found, run)
    (run / "groups" / "group-77.png").touch()  # of an earlier discovery, which had more

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("unida.data.sheet._draw_block", stop)
        patch.setattr(Path, "symlink_to", stop)
        with pytest.raises(KeyboardInterrupt):
            groupfiles.write_groups(found, run)
        with pytest.raises(KeyboardInterrupt):
            groupfiles.link_groups(found, work / "new", copy=False)
    assert not (run / "groups.csv").exists() and not list(run.rglob("*.tmp"))
    assert not (work / "new").exists() and not (work / "new.tmp").exists()
    groupfiles.write_groups(found, run)
    assert {path.stem for path in (run / "groups").iterdir()} == {group.name for group in found.groups}
    assert len(rows_of(run / "groups.csv")) == 16
