"""What users get wrong: one line on stderr that names the culprit and the way out, exit code 2, nothing touched."""

import csv
import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unida.data.benchmarks import load_benchmark
from unida.data.glyphs import GlyphFolders

Options = dict[str, Any]  # an option's value; None leaves it out, True makes it a flag
Arrange = Callable[[Path], Options]  # spoils a folder that holds source/ and target/, and says with what options


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its bytes, and every folder; links are not followed."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        is_file = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = path.read_bytes() if is_file else None
    return found


def words_of(options: Options) -> list[str]:
    given = {name: value for name, value in options.items() if value is not None}
    return [word for name, value in given.items() for word in ((name,) if value is True else (name, str(value)))]


def assert_one_line(err: str, parts: tuple[str, ...]) -> None:
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in err
    for part in parts:
        assert part in lines[0]


def picture(path: Path, seed: int) -> Path:
    """Noise, so that no two seeds give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    return path


def bomb() -> bytes:
    """A PNG of a few bytes that says it has 60,000 × 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(1000))), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.fixture
def work(tmp_path: Path, glyphs: GlyphFolders, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own with source/ and target/; also the working folder, so that strays are seen."""
    shutil.copytree(glyphs.source, tmp_path / "source")
    shutil.copytree(glyphs.target, tmp_path / "target")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def adapt_words(work: Path, tiny: dict[str, str]) -> Callable[[Options], list[str]]:
    """`adapt` on the two folders with some options changed."""

    def words(changes: Options) -> list[str]:
        usual = {"--source": work / "source", "--target": work / "target", "--out": work / "runs/deep/one", **tiny}
        return ["adapt", *words_of({**usual, **changes})]

    return words


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


FOLDERS: list[tuple[Arrange, tuple[str, ...]]] = [
    (empty_target, ("nothing", "holds no image", "point it at a folder")),
    (target_without_images, ("texts", "holds no image", "point it at a folder")),
    (broken_target, ("broken", "none of its 3 images can be read", "mend or replace")),
    (lambda work: {"--source": "gone/away"}, ("gone/away", "no such folder", "check the path")),
    (lambda work: {"--target": "gone/away"}, ("gone/away", "no such folder", "check the path")),
    (source_is_a_file, ("source.zip", "is a file", "give the folder")),
    (empty_source, ("--source", "nothing", "holds no image", "one sub-folder of images per class")),
    (one_class, ("--source", "one class", "'star'", "two or more")),
    (images_in_the_root, ("stray.png", "no class folder", "one sub-folder per class")),
    (class_of_one_image, ("--source", "'moon'", "1 readable image", "--min-images-per-class 1")),
    (class_of_broken_images, ("--source", "'house'", "can be read", "mend or remove")),
    (target_is_source, ("--source and --target are the same folder", "source", "give two")),
    (target_links_to_source, ("--source and --target are the same folder", "source", "give two")),
    (target_inside_source, ("--source", "--target", "one inside the other", "move them apart")),
    (source_inside_target, ("--source", "--target", "one inside the other", "move them apart")),
    (labels_in_a_flat_target, ("--target-labels", "flat.png", "move it into one")),
    (lambda work: {"--source": None}, ("--source DIR is missing", "two folders", "--benchmark")),
    (lambda work: {"--target": None}, ("--target DIR is missing", "two folders", "--benchmark")),
]

# ---- copies ----------------------------------------------------------------------------------------------------------


def copies_in_a_class(work: Path) -> Options:
    shutil.copy(picture(work / "source" / "star" / "one.png", 1), work / "source" / "star" / "two.png")
    return {}


def copies_in_two_classes(work: Path) -> Options:
    shutil.copy(picture(work / "source" / "star" / "one.png", 1), work / "source" / "house" / "two.png")
    return {}


def copies_in_both_folders(work: Path) -> Options:
    shutil.copy(picture(work / "source" / "star" / "one.png", 1), work / "target" / "star" / "two.png")
    return {}


def copied_class(work: Path) -> Options:
    shutil.copytree(work / "source" / "arrow", work / "source" / "zebra")
    return {"--duplicates": "drop"}


def copied_target(work: Path) -> Options:
    shutil.copytree(work / "source" / "star", work / "copy")
    return {"--target": "copy", "--duplicates": "drop"}


COPIES: list[tuple[Arrange, tuple[str, ...]]] = [
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


BENCHMARKS: list[tuple[Arrange, tuple[str, ...]]] = [
    (lambda work: office31(work, "amazon"), ("no folder of domain 'dslr'", "office31/dslr", "found there: amazon")),
    (lambda work: office31(work, "amazon", "dslr", leave_out="bike"), ("amazon", "'bike'", "unida data verify")),
    (lambda work: {**office31(work), "--benchmark": "ofice31"}, ("'ofice31'", "did you mean office31?")),
    (lambda work: {**office31(work), "--pair": "amazon:dslrr"}, ("'dslrr'", "did you mean dslr?", "webcam (W)")),
    (lambda work: {**office31(work), "--pair": "amazon"}, ("'amazon'", "source:target")),
    (lambda work: {**office31(work), "--pair": "amazon:A"}, ("amazon on both sides", "dslr, webcam")),
    (lambda work: {**office31(work), "--pair": None}, ("--pair SOURCE:TARGET is missing", "amazon:dslr")),
    (lambda work: {**office31(work), "--setting": "unidaa"}, ("no setting 'unidaa'", "cda", "unida")),
    (lambda work: {**office31(work), "--root": None}, ("--root DIR is missing", "office31")),
    (lambda work: {**office31(work), "--root": "gone"}, ("gone is not a folder", "Office-31")),
    (lambda work: {**office31(work), "--source": "source"}, ("--source and --benchmark exclude each other",)),
    (lambda work: {"--pair": "amazon:dslr"}, ("--pair goes with --benchmark NAME", "leave --pair out")),
]

# ---- options ---------------------------------------------------------------------------------------------------------


def garbage_weights(work: Path) -> Options:
    (work / "weights.safetensors").write_bytes(b"no weights at all")
    return {"--weights": "weights.safetensors"}


OPTIONS: list[tuple[Arrange, tuple[str, ...]]] = [
    (lambda work: {"--crop": 41}, ("--crop 41", "--image-size 40", "lower it")),
    (lambda work: {"--steps": 0}, ("--steps is 0", "above 0")),
    (lambda work: {"--batch-size": -1}, ("--batch-size is -1", "above 0")),
    (lambda work: {"--image-size": 0}, ("--image-size is 0", "above 0")),
    (lambda work: {"--lr": "nan"}, ("--lr is nan", "above 0, and finite")),
    (lambda work: {"--backbone-lr": "inf"}, ("--backbone-lr is inf", "above 0, and finite")),
    (lambda work: {"--momentum": 1}, ("--momentum is 1.0", "below 1")),
    (lambda work: {"--weight-decay": -1}, ("--weight-decay is -1.0", "not be below 0")),
    (lambda work: {"--seed": -1}, ("--seed is -1", "not be below 0")),
    (lambda work: {"--steps": "many"}, ("--steps", "'many'", "unida adapt --help")),
    (lambda work: {"--resize": "crush"}, ("--resize", "'crush'", "'squash', 'short'", "unida adapt --help")),
    (lambda work: {"--stpes": 3}, ("'--stpes'", "did you mean --steps?", "unida adapt --help")),
    (lambda work: {"--entropy-wieght=1": True}, ("'--entropy-wieght'", "did you mean --entropy-weight?")),
    (lambda work: {"--steps": None, "stray": True}, ("'stray'", "unida adapt --help")),
    (lambda work: {"--method": "ovnet"}, ("no method 'ovnet'", "did you mean 'ovanet'?", "unida methods")),
    (lambda work: {"--method": "source-only", "--entropy-weight": 1}, ("'--entropy-weight'", "unida adapt --help")),
    (lambda work: {"--oracle-best": True}, ("--oracle-best", "--eval-every N")),
    (lambda work: {"--accelerator": "abacus"}, ("--accelerator abacus", "cpu")),
    (lambda work: {"--weights": "gone.pth"}, ("gone.pth", "--weights takes a .safetensors or .pth file, or 'none'")),
    (garbage_weights, ("weights.safetensors", "re-save its state_dict as safetensors")),
    (lambda work: {"--backbone": "resnt18"}, ("'resnt18'", "did you mean resnet18")),
    (lambda work: {"--backbone": "test_vit", "--crop": 30}, ("--crop 30", "'test_vit'", "divisible by patch size")),
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


OUT: list[tuple[Arrange, tuple[str, ...]]] = [
    (lambda work: {"--out": None}, ("--out DIR is missing", "results")),
    (out_below_a_file, ("--out file/run", "choose another folder")),
    (out_is_a_file, ("--out file", "choose a new folder")),
    (out_with_other_files, ("--out thesis", "other files", "choose a new folder")),
    (out_that_stood_empty, ("gone.pth",)),
]


def named(cases: list[tuple[Arrange, tuple[str, ...]]]) -> list[Any]:
    return [
        pytest.param(arrange, parts, id=parts[0] if arrange.__name__ == "<lambda>" else arrange.__name__)
        for arrange, parts in cases
    ]


@pytest.mark.parametrize(("arrange", "parts"), named(FOLDERS + COPIES + BENCHMARKS + OPTIONS + OUT))
def test_adapt_refuses(
    arrange: Arrange, parts: tuple[str, ...], work: Path, adapt_words: Callable[[Options], list[str]], cli: Any
) -> None:
    words = adapt_words(arrange(work))
    before = contents(work)
    answer = cli(words)
    assert answer.code == 2
    assert_one_line(answer.err, parts)
    assert answer.out == ""
    assert contents(work) == before


@pytest.mark.parametrize("arrange", [copies_in_a_class, copies_in_two_classes, copies_in_both_folders])
@pytest.mark.parametrize(("choice", "lost"), [("drop", 1), ("keep", 0)])
def test_copies_are_dropped_or_kept_on_demand(
    arrange: Arrange,
    choice: str,
    lost: int,
    work: Path,
    adapt_words: Callable[[Options], list[str]],
    cli: Any,
) -> None:
    arrange(work)
    files = {side: sum(path.is_file() for path in (work / side).rglob("*")) for side in ("source", "target")}
    side_of_copy = "target" if arrange is copies_in_both_folders else "source"
    files[side_of_copy] -= lost
    words = adapt_words({"--duplicates": choice, "--target-labels": True})
    answer = cli(words)
    assert answer.code == 0, answer.err
    assert f"source: {files['source']} images of 4 classes; target: {files['target']} images" in answer.err
    run = work / "runs/deep/one"
    # Evaluation looks at the same images as the run did.
    assert cli(["evaluate", run, "--json", "again.json"]).code == 0
    assert count_in_json(work / "again.json") == count_in_json(run / "metrics.json") == files["target"]


def count_in_json(path: Path) -> int:
    """How many images were evaluated."""
    rows = json.loads(path.read_text())["per_class"]
    return sum(row["n"] for row in rows if row["kind"] != "unknown")  # that row sums up the private ones


# ---- another run's folder --------------------------------------------------------------------------------------------


@pytest.fixture
def copied_run(work: Path, finished: Path) -> Path:
    """A finished run that the test may spoil."""
    return Path(shutil.copytree(finished, work / "run"))


RESUME: list[tuple[Options, tuple[str, ...]]] = [
    ({}, ("--out", "already holds a run", "--resume", "another folder")),
    ({"--resume": True, "--steps": 9}, ("--steps is 9", "started with 3", "leave it out", "another --out")),
    ({"--resume": True, "--seed": 1}, ("--seed is 1", "started with 0", "leave it out")),
    ({"--resume": True, "--batch-size": 36}, ("--batch-size is 36", "started with 4", "leave it out")),
    ({"--resume": True, "--method": "source-only"}, ("--method is source-only", "started with ovanet")),
    ({"--resume": True, "--entropy-weight": 0.5}, ("--entropy-weight is 0.5", "started with 0.1")),
    ({"--resume": True, "--source": "elsewhere"}, ("--source is", "elsewhere", "was started with", "leave it out")),
]


@pytest.mark.parametrize(("changes", "parts"), RESUME, ids=lambda value: " ".join(map(str, value)) or "no resume")
def test_a_run_is_neither_overwritten_nor_resumed_as_another(
    changes: Options,
    parts: tuple[str, ...],
    copied_run: Path,
    glyphs: GlyphFolders,
    adapt_words: Callable[[Options], list[str]],
    cli: Any,
) -> None:
    same = {"--source": glyphs.source, "--target": glyphs.target, "--target-labels": True, "--eval-every": 2}
    before = contents(copied_run.parent)
    answer = cli(adapt_words({**same, "--out": copied_run, **changes}))
    assert answer.code == 2
    assert_one_line(answer.err, parts)
    assert contents(copied_run.parent) == before


def test_a_run_resumed_with_its_own_options_ends_as_it_was(
    copied_run: Path, glyphs: GlyphFolders, adapt_words: Callable[[Options], list[str]], cli: Any
) -> None:
    same = {"--source": glyphs.source, "--target": glyphs.target, "--target-labels": True, "--eval-every": 2}
    before = contents(copied_run)
    answer = cli(adapt_words({**same, "--out": copied_run, "--resume": True}))
    assert answer.code == 0, answer.err
    after = contents(copied_run)
    for name in ("predictions.csv", "checkpoint/model.safetensors", "metrics.jsonl"):
        assert after[name] == before[name]


# ---- predict and evaluate --------------------------------------------------------------------------------------------


def no_run(work: Path) -> list[str]:
    return ["predict", "source", "target", "--csv", "answers.csv"]


def no_folder(work: Path) -> list[str]:
    return ["predict", "gone", "target", "--csv", "answers.csv"]


def evaluate_no_run(work: Path) -> list[str]:
    return ["evaluate", "source"]


def unfinished(work: Path) -> list[str]:
    (work / "run/metrics.json").unlink()  # what a run writes last
    return ["predict", "run", "target", "--csv", "answers.csv"]


def evaluate_unfinished(work: Path) -> list[str]:
    (work / "run/metrics.json").unlink()  # what a run writes last
    return ["evaluate", "run"]


def damaged_config(work: Path) -> list[str]:
    (work / "run/config.yaml").write_text("data: [")
    return ["evaluate", "run"]


def config_of_something_else(work: Path) -> list[str]:
    (work / "run/config.yaml").write_text("version: 3\n")
    return ["evaluate", "run"]


def damaged_model(work: Path) -> list[str]:
    model = work / "run/checkpoint/model.safetensors"
    model.write_bytes(model.read_bytes()[:5000])
    return ["predict", "run", "target", "--csv", "answers.csv"]


def csv_below_a_file(work: Path) -> list[str]:
    return ["predict", "run", "target", "--csv", "run/log.txt/answers.csv"]


def csv_is_a_folder(work: Path) -> list[str]:
    return ["predict", "run", "target", "--csv", "target"]


def csv_is_here(work: Path) -> list[str]:
    return ["predict", "run", "target", "--csv", "."]


def no_images_folder(work: Path) -> list[str]:
    return ["predict", "run", "gone", "--csv", "answers.csv"]


def images_is_a_file(work: Path) -> list[str]:
    return ["predict", "run", "run/log.txt", "--csv", "answers.csv"]


def missing_arguments(work: Path) -> list[str]:
    return ["predict", "run"]


def flat_evaluation(work: Path) -> list[str]:
    picture(work / "flat" / "one.png", 1)
    return ["evaluate", "run", "--target", "flat"]


def json_below_a_file(work: Path) -> list[str]:
    return ["evaluate", "run", "--json", "run/log.txt/metrics.json"]


def sheet_below_a_file(work: Path) -> list[str]:
    return ["data", "show", "source", "--out", "run/log.txt/sheet.png"]


def sheet_of_nothing(work: Path) -> list[str]:
    (work / "nothing").mkdir()
    return ["data", "show", "nothing"]


def verify_unknown(work: Path) -> list[str]:
    return ["data", "verify", "ofice31", "source"]


def verify_nowhere(work: Path) -> list[str]:
    return ["data", "verify", "office31", "gone"]


def no_such_verb(work: Path) -> list[str]:
    return ["adpat", "--source", "source"]


def no_such_data_verb(work: Path) -> list[str]:
    return ["data", "lsit"]


@pytest.mark.parametrize(
    ("arrange", "parts"),
    [
        (no_run, ("source is not the folder of a run", "config.yaml")),
        (no_folder, ("gone is not the folder of a run", "config.yaml")),
        (evaluate_no_run, ("source is not the folder of a run", "config.yaml")),
        (unfinished, ("run in run is not finished", "unida adapt --out run --resume")),
        (evaluate_unfinished, ("run in run is not finished", "unida adapt --out run --resume")),
        (damaged_config, ("run/config.yaml is not the config of a run",)),
        (config_of_something_else, ("run/config.yaml is not the config of a run", "training")),
        (damaged_model, ("model.safetensors", "cannot be read")),
        (csv_below_a_file, ("--csv run/log.txt/answers.csv cannot be written", "choose another file")),
        (csv_is_a_folder, ("--csv target cannot be written", "choose another file")),
        (csv_is_here, ("--csv . cannot be written", "choose another file")),
        (no_images_folder, ("gone: no such folder", "check the path")),
        (images_is_a_file, ("run/log.txt: is a file", "give the folder")),
        (missing_arguments, ("DIR", "--csv FILE", "unida predict --help")),
        (flat_evaluation, ("one.png lies in no class folder of flat", "move it into one")),
        (json_below_a_file, ("--json run/log.txt/metrics.json cannot be written", "choose another file")),
        (sheet_below_a_file, ("--out run/log.txt/sheet.png cannot be written", "choose another file")),
        (sheet_of_nothing, ("nothing holds no image",)),
        (verify_unknown, ("'ofice31'", "did you mean office31?")),
        (verify_nowhere, ("gone is not a folder", "Office-31")),
        (no_such_verb, ("'unida adpat'", "did you mean 'adapt'?")),
        (no_such_data_verb, ("'unida data lsit'", "did you mean 'list'?")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_other_commands_refuse(
    arrange: Callable[[Path], list[str]], parts: tuple[str, ...], copied_run: Path, cli: Any
) -> None:
    words = arrange(copied_run.parent)
    before = contents(copied_run.parent)
    answer = cli(words)
    assert answer.code == 2
    assert_one_line(answer.err, parts)
    assert contents(copied_run.parent) == before


@pytest.mark.parametrize(
    ("command", "option"), [(["predict", "run", "target"], "--csv"), (["evaluate", "run"], "--json")]
)
@pytest.mark.parametrize("place", ["run/log.txt/answers", "target", "closed/answers", "closed/deep/answers"])
def test_a_file_that_cannot_be_written_is_found_before_the_work(
    command: list[str], option: str, place: str, copied_run: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the images were looked at")

    monkeypatch.setattr("unida.run.Run.predict", work)
    monkeypatch.setattr("unida.run.Run.evaluate", work)
    (copied_run.parent / "closed").mkdir(mode=0o555)
    if place.startswith("closed") and os.access("closed", os.W_OK):
        pytest.skip("root may write anywhere")
    before = contents(copied_run.parent)
    answer = cli([*command, option, place])
    assert answer.code == 2
    assert_one_line(answer.err, (f"{option} {place} cannot be written", "choose another file"))
    assert contents(copied_run.parent) == before


@pytest.mark.parametrize(
    ("environment", "speaks"),
    [
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "1"}, True),  # torchrun on two machines, by SLURM
        ({"RANK": "2", "LOCAL_RANK": "0", "SLURM_PROCID": "0"}, False),
        ({"LOCAL_RANK": "1"}, False),  # started by Fabric
        ({"LOCAL_RANK": "1", "SLURM_PROCID": "0"}, False),
        ({"SLURM_PROCID": "0"}, True),
        ({"SLURM_PROCID": "3"}, False),
    ],
    ids=str,
)
def test_of_several_processes_one_speaks(
    environment: dict[str, str], speaks: bool, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    answer = cli(["adpat"])
    assert answer.code == 2
    assert answer.err.startswith("error: there is no command 'unida adpat'") is speaks
    assert speaks or answer.err == ""


# ---- through a process of its own ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"--source": "gone"}, ("gone: no such folder", "check the path")),
        ({"--stpes": 3}, ("'--stpes'", "did you mean --steps?")),
        ({"--weights": "gone.pth"}, ("gone.pth", "--weights takes")),
        ({"--weights": None, "--backbone": "resnet18"}, ("no weights for 'resnet18'", "--weights FILE", "none")),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_real_process_refuses_in_one_line(
    changes: Options,
    parts: tuple[str, ...],
    work: Path,
    adapt_words: Callable[[Options], list[str]],
    shell: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    words, before = adapt_words(changes), contents(work)
    no_downloads = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path_factory.mktemp("hub"))}
    answer = shell(words, **no_downloads)
    assert answer.code == 2
    assert_one_line(answer.err, parts)
    assert answer.out == ""
    assert contents(work) == before


# ---- files that give no picture --------------------------------------------------------------------------------------


def add_bad_files(folder: Path) -> dict[str, str]:
    """Put files that give no picture into a folder. Returns a part of the reason expected for each."""
    sound = picture(folder / "sound.png", len(folder.parts)).read_bytes()
    (folder / "sound.png").unlink()
    files = {
        "truncated.png": (sound[: len(sound) // 2], "truncated or damaged"),
        "empty.jpg": (b"", "empty file"),
        "text.jpg": (b"this is no picture", "not an image"),
        "bomb.png": (bomb(), "too many pixels"),
        "notes.txt": (b"this is no picture", "not an image file: .txt"),
    }
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    return {str(folder / name): reason for name, (_, reason) in files.items()}


def assert_listed(rows: dict[str, str], reasons: dict[str, str]) -> None:
    assert rows.keys() == reasons.keys()
    for path, reason in reasons.items():
        assert reason in rows[path]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_bad_files_are_skipped_counted_and_listed(
    work: Path, adapt_words: Callable[[Options], list[str]], cli: Any
) -> None:
    of_source = add_bad_files(work / "source" / "star")
    of_target = add_bad_files(work / "target" / "key")
    answer = cli(adapt_words({"--target-labels": True}))
    assert answer.code == 0, answer.err
    run = work / "runs/deep/one"

    log = (run / "log.txt").read_text()
    assert "source: 16 images of 4 classes; target: 20 images" in log
    for side in ("source", "target"):
        assert f"skipped 5 file(s) of the {side}:" in log
    for path in (*of_source, *of_target):
        assert f"  {path}: " in log

    assert_listed({row["path"]: row["reason"] for row in rows_of(run / "skipped.csv")}, of_source | of_target)
    predictions = rows_of(run / "predictions.csv")
    assert_listed({row["path"]: row["skipped"] for row in predictions if row["skipped"]}, of_target)
    assert sum(row["label"] != "" for row in predictions) == 20
    assert count_in_json(run / "metrics.json") == 20

    answer = cli(["predict", run, work / "target", "--csv", "answers.csv"])
    assert answer.code == 0
    answers = rows_of(work / "answers.csv")
    assert len(answers) == 25
    assert_listed({row["path"]: row["skipped"] for row in answers if row["skipped"]}, of_target)
    assert answer.out.startswith("20 images, ")
    for path in of_target:
        assert f"skipped {path}: " in answer.err


@pytest.mark.parametrize("name", ["truncated.png", "empty.jpg", "text.jpg", "bomb.png"])
@pytest.mark.parametrize("side", ["source/star", "target/key"])
def test_strict_stops_at_the_first_bad_file(
    name: str, side: str, work: Path, adapt_words: Callable[[Options], list[str]], cli: Any
) -> None:
    reasons = add_bad_files(work / side)
    bad = work / side / name
    for path in map(Path, reasons):
        if path != bad:
            os.unlink(path)
    before = contents(work)
    answer = cli(adapt_words({"--strict": True}))
    assert answer.code == 2
    assert_one_line(answer.err, (str(bad), reasons[str(bad)], "without --strict"))
    assert contents(work) == before


def test_strict_also_stops_at_what_an_earlier_run_skipped(
    work: Path, adapt_words: Callable[[Options], list[str]], cli: Any
) -> None:
    """The cache remembers which files gave no picture."""
    (work / "source" / "star" / "half.png").write_bytes(b"no picture, and no other test's")
    assert cli(adapt_words({})).code == 0
    answer = cli(adapt_words({"--strict": True, "--out": "second"}))
    assert answer.code == 2
    assert_one_line(answer.err, ("half.png", "without --strict"))
    assert not (work / "second").exists()
