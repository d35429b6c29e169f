"""What went wrong on the disk is noticed before it is used: flipped bits, and a folder where a file should be."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_pixels import make_images, open_in

from unida.cli import main
from unida.data import packs
from unida.data.domains import open_domains
from unida.data.folders import ImageFile, scan, scan_listed
from unida.data.glyphs import write_glyphs
from unida.data.images import ResizeMode, read_rgb, resize
from unida.data.options import DataOptions
from unida.data.pixels import Pixels, decode_in_memory, open_pixels
from unida.errors import UserError

Read = Callable[[Pixels, int], object]


def pack_of(folder: Path) -> Path:
    (meta,) = (folder / "cache" / "pixels").glob("*/meta.json")
    return meta.parent


def flip_a_bit(file: Path, byte: int, bit: int = 0) -> None:
    """In place: a process that has mapped the file sees it too."""
    with file.open("r+b") as stream:
        stream.seek(byte)
        (value,) = stream.read(1)
        stream.seek(byte)
        stream.write(bytes([value ^ 1 << bit]))


def damage_image(pack: Path, pixels: Pixels, i: int) -> None:
    """Its last byte, of which a small window shows nothing."""
    flip_a_bit(pack / "pixels.u8", int((pixels.shapes.prod(axis=1) * 3)[: i + 1].sum()) - 1)


def by_image(pixels: Pixels, i: int) -> object:
    return pixels.image(i)


def by_window(pixels: Pixels, i: int) -> object:
    corners = np.zeros(2, dtype=np.int64)
    return pixels.windows(np.array([0, i]), corners, corners)


def by_subset(pixels: Pixels, i: int) -> object:
    return by_image(pixels.subset([1, i]), 1)


def by_loading(pixels: Pixels, i: int) -> object:
    return pixels.in_memory()


def by_loading_a_part(pixels: Pixels, i: int) -> object:
    return pixels.subset([0, i]).in_memory()


READS = [by_image, by_window, by_subset, by_loading, by_loading_a_part]


@pytest.mark.parametrize("mode", ["squash", "short"])
@pytest.mark.parametrize("read", READS)
def test_a_damaged_image_is_never_given_out(
    tmp_path: Path, files: list[ImageFile], mode: ResizeMode, read: Read
) -> None:
    pixels = open_in(tmp_path, files, mode, memory_limit=0)
    pack = pack_of(tmp_path)
    damage_image(pack, pixels, 5)
    with pytest.raises(UserError, match=r"damaged at image 5 .*run again.*--resume") as caught:
        read(pixels, 5)
    assert str(pack) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not pack.exists()
    again = open_in(tmp_path, files, mode, memory_limit=0)
    read(again, 5)
    assert np.array_equal(again.image(5), resize(read_rgb(files[5].path), mode, again.size))


@pytest.mark.parametrize("limit", [0, None])
def test_no_image_of_many_can_be_damaged_unnoticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: int | None
) -> None:
    """Some are found when the pack is opened, and the pack is rebuilt; the others when they are read."""
    files = scan(make_images(tmp_path / "images", 50))[0]

    def opened() -> Pixels:
        return open_pixels(files, resize="squash", size=2, cache_dir=tmp_path / "cache", memory_limit=limit)

    sound, rebuilt, refused = [opened().image(i).copy() for i in range(50)], 0, 0
    for i in range(50):
        flip_a_bit(pack_of(tmp_path) / "pixels.u8", i * 12 + i % 12, i % 8)
        caplog.clear()
        pixels = opened()
        rebuilt += len(caplog.records)
        try:
            assert all(np.array_equal(pixels.image(j), sound[j]) for j in range(50))
        except UserError:
            refused += 1
            opened()
    assert rebuilt + refused == 50
    assert min(rebuilt, refused) > 10


def test_an_image_is_compared_once_by_all_subsets_together(tmp_path: Path, files: list[ImageFile]) -> None:
    """Once it was read, its bytes are not summed up again: otherwise every step would pay for it."""
    pixels = open_in(tmp_path, files, memory_limit=0)
    part = pixels.subset([7, 5])
    part.image(1)
    for i in (5, 7):
        damage_image(pack_of(tmp_path), pixels, i)
    pixels.image(5)
    by_window(pixels, 5)
    with pytest.raises(UserError, match="damaged at image 7"):
        pixels.image(7)


def test_what_is_loaded_is_compared_even_if_it_was_read_before(tmp_path: Path, files: list[ImageFile]) -> None:
    """The disk may have been read a second time."""
    pixels = open_in(tmp_path, files, memory_limit=0)
    pixels.image(5)
    damage_image(pack_of(tmp_path), pixels, 5)
    with pytest.raises(UserError, match="damaged at image 5"):
        pixels.in_memory()


def test_what_was_loaded_outlives_the_pack(tmp_path: Path, files: list[ImageFile]) -> None:
    pixels = open_in(tmp_path, files, memory_limit=0)
    loaded = pixels.in_memory()
    damage_image(pack_of(tmp_path), pixels, 5)
    assert np.array_equal(loaded.image(5), resize(read_rgb(files[5].path), "squash", loaded.size))


def test_images_that_were_never_on_disk_have_nothing_to_be_compared_with(files: list[ImageFile]) -> None:
    pixels = decode_in_memory(files, "short", 24)
    for read in READS:
        read(pixels, 5)
    assert np.array_equal(pixels.image(5), resize(read_rgb(pixels.files[5].path), "short", 24))


def test_a_pack_that_cannot_be_removed_is_named(
    tmp_path: Path, files: list[ImageFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: Path) -> None:
        raise PermissionError

    pixels = open_in(tmp_path, files, memory_limit=0)
    pack = pack_of(tmp_path)
    damage_image(pack, pixels, 5)
    monkeypatch.setattr(packs, "remove", forbidden)
    with pytest.raises(UserError, match=rf"{pack} are damaged at image 5: remove that folder, then run again"):
        pixels.image(5)


def test_a_flipped_bit_of_the_meta_changes_nothing(
    tmp_path: Path, files: list[ImageFile], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "images" / "broken.png").write_text("no picture")
    files = scan(tmp_path / "images")[0][-4:]
    sound = open_in(tmp_path, files, "short", memory_limit=0)
    size = (pack_of(tmp_path) / "meta.json").stat().st_size
    tried = range(0, size, 5)
    for byte in tried:
        flip_a_bit(pack_of(tmp_path) / "meta.json", byte, byte % 7)
        pixels = open_in(tmp_path, files, "short", memory_limit=0)
        assert np.array_equal(pixels.shapes, sound.shapes)
        assert (pixels.files, pixels.skipped) == (sound.files, sound.skipped)
        assert all(np.array_equal(pixels.image(i), sound.image(i)) for i in range(len(sound)))
    assert len(caplog.records) == len(tried)  # each was noticed


def test_a_pack_of_an_older_version_is_built_anew(
    tmp_path: Path, files: list[ImageFile], caplog: pytest.LogCaptureFixture
) -> None:
    open_in(tmp_path, files)
    meta = pack_of(tmp_path) / "meta.json"
    content = json.loads(meta.read_bytes())
    del content["checksum"]
    meta.write_text(json.dumps(content))
    for _ in range(2):  # the second time, it is sound
        with caplog.at_level(logging.WARNING, "unida"):
            open_in(tmp_path, files)
    assert [record.message.endswith("decoding again") for record in caplog.records] == [True]


def test_a_run_that_meets_damage_continues_with_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = write_glyphs(tmp_path / "glyphs", shared=2, source_private=1, target_private=1, per_class=3, size=40)
    data = ["--source", str(folders.source), "--target", str(folders.target), "--cache", str(tmp_path / "cache")]
    sizes = ["--image-size", "40", "--crop", "32", "--batch-size", "4", "--steps", "2"]
    model = ["--backbone", "test_resnet.r160_in1k", "--weights", "none", "--train", "all", "--accelerator", "cpu"]
    model += ["--frame", "off"]  # measuring it would meet the damage before the run begins
    words = ["adapt", *data, *sizes, *model, "--out"]
    main([*words, str(tmp_path / "first")])
    for file in (tmp_path / "cache" / "pixels").glob("*/pixels.u8"):
        flip_a_bit(file, 40 * 40 * 3)  # in the second image
    monkeypatch.setattr(packs, "SPOT_CHECKS", 1)
    capsys.readouterr()
    for more in ([], ["--resume"]):  # of the two packs, the run meets one after the other
        with pytest.raises(SystemExit) as end:
            main([*words, str(tmp_path / "second"), *more])
        assert end.value.code == 2
        (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error"))
        assert "damaged at image 1 and were removed: run again or continue with --resume" in line
    main(["adapt", "--out", str(tmp_path / "second"), "--resume"])
    first, second = (tmp_path / name / "predictions.csv" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def folder_for(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "something").write_text("in it")


def folder_for_meta(pack: Path) -> None:
    folder_for(pack / "meta.json")


def folder_for_pixels(pack: Path) -> None:
    folder_for(pack / "pixels.u8")


def pipe_for_pixels(pack: Path) -> None:
    """To open it would wait for ever."""
    (pack / "pixels.u8").unlink()
    os.mkfifo(pack / "pixels.u8")


def file_for_pack(pack: Path) -> None:
    pack.rename(pack.with_name("gone"))
    pack.write_text("a file")


def link_to_nothing_for_pack(pack: Path) -> None:
    pack.rename(pack.with_name("gone"))
    pack.symlink_to("nowhere")


def link_for_pack(pack: Path) -> None:
    """What it points to may be anybody's."""
    pack.rename(pack.with_name("elsewhere"))
    (pack.with_name("elsewhere") / "meta.json").write_text("damaged")
    pack.symlink_to("elsewhere")


WRONG_KINDS = [
    folder_for_meta,
    folder_for_pixels,
    pipe_for_pixels,
    file_for_pack,
    link_to_nothing_for_pack,
    link_for_pack,
]


@pytest.mark.parametrize("spoil", WRONG_KINDS)
def test_a_pack_with_things_of_the_wrong_kind_is_built_anew(
    tmp_path: Path, files: list[ImageFile], caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None]
) -> None:
    open_in(tmp_path, files)
    pack = pack_of(tmp_path)
    spoil(pack)
    for _ in range(2):  # the second time, it is sound
        with caplog.at_level(logging.WARNING, "unida"):
            pixels = open_in(tmp_path, files, memory_limit=0)
        assert np.array_equal(pixels.image(5), resize(read_rgb(files[5].path), "squash", pixels.size))
    assert [record.message.endswith("decoding again") for record in caplog.records] == [True]
    assert pack.is_dir() and not pack.is_symlink()
    assert spoil is not link_for_pack or (pack.with_name("elsewhere") / "pixels.u8").exists()


def test_a_folder_for_the_digests_of_files_makes_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, cache = make_images(tmp_path / "images"), tmp_path / "cache"
    expected = scan(root, cache)
    (memo,) = (cache / "digests").iterdir()
    folder_for(memo)
    for _ in range(2):
        assert scan(root, cache) == expected
    assert memo.is_file()
    assert caplog.records == []


@pytest.mark.parametrize("place", ["cache", "cache/digests", "cache/pixels", "cache/features", "file/deep/cache"])
def test_a_file_for_a_folder_of_the_cache_is_one_clear_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    culprit = tmp_path / ("file" if place.startswith("file") else place)
    culprit.parent.mkdir(exist_ok=True)
    culprit.write_text("a file")
    cache = tmp_path / (place if place.startswith("file") else "cache")
    for name in ("source/cat", "source/dog", "target"):
        make_images(tmp_path / name, 2 + len(name))
    options = DataOptions(source=tmp_path / "source", target=tmp_path / "target", cache=cache)
    with pytest.raises(UserError, match=rf"{cache}: cannot be used as cache \({culprit} is not a folder\).*--cache"):
        open_domains(options, visible=False)
    assert caplog.records == []
    assert culprit.read_text() == "a file"


def test_a_folder_for_the_lock_is_one_clear_line(tmp_path: Path, files: list[ImageFile]) -> None:
    open_in(tmp_path, files)
    pack = pack_of(tmp_path)
    lock = pack.with_name(f"{pack.name}.lock")
    folder_for(lock)
    (pack / "meta.json").unlink()
    with pytest.raises(UserError, match=rf"cache: cannot be used as cache \(is a directory: {lock}\).*--cache"):
        open_in(tmp_path, files)


def test_paths_that_only_look_alike_are_different_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`link/../x.png` lies beside the folder that the link points to, and not beside the link."""
    make_images(tmp_path / "here", 1)
    make_images(tmp_path / "there", 2)
    (tmp_path / "there" / "deep").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "there" / "deep")
    monkeypatch.chdir(tmp_path / "here")
    files, skipped = scan_listed([Path("0.png"), Path("link/../0.png")], root=Path())
    assert skipped == []
    there = scan(tmp_path / "there")[0]
    assert {str(file.path): file.digest for file in files} == {
        "0.png": scan(tmp_path / "here")[0][0].digest,
        "link/../0.png": next(file.digest for file in there if file.path.name == "0.png"),
    }
    assert len({file.digest for file in files}) == 2
