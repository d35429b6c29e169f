"""What users get wrong with `adapt`: one line on stderr that names the culprit and the way out, nothing touched."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bad_input import (
    AdaptWords,
    Options,
    assert_refuses,
    copies_in_a_class,
    copies_in_both_folders,
    copies_in_two_classes,
    picture,
)

from unida.data.benchmarks import load_benchmark

# Wrong options, or what spoils a folder with source/ and target/ and says with which options; then parts of the line.
Case = tuple[Options | Callable[[Path], Options], tuple[str, ...]]


# ---- folders ---------------------------------------------------------------------------------------------------------


def empty_target(work: Path) -> Options:
    (work / "nothing").mkdir()
    return {"--target": "nothing"}


def target_without_images(work: Path) -> Options:
    (work / "texts").mkdir()
    (work / "texts" / "notes.txt").write_text("no picture")
    return {"--target": "texts"}


def broken_target(work: Path) -> Options:
    (work / "broken").mkdir()
    for number in range(3):
        (work / "broken" / f"{number}.jpg").write_text(f"no picture {number}")
    return {"--target": "broken"}


def source_is_a_file(work: Path) -> Options:
    (work / "source.zip").write_bytes(b"PK")
    return {"--source": "source.zip"}


def empty_source(work: Path) -> Options:
    (work / "nothing").mkdir()
    return {"--source": "nothing"}


def one_class(work: Path) -> Options:
    for name in ("house", "heart", "arrow"):
        shutil.rmtree(work / "source" / name)
    return {}


def images_in_the_root(work: Path) -> Options:
    picture(work / "source" / "stray.png", 1)
    return {}


def class_of_one_image(work: Path) -> Options:
    picture(work / "source" / "moon" / "only.png", 1)
    return {}


def class_of_broken_images(work: Path) -> Options:
    for number, path in enumerate(sorted((work / "source" / "house").iterdir())):
        path.write_text(f"no picture {number}")
    return {}


def target_is_source(work: Path) -> Options:
    return {"--target": work / "source"}


def target_links_to_source(work: Path) -> Options:
    (work / "link").symlink_to(work / "source")
    return {"--target": "link"}


def target_inside_source(work: Path) -> Options:
    return {"--target": work / "source" / "star"}


def source_inside_target(work: Path) -> Options:
    shutil.move(work / "source", work / "target" / "inside")
    return {"--source": work / "target" / "inside"}


def labels_in_a_flat_target(work: Path) -> Options:
    picture(work / "target" / "flat.png", 1)
    return {"--target-labels": True}


FOLDERS: list[Case] = [
    (empty_target, ("nothing", "holds no image", "point it at a folder")),
    (target_without_images, ("texts", "holds no image", "point it at a folder")),
    (broken_target, ("broken", "has 3 images, but none can be read", "replace them")),
    ({"--source": "gone/away"}, ("gone/away", "no such folder", "check the path")),
    ({"--target": "gone/away"}, ("gone/away", "no such folder", "check the path")),
    (source_is_a_file, ("source.zip", "is a file", "give the folder")),
    (empty_source, ("--source", "nothing", "holds no image", "one sub-folder of images per class")),
    (one_class, ("--source", "one class", "'star'", "two or more")),
    (images_in_the_root, ("stray.png", "no class folder", "sub-folder of its class")),
    (class_of_one_image, ("--source", "'moon'", "1 readable image", "--min-images-per-class 1")),
    (class_of_broken_images, ("--source", "'house'", "can be read", "remove it")),
    (target_is_source, ("--source and --target are the same folder", "source", "give two")),
    (target_links_to_source, ("--source and --target are the same folder", "source", "give two")),
    (target_inside_source, ("--source", "--target", "one inside the other", "move them apart")),
    (source_inside_target, ("--source", "--target", "one inside the other", "move them apart")),
    (labels_in_a_flat_target, ("--target-labels", "flat.png", "move it into one")),
    ({"--source": None}, ("--source DIR is missing", "two folders", "--benchmark")),
    ({"--target": None}, ("--target DIR is missing", "two folders", "--benchmark")),
]

# ---- copies ----------------------------------------------------------------------------------------------------------


def copied_class(work: Path) -> Options:
    shutil.copytree(work / "source" / "arrow", work / "source" / "zebra")
    return {"--duplicates": "drop"}


def copied_target(work: Path) -> Options:
    shutil.copytree(work / "source" / "star", work / "copy")
    return {"--target": "copy", "--duplicates": "drop"}


def two_copies(work: Path) -> Options:
    for seed, name in enumerate(("star", "house")):
        shutil.copy(picture(work / "source" / name / "one.png", seed), work / "source" / name / "two.png")
    return {}


COPIES: list[Case] = [
    (two_copies, ("same picture (and 1 more such picture):", "--duplicates drop")),
    (copies_in_a_class, ("star/one.png", "star/two.png", "same picture", "--duplicates drop")),
    (copies_in_two_classes, ("star/one.png", "house/two.png", "same picture", "--duplicates drop")),
    (copies_in_both_folders, ("source/star/one.png", "target/star/two.png", "same picture", "--duplicates keep")),
    (copied_class, ("'zebra'", "copy", "--duplicates keep")),
    (copied_target, ("--target", "copy", "--duplicates keep")),
]

# ---- benchmarks ------------------------------------------------------------------------------------------------------


def office31(work: Path, *domains: str, leave_out: str = "") -> Options:
    """Two pictures of every class in the named domains."""
    for seed, (domain, name) in enumerate((d, n) for d in domains for n in load_benchmark("office31").classes):
        for number in range(2 if name != leave_out else 0):
            picture(work / "office31" / domain / name / f"{number}.png", 2 * seed + number)
    (work / "office31").mkdir(exist_ok=True)
    return {
        "--source": None,
        "--target": None,
        "--benchmark": "office31",
        "--root": "office31",
        "--pair": "amazon:dslr",
        "--setting": "unida",
    }


BENCHMARKS: list[Case] = [
    (lambda work: office31(work, "amazon"), ("no folder of domain 'dslr'", "office31/dslr", "found there: amazon")),
    (lambda work: office31(work, "amazon", "dslr", leave_out="bike"), ("amazon", "'bike'", "unida data verify")),
    (lambda work: {**office31(work), "--benchmark": "ofice31"}, ("'ofice31'", "did you mean 'office31'?")),
    (lambda work: {**office31(work), "--pair": "amazon:dslrr"}, ("'dslrr'", "did you mean 'dslr'?", "webcam (W)")),
    (lambda work: {**office31(work), "--pair": "amazon"}, ("'amazon'", "source:target")),
    (lambda work: {**office31(work), "--pair": "amazon:A"}, ("amazon on both sides", "dslr, webcam")),
    (lambda work: {**office31(work), "--pair": None}, ("--pair SOURCE:TARGET is missing", "amazon:dslr")),
    (lambda work: {**office31(work), "--setting": "unidaa"}, ("no setting 'unidaa'", "cda", "unida")),
    (lambda work: {**office31(work), "--root": None}, ("--root DIR is missing", "office31")),
    (lambda work: {**office31(work), "--root": "gone"}, ("gone is not a folder", "Office-31")),
    (lambda work: {**office31(work), "--source": "source"}, ("--source and --benchmark exclude each other",)),
    ({"--pair": "amazon:dslr"}, ("--pair needs --benchmark NAME", "leave --pair out")),
]

# ---- options ---------------------------------------------------------------------------------------------------------


def garbage_weights(work: Path) -> Options:
    (work / "weights.safetensors").write_bytes(b"no weights at all")
    return {"--weights": "weights.safetensors"}


OPTIONS: list[Case] = [
    ({"--crop": 41}, ("--crop 41", "--image-size 40", "lower --crop")),
    ({"--steps": 0}, ("--steps is 0", "at least 1")),
    ({"--batch-size": -1}, ("--batch-size is -1", "at least 1")),
    ({"--image-size": 0}, ("--image-size is 0", "at least 1")),
    ({"--steps": 2**63}, (f"--steps is {2**63}", f"at most {2**63 - 1:,}")),
    ({"--batch-size": 1_000_001}, ("--batch-size is 1000001", "at most 1,000,000")),
    ({"--image-size": 4097}, ("--image-size is 4097", "at most 4,096")),
    ({"--lr": "nan"}, ("--lr is nan", "finite and above 0")),
    ({"--backbone-lr": "inf"}, ("--backbone-lr is inf", "finite and above 0")),
    ({"--momentum": 1}, ("--momentum is 1.0", "at least 0 and below 1")),
    ({"--weight-decay": -1}, ("--weight-decay is -1.0", "at least 0")),
    ({"--seed": -1}, ("--seed is -1", "at least 0")),
    ({"--steps": "many"}, ("--steps", "'many'", "unida adapt --help")),
    ({"--resize": "crush"}, ("--resize", "'crush'", "one of squash, short;", "unida adapt --help")),
    ({"--stpes": 3}, ("'--stpes'", "did you mean '--steps'?", "unida adapt --help")),
    ({"--entropy-wieght=1": True}, ("'--entropy-wieght'", "did you mean '--entropy-weight'?")),
    ({"--steps": None, "stray": True}, ("'stray'", "unida adapt --help")),
    ({"--method": "ovnet"}, ("no method 'ovnet'", "did you mean 'ovanet'?", "unida methods")),
    ({"--method": "source-only", "--entropy-weight": 1}, ("'--entropy-weight'", "unida adapt --help")),
    ({"--oracle-best": True}, ("--oracle-best", "--eval-every N")),
    ({"--accelerator": "abacus"}, ("--accelerator abacus", "cpu")),
    ({"--weights": "gone.pth"}, ("gone.pth", "--weights takes a .safetensors or .pth file, 'hub@REVISION' or 'none'")),
    (garbage_weights, ("weights.safetensors", "is damaged, or no weight file")),
    ({"--backbone": "resnt18"}, ("'resnt18'", "did you mean 'resnet18")),
    ({"--backbone": "tf_efficientnet_lite"}, ("did you mean 'tf_efficientnet_lite0'?",)),
    ({"--backbone": "xcit_nano_12_p16_224", "--train": "tail"}, ("--train tail", "'xcit_nano_12", "all or head")),
    ({"--backbone": "test_vit", "--crop": 30}, ("--crop 30", "'test_vit'", "divisible by patch size")),
]

# ---- the run's folder ------------------------------------------------------------------------------------------------


def out_below_a_file(work: Path) -> Options:
    (work / "file").write_text("in the way")
    return {"--out": "file/run"}


def out_is_a_file(work: Path) -> Options:
    (work / "file").write_text("in the way")
    return {"--out": "file"}


def out_with_other_files(work: Path) -> Options:
    (work / "thesis").mkdir()
    (work / "thesis" / "chapter.tex").write_text("years of work")
    return {"--out": "thesis"}


def out_that_stood_empty(work: Path) -> Options:
    (work / "mine").mkdir()
    return {"--out": "mine", "--weights": "gone.pth"}


def out_links_into_the_target(work: Path) -> Options:
    (work / "link").symlink_to(work / "target")
    return {"--out": "link/run"}


OUTSIDE = ("which is read", "choose a folder outside it")

OUT: list[Case] = [
    ({"--out": "source/run"}, ("--out source/run lies inside", "/source,", *OUTSIDE)),
    ({"--out": "target/runs/one"}, ("--out target/runs/one lies inside", "/target,", *OUTSIDE)),
    (out_links_into_the_target, ("--out link/run lies inside", "/target,", *OUTSIDE)),
    ({"--out": None}, ("--out DIR is missing", "results")),
    (out_below_a_file, ("--out file/run", "choose another folder")),
    (out_is_a_file, ("--out file", "choose a new folder")),
    (out_with_other_files, ("--out thesis", "other files", "choose a new folder")),
    (out_that_stood_empty, ("gone.pth",)),
]


def named(cases: list[Case]) -> list[Any]:
    """A case is called as the function that makes it, or by the first part of what is said."""
    names = [getattr(wrong, "__name__", "<lambda>") for wrong, _ in cases]
    return [
        pytest.param(wrong, parts, id=parts[0] if name == "<lambda>" else name)
        for (wrong, parts), name in zip(cases, names, strict=True)
    ]


@pytest.mark.parametrize(("wrong", "parts"), named(FOLDERS + COPIES + BENCHMARKS + OPTIONS + OUT))
def test_adapt_refuses(
    wrong: Options | Callable[[Path], Options], parts: tuple[str, ...], work: Path, adapt_words: AdaptWords, cli: Any
) -> None:
    words = adapt_words(wrong(work) if callable(wrong) else wrong)
    assert_refuses(cli, words, work, parts)


@pytest.mark.parametrize(
    ("changes", "part"),
    [({"--weights": "gone.pth"}, "no such weight file"), ({"--backbone": "resnt18"}, "no backbone 'resnt18'")],
    ids=["weights", "backbone"],
)
def test_the_model_is_looked_for_before_images_are_read(
    changes: Options, part: str, work: Path, adapt_words: AdaptWords, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the images were read")

    monkeypatch.setattr("unida.data.domains.scan", read)
    assert_refuses(cli, adapt_words(changes), work, (part,))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"--stpes": 3}, ("'--stpes'", "did you mean '--steps'?")),
        ({"--weights": None, "--backbone": "resnet18"}, ("no weights for 'resnet18'", "--weights FILE", "none")),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_real_process_refuses_in_one_line(
    changes: Options,
    parts: tuple[str, ...],
    work: Path,
    adapt_words: AdaptWords,
    shell: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Before torch is loaded, and after: whatever that prints."""
    no_downloads = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path_factory.mktemp("hub"))}
    assert_refuses(partial(shell, **no_downloads), adapt_words(changes), work, parts)
