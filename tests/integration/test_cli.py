"""Every command through its real entry point, and what a run leaves in its folder."""

import csv
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_input import AdaptWords
from PIL import Image
from safetensors.torch import save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import unida
from unida.config import config_to_yaml, load_config
from unida.data.benchmarks import available, load_benchmark
from unida.data.glyphs import GlyphFolders
from unida.evaluation.names import METRIC_NOTES
from unida.methods import METHODS
from unida.models.backbone import create_backbone
from unida.models.known import KNOWN
from unida.support.tensorfile import read_tensors

COMMANDS = {
    "check": ("--source DIR", "--target DIR"),
    "adapt": ("--source DIR", "--target DIR", "--out DIR", "--entropy-weight"),
    "predict": ("RUN", "DIR", "--csv FILE", "--watch DIR", "--move-to DIR"),
    "export": ("RUN", "--onnx FILE.onnx", "--torch-export FILE.pt2"),
    "evaluate": ("RUN", "--target DIR", "--json FILE"),
    "demo": ("--out", "--steps", "--seed"),
    "methods": ("methods",),
    "backbones": ("--speed",),
    "data": ("unida data list", "unida data verify", "unida data show"),
    "data list": ("benchmarks",),
    "data verify": ("NAME", "DIR"),
    "data show": ("DIR", "--out FILE", "--pair A:B"),
    "analyze": ("unida analyze layers", "unida analyze complexity", "unida analyze clusters"),
    "analyze layers": ("--source DIR", "--target DIR", "--out DIR", "--words"),
    "analyze complexity": ("--backbone", "--classes", "--words", "--method"),
    "analyze clusters": ("RUN [RUN …]", "--csv FILE"),
}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="session")
def office31(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Amazon and DSLR of Office-31: all classes, two noise pictures of each."""
    root, random = tmp_path_factory.mktemp("office31"), np.random.default_rng(0)
    for domain in ("amazon", "dslr"):
        for name in load_benchmark("office31").classes:
            folder = root / domain / "images" / name
            folder.mkdir(parents=True)
            for number in range(2):
                pixels = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


# ---- what a run leaves -----------------------------------------------------------------------------------------------


def test_the_run_folder_holds_what_it_promises_and_nothing_else(finished: Path) -> None:
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    events = {name for name in names if name.startswith("events.out.tfevents.")}
    assert len(events) == 1
    assert names - events == {
        "config.yaml",
        "metrics.jsonl",
        "checkpoint/model.safetensors",
        "checkpoint/resume.safetensors",
        "checkpoint/target.safetensors",
        "predictions.csv",
        "metrics.json",
        "answers.png",
        "skipped.csv",
        "log.txt",
    }


def test_config_is_complete_and_reads_back_the_same(finished: Path, glyphs: GlyphFolders) -> None:
    config = load_config(finished / "config.yaml")
    assert config_to_yaml(config) == (finished / "config.yaml").read_text()
    assert config.data.source == glyphs.source
    assert config.data.target == glyphs.target
    assert config.data.target_labels is True
    assert config.training.method == "ovanet"
    # What the machine chose stands there too: a resumed run chooses nothing.
    assert config.training.steps == 3
    assert config.training.backbone_lr == pytest.approx(0.001)
    assert config.output.checkpoint_every == 50
    assert config.method.entropy_weight == 0.1


def test_metrics_by_step_in_json_lines_and_tensorboard(finished: Path) -> None:
    lines = lines_of(finished / "metrics.jsonl")
    assert [(line["step"], line["kind"]) for line in lines] == [(2, "evaluation"), (3, "train")]
    evaluation, train = lines
    assert {*METRIC_NOTES} <= evaluation.keys()
    losses = [train[name] for name in ("closed", "one_vs_all", "entropy")]
    assert all(math.isfinite(loss) for loss in losses)
    assert train["total"] == pytest.approx(sum(losses))

    board = EventAccumulator(str(finished)).Reload()
    assert {"train/closed", "train/total", "evaluation/hos"} <= set(board.Tags()["scalars"])
    (closed,) = board.Scalars("train/closed")
    assert (closed.step, closed.value) == (3, pytest.approx(train["closed"]))


def test_checkpoints_open_without_pickle_and_describe_themselves(finished: Path) -> None:
    model, notes = read_tensors(finished / "checkpoint/model.safetensors")
    info = json.loads(notes["model"])
    assert info["classes"] == ["arrow", "heart", "house", "star"]
    assert (info["method"], info["backbone"], info["crop"]) == ("ovanet", "test_resnet.r160_in1k", 32)
    assert "closed.weight" in model
    saved, notes = read_tensors(finished / "checkpoint/resume.safetensors")
    assert json.loads(notes["progress"])["step"] == 3
    assert any(name.startswith("optimiser/") for name in saved)
    assert not any(name.startswith("optimiser/") for name in model)


def test_a_prediction_for_every_target_image(finished: Path, glyphs: GlyphFolders) -> None:
    rows = rows_of(finished / "predictions.csv")
    assert [row["path"] for row in rows] == sorted(str(path) for path in glyphs.target.rglob("*.png"))
    for row in rows:
        assert row["label"] in ("arrow", "heart", "house", "star", "unknown")
        assert 0 <= float(row["unknown_score"]) <= 1
        assert 0.25 <= float(row["probability"]) <= 1  # the best of four
        assert row["skipped"] == ""
    assert rows_of(finished / "skipped.csv") == []


def test_metrics_say_what_the_predictions_say(finished: Path, glyphs: GlyphFolders) -> None:
    content = json.loads((finished / "metrics.json").read_text())
    answers = {row["path"]: row["label"] for row in rows_of(finished / "predictions.csv")}
    right = {
        path: label == (Path(path).parent.name if Path(path).parent.name in glyphs.shared else "unknown")
        for path, label in answers.items()
    }
    assert content["last_step"]["accuracy"] == pytest.approx(sum(right.values()) / len(right))
    of_private = [right[path] for path in right if Path(path).parent.name in glyphs.target_private]
    assert content["last_step"]["unknown"] == pytest.approx(sum(of_private) / len(of_private))
    assert content["cost"]["steps"] == 3
    assert content["cost"]["images_per_second"] > 0
    assert "oracle_best" not in content


def test_log_tells_data_method_and_result(finished: Path) -> None:
    log = (finished / "log.txt").read_text()
    assert "source: 16 images of 4 classes; target: 20 images" in log
    assert (
        "ovanet on test_resnet.r160_in1k (--train tail, published regime), 3 steps of 4 + 4 images, seed 0, on cpu"
        in log
    )
    assert "step 2: HOS" in log
    assert f"results are in {finished}" in log


def test_log_tells_which_weights_the_run_started_from(work: Path, adapt_words: AdaptWords, cli: Any) -> None:
    file = work / "own.safetensors"
    save_file(create_backbone("test_resnet.r160_in1k", "none").model.state_dict(), file)
    answer = cli(adapt_words({"--weights": file}))
    assert answer.code == 0, answer.err
    log = (work / "runs/deep/one/log.txt").read_text()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"weights: test_resnet.r160_in1k from {file}, sha256 {digest}" in log


# ---- commands on it --------------------------------------------------------------------------------------------------


def test_evaluate_says_what_the_run_said(finished: Path, cli: Any, tmp_path: Path) -> None:
    answer = cli(["evaluate", finished, "--json", tmp_path / "again.json"])
    assert answer.code == 0, answer.err
    assert answer.err == ""
    again, first = (
        json.loads((tmp_path / "again.json").read_text()),
        json.loads((finished / "metrics.json").read_text()),
    )
    assert again["metrics"] == pytest.approx(first["last_step"])
    assert again["confusion"] == first["confusion"]
    assert again["alone"] == pytest.approx(first["alone"]["method"])
    assert re.search(r"^answered together, 2 neighbours; unknown above 0\.", answer.out, re.MULTILINE)
    assert answer.out.splitlines()[-1].startswith("each image alone, with the method's own threshold: HOS ")
    for name in (*METRIC_NOTES, "star", "key"):
        assert re.search(rf"^ +{name} ", answer.out, re.MULTILINE)


def test_predict_in_a_process_of_its_own(finished: Path, glyphs: GlyphFolders, shell: Any, tmp_path: Path) -> None:
    answer = shell(["predict", finished, glyphs.target, "--csv", tmp_path / "new" / "answers.csv"])
    assert answer.code == 0, answer.err
    assert answer.err == ""
    rows, first = rows_of(tmp_path / "new" / "answers.csv"), rows_of(finished / "predictions.csv")
    assert rows == first
    unknown = sum(row["label"] == "unknown" for row in rows)
    said, rule, speed = answer.out.splitlines()
    assert said == f"20 images, {unknown} of them unknown; answers are in {tmp_path / 'new' / 'answers.csv'}"
    assert rule.startswith("answered together, 2 neighbours; unknown above 0.")
    assert re.fullmatch(r"\d+\.\d images/s", speed)


def test_a_run_needs_its_own_folder_alone(work: Path, adapt_words: AdaptWords, cli: Any) -> None:
    """Moved, and its data and cache are gone: it still answers for new images."""
    assert cli(adapt_words({"--cache": work / "cache"})).code == 0
    moved = (work / "runs/deep/one").rename(work / "moved")
    for name in ("source", "target", "cache"):
        shutil.rmtree(work / name)
    (work / "new").mkdir()
    Image.new("RGB", (30, 20), "red").save(work / "new" / "red.png")
    answer = cli(["predict", moved, work / "new", "--csv", work / "answers.csv"])
    assert answer.code == 0, answer.err
    assert [row["path"] for row in rows_of(work / "answers.csv")] == [str(work / "new" / "red.png")]


@pytest.mark.parametrize("name", ["target", "steps"])
def test_a_value_that_reads_like_an_option_is_none(
    name: str, finished: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed in a folder called as an option is: that option keeps its saved value."""
    shutil.copytree(finished, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    before = (tmp_path / name / "predictions.csv").read_bytes()
    answer = cli(["adapt", "--out", name, "--resume"])
    assert answer.code == 0, answer.err
    assert (tmp_path / name / "predictions.csv").read_bytes() == before


def test_evaluate_on_another_folder(finished: Path, glyphs: GlyphFolders, cli: Any, tmp_path: Path) -> None:
    answer = cli(["evaluate", finished, "--target", glyphs.source, "--json", tmp_path / "source.json"])
    assert answer.code == 0, answer.err
    rows = json.loads((tmp_path / "source.json").read_text())["per_class"]
    assert {row["name"]: row["n"] for row in rows} == {"arrow": 4, "heart": 4, "house": 4, "star": 4, "unknown": 0}


def test_unlabelled_target_gets_answers_and_no_metrics(
    glyphs: GlyphFolders, tiny: dict[str, str], cli: Any, tmp_path: Path
) -> None:
    folders = ["--source", glyphs.source, "--target", glyphs.target, "--out", tmp_path / "run"]
    options = [word for pair in tiny.items() for word in pair]
    answer = cli(["adapt", *folders, *options, "--method", "source-only"])
    assert answer.code == 0, answer.err
    assert json.loads((tmp_path / "run/metrics.json").read_text()).keys() == {"version", "cost", "answering"}
    assert len(rows_of(tmp_path / "run/predictions.csv")) == 20
    assert load_config(tmp_path / "run/config.yaml").method.rejection == "entropy"


def test_benchmark_run(office31: Path, tiny: dict[str, str], cli: Any, tmp_path: Path) -> None:
    where = ["--benchmark", "office31", "--root", office31, "--pair", "amazon:dslr", "--setting", "unida"]
    options = [word for pair in tiny.items() for word in pair]
    answer = cli(["adapt", *where, *options, "--out", tmp_path / "run"])
    assert answer.code == 0, answer.err
    # 10 shared, 10 of the source alone, 11 of the target alone; two pictures of each.
    assert "source: 40 images of 20 classes; target: 42 images" in answer.err
    rows = rows_of(tmp_path / "run/predictions.csv")
    assert len(rows) == 42
    assert all("/dslr/images/" in row["path"] for row in rows)
    sets = load_benchmark("office31").label_sets("unida")
    per_class = json.loads((tmp_path / "run/metrics.json").read_text())["per_class"]
    assert {row["name"] for row in per_class if row["kind"] == "private"} == set(sets.target_private)
    assert {row["name"] for row in per_class if row["n"] and row["kind"] == "source"} == set(sets.shared)

    again = cli(["evaluate", tmp_path / "run", "--json", tmp_path / "new" / "again.json"])
    assert again.code == 0, again.err
    first = json.loads((tmp_path / "run/metrics.json").read_text())["last_step"]
    assert json.loads((tmp_path / "new" / "again.json").read_text())["metrics"] == pytest.approx(first)


# ---- commands on data, and help --------------------------------------------------------------------------------------


def test_methods(cli: Any) -> None:
    answer = cli(["methods"])
    assert (answer.code, answer.err) == (0, "")
    for method in METHODS.values():
        assert method.name in answer.out.splitlines()
        assert method.paper in answer.out
    assert "--entropy-weight 0.1" in answer.out


def test_backbones(shell: Any, tmp_path: Path) -> None:
    """The hub's cache is where the environment says: one of the weights is there."""
    commit = "1a" * 20
    repository = tmp_path / "hub" / "models--timm--resnet50.tv_in1k"
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "model.safetensors").touch()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    answer = shell(["backbones"], HF_HOME=str(tmp_path), HF_HUB_CACHE=str(tmp_path / "hub"))
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    for known in KNOWN:
        about = lines[lines.index(known.name) : lines.index(known.name) + 5]
        assert known.good_for in about[1]
        assert about[2].endswith(f"a file of {known.megabytes:.0f} MB, features of {known.features:,} numbers")
        here = "in its cache" if known.name == "resnet50.tv_in1k" else "not here yet"
        assert about[3].endswith(f"the hub ({known.repository}), {here}")
        assert about[4].startswith("  HOS on Office-31: ")
    assert lines[-1].startswith("Any other timm model works too")


def test_backbones_with_their_speed(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unida.models.speed.BATCH", 1)
    monkeypatch.setattr("unida.models.speed.TIMED", 1)
    answer = cli(["backbones", "--speed"])
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()[-1 - len(KNOWN) :]
    assert lines[0].startswith("speed here, forward only, images of 224 × 224 pixels, on ")
    for number, (line, known) in enumerate(zip(lines[1:], KNOWN, strict=True), start=1):
        assert re.fullmatch(rf"  {number} of {len(KNOWN)}: {re.escape(known.name)} +[\d,]+ images/s", line), line


def test_data_list(shell: Any) -> None:
    answer = shell(["data", "list"])
    assert (answer.code, answer.err) == (0, "")
    for name in available():
        assert f"\n{name}: " in f"\n{answer.out}"
    assert re.search(r"unida +10/10/11 ", answer.out)


def test_data_verify_counts_what_is_there(office31: Path, cli: Any) -> None:
    answer = cli(["data", "verify", "office31", office31])
    assert answer.code == 1  # two pictures of each class, and no webcam, are not Office-31
    assert "webcam" in answer.out


@pytest.mark.parametrize("which", ["folder", "folders", "benchmark"])
def test_data_show(which: str, glyphs: GlyphFolders, office31: Path, cli: Any, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    words = {
        "folder": [glyphs.source],
        "folders": [glyphs.source, "--target", glyphs.target],
        "benchmark": [office31, "--benchmark", "office31", "--pair", "A:D"],
    }[which]
    answer = cli(["data", "show", *words, "--out", sheet, "--per-class", "2"])
    assert (answer.code, answer.out) == (0, f"wrote {sheet}\n")
    with Image.open(sheet) as image:
        assert np.asarray(image).std() > 10  # something is drawn


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, cli: Any) -> None:
    answer = cli([*command.split(), "--help"])
    assert (answer.code, answer.err) == (0, "")
    for part in COMMANDS[command]:
        assert part in answer.out


def test_overview_names_every_command(cli: Any) -> None:
    answer = cli([])
    assert answer == cli(["--help"])
    for command in COMMANDS:
        assert f"  unida {command}" in answer.out


def test_version_of_the_installed_script() -> None:
    script = shutil.which("unida", path=str(Path(sys.executable).parent))
    assert script is not None
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == f"unida {unida.__version__}\n"
