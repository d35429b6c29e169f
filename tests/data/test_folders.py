"""What a scan finds, in which order, and what it remembers."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from unida.data import folders
from unida.data.folders import (
    ImageFile,
    class_of,
    find_duplicates,
    in_threads,
    labelled_by_folder,
    scan,
    scan_listed,
)
from unida.errors import UserError


def write(root: Path, contents: dict[str, str]) -> Path:
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose bytes were read."""
    names: list[str] = []
    original = folders._digest_or_error

    def counted(item: folders._Found) -> str | OSError:
        names.append(item.path.name)
        return original(item)

    monkeypatch.setattr(folders, "_digest_or_error", counted)
    return names


def test_finds_images_and_says_why_not_the_rest(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"cat/a.JPG": "a", "cat/deep/er/b.png": "bb", "c.webp": "", "cat/notes.txt": "x", "LICENSE": "x", "d.gif": "x"},
    )
    write(tmp_path, {".hidden/d.jpg": "d", "cat/.e.jpg": "e"})
    files, skipped = scan(tmp_path)
    assert {f.relative: (f.path, f.bytes) for f in files} == {
        "cat/a.JPG": (tmp_path / "cat/a.JPG", 1),
        "cat/deep/er/b.png": (tmp_path / "cat/deep/er/b.png", 2),
        "c.webp": (tmp_path / "c.webp", 0),
    }
    by_name = {f.relative: f.digest for f in files}
    assert by_name["cat/deep/er/b.png"] == blake2b(b"bb", digest_size=16).hexdigest()
    assert {(s.path, s.reason) for s in skipped} == {
        (str(tmp_path / "cat/notes.txt"), "not an image file: .txt"),
        (str(tmp_path / "LICENSE"), "not an image file: no suffix"),
        (str(tmp_path / "d.gif"), "a picture in a format that is not read (.gif): convert it to jpg or png"),
    }


def test_order_does_not_depend_on_names(tmp_path: Path) -> None:
    contents = [str(i) for i in range(40)]
    first = write(tmp_path / "first", {f"class{i % 3}/{i:02}.jpg": text for i, text in enumerate(contents)})
    second = write(tmp_path / "second", {f"{40 - i:02}.png": text for i, text in enumerate(contents)})
    digests = [f.digest for f in scan(first)[0]]
    assert digests == [f.digest for f in scan(second)[0]] == sorted(digests)
    assert len(set(digests)) == 40


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {"cat/a.jpg": "a"})
    outside = write(tmp_path / "outside", {"b.jpg": "b"})
    (root / "dog").symlink_to(outside)
    (root / "cat" / "again").symlink_to(root)
    (root / "cat" / "self.jpg").symlink_to(root / "cat" / "self.jpg")
    (root / "cat" / "gone.jpg").symlink_to(root / "nothing.jpg")
    files, skipped = scan(root)
    assert sorted(f.relative for f in files) == ["cat/a.jpg", "dog/b.jpg"]
    reasons = {Path(s.path).name: s.reason for s in skipped}
    assert reasons["again"] == "link back to a folder above it"
    assert reasons["gone.jpg"] == "link to nothing"
    assert "symbolic links" in reasons["self.jpg"]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    files, skipped = scan(tmp_path)
    assert files == []
    assert [s.reason for s in skipped] == ["not a regular file"]


def test_missing_root_or_file_as_root(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        scan(tmp_path / "none")
    write(tmp_path, {"a.jpg": "a"})
    with pytest.raises(UserError, match="not a folder"):
        scan(tmp_path / "a.jpg")


def test_unreadable_file_and_folder_are_skipped_even_when_remembered() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        root = write(Path(folder) / "root", {"a.jpg": "a", "b.jpg": "b", "closed/c.jpg": "c"})
        cache = Path(folder) / "cache"
        scan(root, cache)
        (root / "a.jpg").chmod(0)
        (root / "closed").chmod(0)
        was_root = os.geteuid() == 0
        if was_root:
            os.seteuid(65534)  # root reads everything
        try:
            files, skipped = scan(root, cache)
        finally:
            if was_root:
                os.seteuid(0)
            (root / "closed").chmod(0o755)
    assert [f.relative for f in files] == ["b.jpg"]
    assert [(Path(s.path).name, s.reason) for s in skipped] == [
        ("a.jpg", "permission denied"),
        ("closed", "folder cannot be listed: permission denied"),
    ]


def test_memo_saves_reading_again_what_did_not_change(tmp_path: Path, hashed: list[str]) -> None:
    root = write(tmp_path / "root", {"a.jpg": "a", "b.jpg": "b", "c.jpg": "c"})
    cache = tmp_path / "cache"
    first = scan(root, cache)
    assert sorted(hashed) == ["a.jpg", "b.jpg", "c.jpg"]
    hashed.clear()
    assert scan(root, cache) == first
    assert hashed == []
    write(root, {"b.jpg": "other", "d.jpg": "d"})
    files, _ = scan(root, cache)
    assert sorted(hashed) == ["b.jpg", "d.jpg"]
    assert {f.digest for f in files if f.relative == "b.jpg"} == {blake2b(b"other", digest_size=16).hexdigest()}


def test_memo_notices_same_size_and_restored_times(tmp_path: Path) -> None:
    root, cache = write(tmp_path / "root", {"a.jpg": "old"}), tmp_path / "cache"
    scan(root, cache)
    before = (root / "a.jpg").stat()
    (root / "a.jpg").write_text("new")
    os.utime(root / "a.jpg", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert scan(root, cache)[0][0].digest == blake2b(b"new", digest_size=16).hexdigest()


def test_memo_notices_another_file_under_the_same_name(tmp_path: Path, hashed: list[str]) -> None:
    root, cache = write(tmp_path / "root", {"a.jpg": "old"}), tmp_path / "cache"
    scan(root, cache)
    os.link(root / "a.jpg", tmp_path / "kept")  # so that the inode is not used again
    shutil.copy2(root / "a.jpg", tmp_path / "copy")
    os.replace(tmp_path / "copy", root / "a.jpg")
    hashed.clear()
    scan(root, cache)
    assert hashed == ["a.jpg"]


def test_damaged_memo_is_ignored(tmp_path: Path) -> None:
    root, cache = write(tmp_path / "root", {"a.jpg": "a", "b.jpg": "b"}), tmp_path / "cache"
    expected = scan(root, cache)
    (memo,) = (cache / "digests").iterdir()
    good = memo.read_bytes()
    first_digest = good.index(expected[0][0].digest.encode())
    flipped = good[:first_digest] + bytes([good[first_digest] ^ 1]) + good[first_digest + 1 :]
    for damaged in (b"", b"\xff\xfe", good[:-9], b"12\n{}", b"0\n[1]", b"null", flipped):
        memo.write_bytes(damaged)
        assert scan(root, cache) == expected
        assert memo.read_bytes() == good


def test_memo_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write(tmp_path / "root", {"a.jpg": "a"})
    (tmp_path / "cache").write_text("a file where the cache folder should be")
    with caplog.at_level(logging.WARNING, "unida"):
        files, _ = scan(root, tmp_path / "cache")
    assert len(files) == 1
    assert "not remembered" in caplog.text


def test_progress_reaches_the_total(tmp_path: Path) -> None:
    root = write(tmp_path, {f"{i}.jpg": str(i) for i in range(20)})
    calls: list[tuple[int, int]] = []
    scan(root, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(i, 20) for i in range(1, 21)]


def test_scan_listed(tmp_path: Path, hashed: list[str]) -> None:
    root, cache = write(tmp_path / "root", {"x/a.jpg": "a", "x/b.jpg": "b", "c.txt": "c"}), tmp_path / "cache"
    write(tmp_path, {"outside.jpg": "o"})
    whole, _ = scan(root, cache)
    hashed.clear()
    paths = [root / "x/b.jpg", root / "x/b.jpg", tmp_path / "outside.jpg", root / "c.txt", root / "none.jpg"]
    files, skipped = scan_listed(paths, root, cache)
    assert {f.relative: f.path for f in files} == {"x/b.jpg": paths[0], "../outside.jpg": paths[2]}
    assert files == sorted(files, key=lambda f: f.digest)
    assert {Path(s.path).name: s.reason for s in skipped} == {
        "c.txt": "not an image file: .txt",
        "none.jpg": "no such file or directory",
    }
    assert hashed == ["outside.jpg"]  # b.jpg is known from the scan
    hashed.clear()
    assert scan(root, cache)[0] == whole
    assert hashed == []  # the list did not make a.jpg forgotten
    assert {class_of(f) for f in files} == {"x", None}


def file_at(relative: str, digest: str = "0") -> ImageFile:
    return ImageFile(Path("root") / relative, relative, 1, digest)


def test_labels_come_from_the_first_folder() -> None:
    files = [file_at("dog/a.jpg"), file_at("cat/kitten/b.jpg"), file_at("dog/c.jpg")]
    classes, labels = labelled_by_folder(files)
    assert classes == ["cat", "dog"]
    assert labels.dtype == np.int64
    assert labels.tolist() == [1, 0, 1]
    with pytest.raises(UserError, match=r"stray\.jpg.*move it into the sub-folder of its class"):
        labelled_by_folder([*files, file_at("stray.jpg")])


def test_duplicates_are_grouped() -> None:
    files = [file_at("a.jpg", "1"), file_at("b.jpg", "2"), file_at("c.jpg", "1"), file_at("d.jpg", "3")]
    assert find_duplicates(files) == [[files[0], files[2]]]


def test_in_threads_keeps_order_and_takes_few_items_at_a_time() -> None:
    taken = 0

    def numbers() -> Iterator[int]:
        nonlocal taken
        for i in range(1000):
            taken += 1
            yield i

    ahead = []
    for done, result in enumerate(in_threads(lambda i: i * i, numbers())):
        assert result == done * done
        ahead.append(taken - done)
    assert len(ahead) == 1000
    assert max(ahead) <= 4 * (os.cpu_count() or 1) + 1
