"""Images are decoded once, whatever happens to the cache in between, and come out as they were decoded."""

import errno
import json
import logging
import multiprocessing
import os
import shutil
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from tiny_pixels import SIZE, make_images, open_in

from unida.data import packs as cache
from unida.data.folders import ImageFile, Progress, scan
from unida.data.images import ResizeMode, read_rgb, resize
from unida.data.pixels import open_pixels
from unida.errors import UserError


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were decoded."""
    paths: list[Path] = []
    original = cache.decode

    def counted(file: ImageFile, mode: ResizeMode, size: int) -> object:
        paths.append(file.path)
        return original(file, mode, size)

    monkeypatch.setattr(cache, "decode", counted)
    return paths


def pack_of(folder: Path) -> Path:
    (pack,) = (path for path in (folder / "cache" / "pixels").iterdir() if path.is_dir())
    return pack


@pytest.mark.parametrize("mode", ["squash", "short"])
@pytest.mark.parametrize("limit", [None, 0])
def test_every_image_is_what_decoding_gives(
    tmp_path: Path, files: list[ImageFile], mode: ResizeMode, limit: int | None
) -> None:
    for _ in range(2):  # built, then reused
        pixels = open_in(tmp_path, files, mode, memory_limit=limit)
        assert len(pixels) == len(files)
        assert pixels.files == files
        assert pixels.size == SIZE
        assert pixels.shapes.dtype == np.int64
        for i, file in enumerate(files):
            expected = resize(read_rgb(file.path), mode, SIZE)
            assert np.array_equal(pixels.image(i), expected)
            assert pixels.shapes[i].tolist() == list(expected.shape[:2])


def test_memory_limit_decides_between_memory_and_disk(tmp_path: Path, files: list[ImageFile]) -> None:
    total = len(files) * SIZE * SIZE * 3
    in_memory = open_in(tmp_path, files, memory_limit=total)
    mapped = open_in(tmp_path, files, memory_limit=total - 1)
    assert in_memory._buffer.flags.writeable
    assert not mapped._buffer.flags.writeable
    assert type(mapped._buffer) is np.ndarray  # indexing the memmap class itself is slow
    assert in_memory.image(0)[:1].shape == (1, SIZE, 3)


def test_decoded_once_and_progress_told(tmp_path: Path, files: list[ImageFile], decoded: list[Path]) -> None:
    calls: list[tuple[int, int]] = []
    open_in(tmp_path, files, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(i, len(files)) for i in range(1, len(files) + 1)]
    assert sorted(decoded) == sorted(file.path for file in files)
    open_in(tmp_path, files)
    assert len(decoded) == len(files)
    open_in(tmp_path, files, "short")
    assert len(decoded) == 2 * len(files)
    open_in(tmp_path, files[1:])
    assert len(decoded) == 3 * len(files) - 1


def test_renamed_folders_find_the_same_pack(tmp_path: Path, files: list[ImageFile], decoded: list[Path]) -> None:
    before = open_in(tmp_path, files)
    for i, file in enumerate(files):
        (tmp_path / "other" / f"class{i % 2}").mkdir(parents=True, exist_ok=True)
        shutil.copy(file.path, tmp_path / "other" / f"class{i % 2}" / f"{99 - int(file.path.stem)}.jpg")
    decoded.clear()
    after = open_in(tmp_path, scan(tmp_path / "other")[0])
    assert decoded == []
    assert np.array_equal(before._buffer, after._buffer)
    assert all(file.path.is_relative_to(tmp_path / "other") for file in after.files)


def test_decoder_version_makes_a_new_pack(
    tmp_path: Path, files: list[ImageFile], decoded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_in(tmp_path, files)
    monkeypatch.setattr(cache, "DECODER_VERSION", cache.DECODER_VERSION + 1)
    open_in(tmp_path, files)
    assert len(decoded) == 2 * len(files)


def truncate(pack: Path) -> None:
    os.truncate(pack / "pixels.u8", (pack / "pixels.u8").stat().st_size - 1)


def flip_byte(pack: Path) -> None:
    data = bytearray((pack / "pixels.u8").read_bytes())
    data[len(data) // 2] ^= 1
    (pack / "pixels.u8").write_bytes(data)


def garble_meta(pack: Path) -> None:
    (pack / "meta.json").write_bytes((pack / "meta.json").read_bytes()[:-20])


def empty_meta(pack: Path) -> None:
    (pack / "meta.json").write_text("{}")


def absurd_meta(pack: Path) -> None:
    meta = json.loads((pack / "meta.json").read_text())
    meta["shapes"][0] = [10**30, 1]
    (pack / "meta.json").write_text(json.dumps(meta))


def misfit_meta(pack: Path) -> None:
    meta = json.loads((pack / "meta.json").read_text())
    meta["bad"] = [[0, "no reason"]]
    (pack / "meta.json").write_text(json.dumps(meta))


def remove_pixels(pack: Path) -> None:
    (pack / "pixels.u8").unlink()


def remove_meta(pack: Path) -> None:
    (pack / "meta.json").unlink()


DAMAGES = [truncate, flip_byte, garble_meta, empty_meta, absurd_meta, misfit_meta, remove_pixels, remove_meta]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_pack_is_noticed_and_rebuilt(
    tmp_path: Path,
    files: list[ImageFile],
    decoded: list[Path],
    caplog: pytest.LogCaptureFixture,
    damage: object,
) -> None:
    expected = open_in(tmp_path, files)._buffer
    damage(pack_of(tmp_path))  # type: ignore[operator]
    decoded.clear()
    with caplog.at_level(logging.WARNING, "unida"):
        assert np.array_equal(open_in(tmp_path, files)._buffer, expected)
    assert [record.message.endswith("decoding again") for record in caplog.records] == [True]
    assert len(decoded) == len(files)
    open_in(tmp_path, files)
    assert len(decoded) == len(files)  # and it is sound again


def test_spot_check_looks_at_first_last_and_some_between(tmp_path: Path) -> None:
    files = scan(make_images(tmp_path / "images", 100))[0]
    open_pixels(files, resize="squash", size=2, cache_dir=tmp_path / "cache")
    pack = pack_of(tmp_path)
    sound = (pack / "pixels.u8").read_bytes()
    noticed = []
    for i in range(100):
        data = bytearray(sound)
        data[i * 12] ^= 1
        (pack / "pixels.u8").write_bytes(data)
        try:
            cache.read_pack(pack, 100)
        except cache.DamagedPackError:
            noticed.append(i)
    assert noticed[0] == 0
    assert noticed[-1] == 99
    assert 30 <= len(noticed) <= 40


def test_leftovers_of_killed_builds_are_removed_but_not_of_living_ones(tmp_path: Path, files: list[ImageFile]) -> None:
    open_in(tmp_path, files)
    pack = pack_of(tmp_path)
    half = pack.with_name(f"{pack.name}.tmp-1234")
    dead = pack.with_name("0123.tmp-1234")
    living = pack.with_name("4567.tmp-1234")
    pack.rename(half)
    truncate(half)
    dead.mkdir()
    living.mkdir()
    with FileLock(pack.with_name("4567.lock"), is_singleton=False):
        pixels = open_in(tmp_path, files)
    assert np.array_equal(pixels.image(0), resize(read_rgb(files[0].path), "squash", SIZE))
    assert not half.exists()
    assert not dead.exists()
    assert living.exists()


def open_slowly(files: list[ImageFile], cache_dir: Path, answers: Connection, go: Event) -> None:
    """In its own process: tell of the first decoded image, then (images decoded here, sum of all pixels)."""
    original, count = cache.decode, 0

    def slow(file: ImageFile, mode: ResizeMode, size: int) -> object:
        nonlocal count
        count += 1
        time.sleep(0.05)
        return original(file, mode, size)

    cache.decode = slow  # type: ignore[assignment]
    go.wait()
    report: Progress = lambda done, total: answers.send("first") if done == 1 else None  # noqa: E731
    pixels = open_pixels(files, resize="short", size=SIZE, cache_dir=cache_dir, progress=report)
    answers.send((count, int(pixels._buffer.astype(np.int64).sum())))


def test_one_killed_then_two_processes_at_once_build_once(tmp_path: Path, files: list[ImageFile]) -> None:
    context = multiprocessing.get_context("fork")  # a fresh interpreter would spend seconds on imports
    go_first, go_both = context.Event(), context.Event()
    pipes = [context.Pipe(duplex=False) for _ in range(3)]
    processes = [
        context.Process(target=open_slowly, args=(files, tmp_path / "cache", pipe[1], event))
        for pipe, event in zip(pipes, (go_first, go_both, go_both), strict=True)
    ]
    try:
        for process in processes:
            process.start()
        go_first.set()
        assert pipes[0][0].poll(30)
        processes[0].kill()
        processes[0].join()
        assert len(list((tmp_path / "cache" / "pixels").glob("*.tmp-*"))) == 1
        go_both.set()
        for process in processes[1:]:
            process.join(30)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
    results = []
    for receiver, _ in pipes[1:]:
        answer = receiver.recv()
        results.append(receiver.recv() if answer == "first" else answer)
    pixels = open_in(tmp_path, files, "short")
    assert sorted(count for count, _ in results) == [0, len(files)]
    assert {total for _, total in results} == {int(pixels._buffer.astype(np.int64).sum())}
    pack_of(tmp_path)  # one pack, and nothing half-written


@pytest.fixture
def with_bad(tmp_path: Path) -> list[ImageFile]:
    root = make_images(tmp_path / "images")
    (root / "broken.jpg").write_text("not a picture")
    (root / "empty.png").write_bytes(b"")
    return scan(root)[0]


def test_bad_images_are_skipped_and_remembered(tmp_path: Path, with_bad: list[ImageFile], decoded: list[Path]) -> None:
    good = [file for file in with_bad if file.path.stem.isdigit()]
    for _ in range(2):
        pixels = open_in(tmp_path, with_bad, "short")
        assert pixels.files == good
        assert {Path(s.path).name: s.reason for s in pixels.skipped} == {
            "broken.jpg": "not an image, or damaged from its first bytes",
            "empty.png": "empty file",
        }
        for i, file in enumerate(good):
            assert np.array_equal(pixels.image(i), resize(read_rgb(file.path), "short", SIZE))
    assert len(decoded) == len(with_bad)


def test_strict_names_the_first_bad_file_fresh_and_cached(tmp_path: Path, with_bad: list[ImageFile]) -> None:
    first = next(file for file in with_bad if not file.path.stem.isdigit())
    messages = []
    for _ in range(2):
        with pytest.raises(UserError) as caught:
            open_in(tmp_path, with_bad, strict=True)
        messages.append(str(caught.value))
        open_in(tmp_path, with_bad)
    assert messages[0] == messages[1]
    assert messages[0].startswith(str(first.path))
    assert "\n" not in messages[0]
    assert "--strict" in messages[0]


def test_nothing_but_bad_images(tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    files = scan(tmp_path)[0]
    for _ in range(2):
        pixels = open_in(tmp_path, files)
        assert len(pixels) == 0
        assert pixels.shapes.shape == (0, 2)
        assert len(pixels.skipped) == 1
    assert len(open_in(tmp_path, [])) == 0


def test_file_that_changed_or_went_since_the_scan(tmp_path: Path, files: list[ImageFile]) -> None:
    content = files[3].path.read_bytes()
    files[3].path.write_bytes(files[4].path.read_bytes())
    with pytest.raises(UserError, match=rf"{files[3].path}.*changed.*run again"):
        open_in(tmp_path, files)
    files[3].path.unlink()
    with pytest.raises(UserError, match=rf"{files[3].path}.*no such file.*run again"):
        open_in(tmp_path, files)
    assert not any(path.is_dir() for path in (tmp_path / "cache" / "pixels").iterdir())
    files[3].path.write_bytes(content)
    assert len(open_in(tmp_path, files)) == len(files)


def test_full_disk(tmp_path: Path, files: list[ImageFile], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(stream: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_sync_file", full)
        with pytest.raises(UserError, match=rf"{tmp_path / 'cache'}: disk full.*--cache") as caught:
            open_in(tmp_path, files)
    assert "\n" not in str(caught.value)
    assert not any(path.is_dir() for path in (tmp_path / "cache" / "pixels").iterdir())
    assert len(open_in(tmp_path, files)) == len(files)


def test_cache_that_cannot_be_a_folder(tmp_path: Path, files: list[ImageFile]) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match=r"cache: cannot be used as cache .*--cache"):
        open_in(tmp_path, files)
