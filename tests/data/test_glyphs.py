"""The embedded data: pictures that are always the same, and folders that are whole or drawn anew."""

import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unida.data import glyphs
from unida.data.glyphs import CLASSES, DOMAINS, GlyphFolders, draw, write_glyphs
from unida.data.glyphs import paint as glyph_paint
from unida.data.glyphs.shapes import SHAPES, Part
from unida.errors import UserError

SMALL = {"shared": 2, "source_private": 1, "target_private": 2, "per_class": 2, "size": 32, "seed": 3}


def write_small(out: Path, **changes: object) -> GlyphFolders:
    return write_glyphs(out, **{**SMALL, **changes})  # type: ignore[arg-type]


def contents(out: Path) -> dict[str, bytes]:
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def digest_of_some_pictures() -> str:
    pixels = [draw(name, domain, 5, 96, number=7).tobytes() for name in CLASSES[:6] for domain in DOMAINS]
    return hashlib.sha256(b"".join(pixels)).hexdigest()


def test_at_least_32_classes_and_three_domains() -> None:
    assert len(CLASSES) == len(set(CLASSES)) >= 32
    assert len(DOMAINS) == len(set(DOMAINS)) >= 3


def test_no_two_classes_have_the_same_shape() -> None:
    areas = {name: glyph_paint._mask(SHAPES[name], 64) > 0.5 for name in CLASSES}
    for one, other in itertools.combinations(CLASSES, 2):
        overlap = (areas[one] & areas[other]).sum() / (areas[one] | areas[other]).sum()
        assert overlap < 0.95, (one, other)  # hexagon and circle, the nearest, share 0.93


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_class_stands_out_from_its_ground(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[list[Part]] = []
    place = glyph_paint._place

    def place_and_note(*arguments: object) -> list[Part]:
        placed.append(place(*arguments))  # type: ignore[arg-type]
        return placed[-1]

    monkeypatch.setattr(glyph_paint, "_place", place_and_note)
    for name in CLASSES:
        image = draw(name, domain, 0, 96)
        assert (image.mode, image.size) == ("RGB", (96, 96))
        pixels = np.asarray(image, dtype=float)
        inside = glyph_paint._mask(placed[-1], 96)[..., 0] > 0.9
        assert inside.mean() > 0.02, name
        if domain == "sketch":  # only its lines are dark
            assert 0.01 < (pixels.mean(axis=2) < 140).mean() < 0.5, name
        else:
            contrast = np.abs(pixels[inside].mean(axis=0) - pixels[~inside].mean(axis=0)).max()
            assert contrast > 30, name


@pytest.mark.parametrize("number", range(3))
def test_shapes_stay_inside_the_picture(number: int) -> None:
    for name in CLASSES:
        pixels = np.asarray(draw(name, "flat", 1, 64, number=number))
        rim = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        assert (rim == pixels[0, 0]).all(), name


def test_every_picture_is_different() -> None:
    drawn = {
        draw(name, domain, seed, 32, number=number).tobytes()
        for name in CLASSES
        for domain in DOMAINS
        for seed in (0, 1)
        for number in (0, 1)
    }
    assert len(drawn) == len(CLASSES) * len(DOMAINS) * 4


def test_the_same_arguments_draw_the_same_picture_in_another_process() -> None:
    here = digest_of_some_pictures()
    assert digest_of_some_pictures() == here
    script = f"""
import hashlib
from unida.data.glyphs import CLASSES, DOMAINS, draw
draw("key", "photo", 1, 64)  # an earlier picture must leave no trace
pixels = [draw(name, domain, 5, 96, number=7).tobytes() for name in CLASSES[:6] for domain in DOMAINS]
assert hashlib.sha256(b"".join(pixels)).hexdigest() == "{here}"
"""
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_size_changes_the_resolution_not_the_picture() -> None:
    for name in ("star", "key", "flag"):
        small = np.asarray(draw(name, "flat", 0, 48), dtype=float)
        large = np.asarray(draw(name, "flat", 0, 96).reduce(2), dtype=float)
        assert np.abs(small - large).mean() < 3


def test_folders_hold_the_drawings_of_the_right_classes(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    folders = write_small(tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert folders.source == tmp_path / "source"
    assert folders.target == tmp_path / "target"
    assert folders.shared + folders.source_private + folders.target_private == CLASSES[:5]
    assert [len(side) for side in (folders.shared, folders.source_private, folders.target_private)] == [
        2,
        1,
        2,
    ]
    sides = (
        (folders.source, "flat", folders.shared + folders.source_private),
        (folders.target, "photo", folders.shared + folders.target_private),
    )
    for folder, domain, names in sides:
        assert {path.name for path in folder.iterdir()} == set(names)
        for name in names:
            files = sorted((folder / name).iterdir())
            assert len(files) == 2
            for number, path in enumerate(files):
                with Image.open(path) as image:
                    assert image.tobytes() == draw(name, domain, 3, 32, number=number).tobytes()
    assert calls == [(done, 14) for done in range(1, 15)]


def test_a_whole_set_is_left_as_it_is(tmp_path: Path) -> None:
    first = write_small(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    calls: list[int] = []
    assert write_small(tmp_path, progress=lambda done, _: calls.append(done)) == first
    assert calls == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("last", [1, 5, 14])  # of 14: all files may be there, and one of them cut off
def test_an_interrupted_set_is_drawn_anew(tmp_path: Path, last: int) -> None:
    def stop(done: int, total: int) -> None:
        if done == last:
            raise KeyboardInterrupt

    half, whole = tmp_path / "half", tmp_path / "whole"
    with pytest.raises(KeyboardInterrupt):
        write_small(half, progress=stop)
    (half / "source" / CLASSES[0] / "0000.png").write_bytes(b"cut off")
    write_small(half)
    write_small(whole)
    assert contents(half) == contents(whole)


def test_a_set_that_lost_a_picture_or_its_marker_text_is_drawn_anew(tmp_path: Path) -> None:
    write_small(tmp_path)
    whole = contents(tmp_path)
    (tmp_path / "target" / CLASSES[0] / "0001.png").unlink()
    write_small(tmp_path)
    assert contents(tmp_path) == whole
    (tmp_path / "glyphs.json").write_text("{cut")
    (tmp_path / "source" / CLASSES[0] / "0001.png").write_bytes(b"")
    write_small(tmp_path)
    assert contents(tmp_path) == whole


def test_other_parameters_replace_the_set(tmp_path: Path) -> None:
    changed, fresh = tmp_path / "changed", tmp_path / "fresh"
    write_small(changed, shared=4, per_class=3)
    for changes in ({"seed": 4}, {"size": 24}, {"target_domain": "sketch"}, {"shared": 1}):
        write_small(changed, **changes)
        write_small(fresh, **changes)
        assert contents(changed) == contents(fresh)


def test_a_new_version_of_the_drawings_replaces_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_small(tmp_path)
    calls: list[int] = []
    monkeypatch.setattr(glyphs, "DRAWING_VERSION", glyphs.DRAWING_VERSION + 1)
    write_small(tmp_path, progress=lambda done, _: calls.append(done))
    assert len(calls) == 14


def test_pictures_do_not_depend_on_the_counts(tmp_path: Path) -> None:
    write_small(tmp_path / "few")
    write_small(tmp_path / "many", shared=3, source_private=2, per_class=4)
    few, many = contents(tmp_path / "few"), contents(tmp_path / "many")
    common = [name for name in few if name.endswith(".png") and name in many]
    assert len(common) == 10  # the three first classes of the source, two of the target, two pictures each
    assert all(few[name] == many[name] for name in common)


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"source_domain": "oil"}, "source_domain 'oil'"),
        ({"target_domain": "oil"}, "target_domain 'oil'"),
        ({"target_domain": "flat"}, "both 'flat'"),
        ({"shared": 0}, "shared is 0"),
        ({"source_private": -1}, "source_private is -1"),
        ({"target_private": -1}, "target_private is -1"),
        ({"per_class": 0}, "per_class is 0"),
        ({"size": 15}, "size is 15"),
        ({"shared": len(CLASSES) - 2}, f"there are {len(CLASSES)} glyph classes"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, object], culprit: str
) -> None:
    with pytest.raises(UserError) as caught:
        write_small(tmp_path / "out", **changes)
    assert culprit in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [(("unicorn", "flat"), "'unicorn'"), (("star", "oil"), "'oil'"), (("star", "flat", 0, 8), "size is 8")],
)
def test_what_cannot_be_drawn_is_named(arguments: tuple[object, ...], culprit: str) -> None:
    with pytest.raises(UserError, match=culprit):
        draw(*arguments, **({"seed": 0} if len(arguments) < 3 else {}))  # type: ignore[arg-type]


def test_pictures_of_others_are_never_removed(tmp_path: Path) -> None:
    theirs = tmp_path / "source" / CLASSES[0] / "0000.png"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"precious")
    with pytest.raises(UserError, match=r"0000\.png was not drawn here"):
        write_small(tmp_path)
    assert contents(tmp_path) == {theirs.relative_to(tmp_path).as_posix(): b"precious"}


def test_a_stray_file_in_an_earlier_set_is_never_removed(tmp_path: Path) -> None:
    write_small(tmp_path)
    (tmp_path / "target" / "notes.txt").write_text("precious")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"notes\.txt was not drawn here"):
        write_small(tmp_path, seed=4)
    assert contents(tmp_path) == before


def test_a_place_that_is_a_file_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("I am a file")
    with pytest.raises(UserError, match="choose another folder"):
        write_small(tmp_path / "out")
