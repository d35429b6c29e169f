"""Layouts, spellings and list files on generated folders; real data where UNIDA_DATA points at it."""

import logging
import os
from pathlib import Path

import pytest

from unida.data.benchmarks import domain_files, listed_files, load_benchmark, locate, verify
from unida.errors import UserError

OFFICE31 = load_benchmark("office31")
HOME = load_benchmark("office-home")
DOMAINNET = load_benchmark("domainnet")
VISDA = load_benchmark("visda2017")


def put(folder: Path, count: int = 1, suffix: str = ".jpg") -> Path:
    """Make a folder with so many empty files: nothing here decodes."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number:03}{suffix}").touch()
    return folder


def full_copy(root: Path) -> Path:
    """Office-31 with the published number of (empty) files."""
    for (domain, _), per_class in OFFICE31.counts.items():
        for name, count in per_class.items():
            put(root / domain / "images" / name, count)
    return root


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return full_copy(tmp_path_factory.mktemp("office31"))


@pytest.mark.parametrize(
    "layout",
    [
        "amazon/images",
        "amazon",
        "Amazon",
        "office31/amazon/images",
        "Office-31/amazon",
        "domain_adaptation_images/amazon/images",
    ],
)
@pytest.mark.parametrize("folder", ["back_pack", "backpack", "Back Pack", "back-pack"])
def test_office31_layouts_and_class_spellings(tmp_path: Path, layout: str, folder: str) -> None:
    expected = put(tmp_path / layout / folder)
    put(tmp_path / layout / "mug")
    assert locate(OFFICE31, tmp_path, "A") == {"back_pack": expected, "mug": tmp_path / layout / "mug"}


@pytest.mark.parametrize("folder", ["Real World", "RealWorld", "Real_World", "real_world", "real-world", "Real"])
def test_spellings_of_real_world(tmp_path: Path, folder: str) -> None:
    expected = put(tmp_path / "OfficeHomeDataset_10072016" / folder / "Alarm_Clock")
    assert locate(HOME, tmp_path, "Rw") == {"Alarm_Clock": expected}


def test_visda_class_train_is_not_taken_for_the_domain_train(tmp_path: Path) -> None:
    for domain in ("train", "validation"):
        for name in ("train", "truck"):
            put(tmp_path / "visda-2017" / domain / name)
    assert locate(VISDA, tmp_path, "train") == {
        name: tmp_path / "visda-2017" / "train" / name for name in ("train", "truck")
    }
    assert locate(VISDA, tmp_path, "real")["train"] == tmp_path / "visda-2017" / "validation" / "train"


def test_an_images_folder_beside_class_folders_is_left_alone(tmp_path: Path) -> None:
    put(tmp_path / "dslr" / "images", 2)
    put(tmp_path / "dslr" / "mug")
    assert locate(OFFICE31, tmp_path, "dslr") == {"mug": tmp_path / "dslr" / "mug"}


def test_classes_come_in_benchmark_order(tmp_path: Path) -> None:
    for name in ("bottle", "mug", "bike"):
        put(tmp_path / "dslr" / name)
    assert list(locate(OFFICE31, tmp_path, "dslr")) == ["bike", "mug", "bottle"]


def test_a_missing_domain_names_the_folder_and_those_found(tmp_path: Path) -> None:
    put(tmp_path / "amazon" / "mug")
    put(tmp_path / "webcam" / "mug")
    with pytest.raises(UserError) as error:
        locate(OFFICE31, tmp_path, "dslr")
    assert str(tmp_path) in str(error.value)
    assert "found there: amazon, webcam" in str(error.value)
    assert "\n" not in str(error.value)


def test_folders_that_are_not_there_or_hold_no_class(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is not a folder"):
        locate(OFFICE31, tmp_path / "nowhere", "dslr")
    put(tmp_path / "dslr" / "giraffe")
    with pytest.raises(UserError, match="dslr has no class folder of Office-31: expected a folder such as 'back_pack'"):
        locate(OFFICE31, tmp_path, "dslr")


def test_two_folders_of_one_class_or_domain_are_ambiguous(tmp_path: Path) -> None:
    put(tmp_path / "dslr" / "back_pack")
    put(tmp_path / "dslr" / "backpack")
    with pytest.raises(UserError, match="are both class 'back_pack': keep one"):
        locate(OFFICE31, tmp_path, "dslr")
    put(tmp_path / "home" / "Real World" / "Bed")
    put(tmp_path / "home" / "RealWorld" / "Bed")
    with pytest.raises(UserError, match="are both domain 'Real World': keep one"):
        locate(HOME, tmp_path / "home", "Rw")


def test_domain_files_are_images_by_suffix_alone(tmp_path: Path) -> None:
    folder = put(tmp_path / "dslr" / "mug", 2)
    (folder / "photo.PNG").touch()
    for other in ("notes.txt", ".hidden.jpg", "._000.jpg", "Thumbs.db"):
        (folder / other).touch()
    files = domain_files(OFFICE31, tmp_path, "dslr")
    assert files == [(folder / name, "mug") for name in ("000.jpg", "001.jpg", "photo.PNG")]
    assert domain_files(OFFICE31, tmp_path, "dslr", "evaluate") == files


def test_a_domain_without_images_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "dslr" / "mug", 0)
    with pytest.raises(UserError, match="no image in the class folders of dslr"):
        domain_files(OFFICE31, tmp_path, "dslr")


def domainnet(root: Path) -> Path:
    """Two classes of three paintings each, lists that put two in train and one in test."""
    label = {"axe": 11, "teddy-bear": 303}
    lines: dict[str, list[str]] = {"train": [], "test": []}
    for name, number in label.items():
        put(root / "painting" / name, 3)
        for image in range(3):
            part = "test" if image == 2 else "train"
            lines[part].append(f"painting/{name}/{image:03}.jpg {number}")
    for part, texts in lines.items():
        (root / f"painting_{part}.txt").write_text("\n".join(texts) + "\n")
    return root


def test_domainnet_reads_the_official_lists(tmp_path: Path) -> None:
    root = domainnet(tmp_path)
    assert DOMAINNET.classes.index("axe") == 11
    assert DOMAINNET.classes.index("teddy-bear") == 303
    train = domain_files(DOMAINNET, root, "P", "adapt")
    assert [(path.relative_to(root / "painting").as_posix(), name) for path, name in train] == [
        ("axe/000.jpg", "axe"),
        ("axe/001.jpg", "axe"),
        ("teddy-bear/000.jpg", "teddy-bear"),
        ("teddy-bear/001.jpg", "teddy-bear"),
    ]
    test = domain_files(DOMAINNET, root, "P", "evaluate")
    assert [path.name for path, _ in test] == ["002.jpg"] * 2
    assert listed_files(DOMAINNET, root, "P", "adapt").note == ""


@pytest.mark.parametrize("place", ["lists", "txt", "splits", "painting", "DomainNet"])
def test_lists_and_folders_may_lie_elsewhere(tmp_path: Path, place: str) -> None:
    root = domainnet(tmp_path / "DomainNet")
    if place == "DomainNet":  # root one level up, folder in another spelling than the list
        (root / "painting").rename(root / "Painting")
    else:
        (root / place).mkdir(exist_ok=True)
        for file in root.glob("*.txt"):
            file.rename(root / place / file.name)
    files = domain_files(DOMAINNET, tmp_path, "painting", "evaluate")
    assert len(files) == 2
    assert all(path.is_file() for path, _ in files)


def test_without_lists_all_images_are_used_and_a_note_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = domainnet(tmp_path)
    (root / "painting_test.txt").unlink()
    listing = listed_files(DOMAINNET, root, "painting", "evaluate")
    assert len(listing.files) == 6
    assert "no list file painting_test.txt" in listing.note
    assert "all 6 images" in listing.note
    with caplog.at_level(logging.WARNING):
        domain_files(DOMAINNET, root, "painting", "evaluate")
    assert listing.note in caplog.text


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("painting/axe/000.jpg", "expected 'path label'"),
        ("painting/axe/000.jpg eleven", "expected 'path label'"),
        ("painting/axe/000.jpg 345", "a label from 0 to 344"),
        ("painting/axe/000.jpg 12", "label 12 is 'backpack' but the folder is 'axe'"),
        ("painting/axe/099.jpg 11", "1 of its 5 images are not there"),
        ("painting/zebra/000.jpg 343", "1 of its 5 images are not there"),
    ],
)
def test_bad_list_lines_are_named(tmp_path: Path, line: str, complaint: str) -> None:
    root = domainnet(tmp_path)
    with (root / "painting_train.txt").open("a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(UserError, match=complaint) as error:
        domain_files(DOMAINNET, root, "painting", "adapt")
    assert "painting_train.txt" in str(error.value)
    assert "\n" not in str(error.value)


def test_visda_image_list_is_optional(tmp_path: Path) -> None:
    put(tmp_path / "train" / "bus", 3, ".png")
    assert listed_files(VISDA, tmp_path, "train", "adapt").note == ""
    assert len(domain_files(VISDA, tmp_path, "train")) == 3
    (tmp_path / "train" / "image_list.txt").write_text("bus/001.png 2\n")
    assert domain_files(VISDA, tmp_path, "train") == [(tmp_path / "train" / "bus" / "001.png", "bus")]


def test_a_list_without_a_domain_in_its_name_counts_in_the_domain_folder_alone(tmp_path: Path) -> None:
    put(tmp_path / "train" / "bus", 3)
    (tmp_path / "image_list.txt").write_text("bus/001.jpg 2\n")
    assert len(domain_files(VISDA, tmp_path, "train")) == 3


def test_verify_agrees_with_a_complete_copy(complete: Path) -> None:
    report = verify(OFFICE31, complete)
    assert report.ok
    assert report.problems == ()
    rows = {(row.setting, row.domain): row for row in report.settings}
    amazon = rows["unida", "amazon"]
    assert (amazon.source.total, amazon.target.shared, amazon.target.private) == (1808, 958, 1009)
    lines = report.lines()
    assert "agrees with the published numbers" in lines[0]
    assert any(line.split() == ["amazon", "all", "31", "2817", "2817"] for line in lines)
    assert any(line.split() == ["osda", "dslr", "157", "157", "175", "0.527", "agrees"] for line in lines)
    assert str(report) == "\n".join(lines)


def test_verify_tells_missing_and_extra(tmp_path: Path) -> None:
    root = full_copy(tmp_path)
    dslr, amazon = root / "dslr" / "images", root / "amazon" / "images"
    (dslr / "mug" / "000.jpg").unlink()
    (dslr / "pen" / "copy.jpg").touch()
    for file in (dslr / "ruler").iterdir():
        file.unlink()
    (dslr / "ruler").rmdir()
    put(amazon / "giraffe")
    for folder in sorted((root / "webcam").rglob("*"), reverse=True):
        folder.rmdir() if folder.is_dir() else folder.unlink()
    (root / "webcam").rmdir()
    report = verify(OFFICE31, root)
    assert not report.ok
    assert set(report.problems) == {
        f"webcam: no folder in {root}",
        "dslr / mug: 7 images, 8 published (1 missing)",
        "dslr / pen: 11 images, 10 published (1 extra)",
        "dslr / ruler: 0 images, 7 published (7 missing)",
        "amazon / giraffe: extra folder, no class of the benchmark",
    }
    text = str(report)
    assert "5 problem(s)" in text
    assert "323, 157 + 175" in text  # the published numbers stand beside the wrong ones
    assert {row.domain for row in report.parts} == {"amazon", "dslr"}


def test_verify_shortens_long_lists_of_problems(tmp_path: Path) -> None:
    put(tmp_path / "dslr" / "mug", 8)
    dslr = [line for line in verify(OFFICE31, tmp_path).problems if line.startswith("dslr")]
    assert len(dslr) == 9
    assert dslr[-1] == "dslr: … and 22 more of the same kind"


def test_verify_counts_domainnet_by_list(tmp_path: Path) -> None:
    root = domainnet(tmp_path)
    put(root / "painting" / "axe", 4)  # 003.jpg is in no list
    with (root / "painting_test.txt").open("a") as file:
        file.write("painting/axe/077.jpg 11\n")
    report = verify(DOMAINNET, root)
    found = {(row.domain, row.part): row.found for row in report.parts}
    assert found == {
        ("painting", "train"): {"axe": 2, "teddy-bear": 2},
        ("painting", "test"): {"axe": 1, "teddy-bear": 1},
    }
    assert "painting / axe/077.jpg: named in painting_test.txt, not there" in report.problems
    assert "painting: 1 image in no official list, not used" in report.notes
    row = next(row for row in report.settings if row.setting == "unida")
    assert (row.source.shared, row.target.shared, row.target.private) == (2, 1, 1)


def test_verify_counts_domainnet_by_folder_without_lists(tmp_path: Path) -> None:
    root = domainnet(tmp_path)
    (root / "painting_train.txt").unlink()
    report = verify(DOMAINNET, root)
    assert [(row.part, row.found_total, row.published_total) for row in report.parts] == [("all", 6, 72266)]
    assert "no painting_train.txt, so the whole folder is counted" in report.notes[0]


def test_verify_uses_the_total_where_classes_are_not_published(tmp_path: Path) -> None:
    put(tmp_path / "train" / "bus", 3)
    report = verify(VISDA, tmp_path)
    assert "train: 3 images, 152397 published (152394 missing)" in report.problems
    assert "train / aeroplane: class folder missing" in report.problems
    assert any(line.startswith("unida") and line.endswith("not known") for line in report.lines())


@pytest.mark.skipif("UNIDA_DATA" not in os.environ, reason="set UNIDA_DATA to the folder that holds office31")
@pytest.mark.parametrize("root", ["office31", "."])
def test_real_office31_agrees(root: str) -> None:
    report = verify(OFFICE31, Path(os.environ["UNIDA_DATA"]) / root)
    assert report.ok, str(report)
    assert sum(row.found_total for row in report.parts) == 4110
