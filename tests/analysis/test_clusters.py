"""`unida analyze clusters`, on clusters made by hand and on a run of the real method."""

import csv
import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

import unida
from unida.analysis.clusters import Clustering, name_methods, read_clusterings, report
from unida.cli import main
from unida.config import config_from_options, save_config
from unida.data.benchmarks import load_benchmark
from unida.data.domains import open_domains
from unida.evaluation.truth import read_truth_of_training
from unida.support.tensorfile import write_tensors

OFFICE31 = load_benchmark("office31")
SETS = OFFICE31.label_sets("unida")
SOURCE = [name for name in OFFICE31.classes if name in SETS.source_classes]
UNMATCHED, NO_CLUSTER = -1, -2


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def clusters(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`unida analyze clusters` with these words, in this process."""

    def call(*words: object) -> Answer:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])  # the test runner's: messages go to stderr
        capsys.readouterr()
        code = 0
        try:
            main(["analyze", "clusters", *map(str, words)])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Answer(code, *capsys.readouterr())

    return call


def picture(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dslr with three pictures of each class, and a mug that cannot be read: training does not number it."""
    root = tmp_path_factory.mktemp("office31")
    for place, name in enumerate(OFFICE31.classes):
        for number in range(3):
            picture(root / "dslr" / name / f"{number}.png", 3 * place + number)
    (root / "dslr" / "mug" / "broken.png").write_text("no picture")
    (root / "cache").mkdir()
    return root


def in_order(folder: Path) -> list[tuple[str, str]]:
    """Class and file name of a folder's readable images of the target's classes, by digest."""
    files = [path for path in folder.glob("*/?.png") if path.parent.name in SETS.target_classes]
    files.sort(key=lambda path: hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest())
    return [(path.parent.name, path.name) for path in files]


def write_run(run: Path, root: Path, /, prefix: str = "", **options: Any) -> Path:
    """A run of Office-31's dslr with one cluster for each class, but one bike lies with the pens.

    Matched are the shared classes, but not mug; mouse and monitor are swapped, and printers are taken for bookcases,
    which the target does not have.
    """
    cluster_of = {name: k for k, name in enumerate(SETS.target_classes)}
    assignment = [cluster_of["pen" if image == ("bike", "0.png") else image[0]] for image in in_order(root / "dslr")]
    matched = np.full(60, NO_CLUSTER)
    matched[: len(cluster_of)] = UNMATCHED
    swapped = {"mouse": "monitor", "monitor": "mouse"}
    for name in set(SETS.shared) - {"mug"}:
        matched[cluster_of[swapped.get(name, name)]] = SOURCE.index(name)
    matched[cluster_of["printer"]] = SOURCE.index("bookcase")
    tensors = {"matched_class": torch.from_numpy(matched), "assignment": torch.tensor(assignment)}
    checkpoint = {f"method/{prefix}{name}": tensor for name, tensor in tensors.items()}
    write_tensors(run / "checkpoint" / "resume.safetensors", checkpoint, {})
    write_tensors(run / "checkpoint" / "model.safetensors", {}, {"model": json.dumps({"classes": SOURCE})})
    usual = {"benchmark": "office31", "root": root, "pair": "amazon:dslr", "method": "dcc", "image_size": 8, "crop": 8}
    config = config_from_options({**usual, "cache": root / "cache", "out": run, **options})
    save_config(config, run / "config.yaml")
    (run / "metrics.json").write_text("{}")
    return run


def own_folders(root: Path, **options: Any) -> dict[str, Any]:
    """Options for dslr's images as a user's own folder. That of the source need not be there."""
    usual = {"source": root / "labelled", "target": root / "dslr", "target_labels": True}
    return {"benchmark": None, "root": None, "pair": None, **usual, **options}


# ---- the tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "prefix"), [("dcc", ""), ("dcc+spa", "method.")])
def test_counts_on_clusters_made_by_hand(
    tmp_path: Path, root: Path, clusters: Command, method: str, prefix: str
) -> None:
    run = write_run(tmp_path / "run", root, prefix, spa=method == "dcc+spa")
    answer = clusters(run, "--csv", tmp_path / "new" / "clusters.csv")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("### DCC's clusters: office31, unida\n\n| method | pair | clusters | classes |")
    # 9 of 10 found, 2 of them astray; one of 21 clusters is 3/4 pure; 3 mugs and a bike of 30 lost, 3 printers of 33
    assert f"| {method} | A→D | 21 | 21.0 | 9.0 | 2.0 | 1.0 | 1.0 | 98.8 | 75.0 | 13.3 | 9.1 |" in answer.out
    assert "mean of" not in answer.out  # of one run
    assert f"- {method}: bookcase's cluster holds printer (3), in 1 of 1 runs" in answer.out
    assert f"- {method}: an unmatched cluster, mostly mug, holds mug (3), in 1 of 1 runs" in answer.out
    assert f"- {method}: an unmatched cluster, mostly pen, holds bike (1), in 1 of 1 runs" in answer.out
    assert "cluster holds mouse" not in answer.out  # nor monitor: known all the same, though in each other's cluster
    assert f"- {method}: known images lost: mug (3), bike (1)" in answer.out
    assert f"- {method}: classes missed (runs): mug (1)" in answer.out
    assert f"- {method}: classes falsely matched (runs): bookcase (1)" in answer.out
    assert "no run saw them" in answer.out
    with (tmp_path / "new" / "clusters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 21
    assert rows[10] == {
        **{"run": str(run), "benchmark": "office31", "setting": "unida", "source": "A", "target": "D"},
        **{"method": method, "seed": "0", "cluster": "10", "images": "4", "matched": "", "most": "pen"},
        **{"purity": "0.7500", "holds": "pen: 3; bike: 1"},
    }


def test_finished_runs_of_a_folder_are_averaged_and_those_of_other_methods_left_out(
    tmp_path: Path, root: Path, clusters: Command
) -> None:
    for seed in (0, 1, 2):
        write_run(tmp_path / "all" / f"WD-{seed}", root, pair="W:D", seed=seed)
    write_run(tmp_path / "all" / "runs" / "AD-0", root)  # two levels below
    (tmp_path / "all" / "WD-2" / "metrics.json").unlink()
    write_run(tmp_path / "all" / "other", root, method="ovanet")
    own = write_run(tmp_path / "all" / "own", root) / "config.yaml"
    own.write_text(own.read_text().replace("method: dcc", "method: mine"))  # known to another script alone
    write_run(tmp_path / "all" / "unlabelled", root, **own_folders(root, target_labels=False))
    answer = clusters(tmp_path / "all", tmp_path / "all" / "WD-0")  # which counts once
    assert answer.code == 0
    said = ["left out: 2 of 6 runs, of other methods", "left out: 1 of 6 runs, without target labels"]
    assert answer.err.splitlines() == said
    assert "| dcc | A→D | 21 | 21.0 | 9.0 | 2.0 | 1.0 | 1.0 |" in answer.out
    assert "| dcc | W→D | 21, 21 | 21.0 | 9.0 | 2.0 | 1.0 | 1.0 |" in answer.out
    assert "| dcc, mean of 3 runs |  | 21.0 | 21.0 | 9.0 | 2.0 | 1.0 | 1.0 |" in answer.out
    assert "bookcase's cluster holds printer (9), in 3 of 3 runs" in answer.out


def test_each_setting_has_a_table_and_own_folders_have_one(tmp_path: Path, root: Path, clusters: Command) -> None:
    write_run(tmp_path / "unida", root)
    write_run(tmp_path / "osda", root, setting="osda")
    (tmp_path / "new").mkdir()
    for name in SETS.target_classes:
        (tmp_path / "new" / name).symlink_to(root / "dslr" / name)
    own = own_folders(root, target=tmp_path / "new")
    write_run(tmp_path / "own-0", root, **own)
    write_run(tmp_path / "own-1", root, **own, seed=1)
    answer = clusters(tmp_path)
    assert (answer.code, answer.err) == (0, "")
    headings = [line for line in answer.out.splitlines() if line.startswith("###")]
    assert headings == [f"### DCC's clusters: {data}" for data in ("office31, osda", "office31, unida", "own folders")]
    assert "| dcc | labelled→new | 21, 21 | 21.0 | 9.0 | 2.0 | 1.0 | 1.0 | 98.8 | 75.0 | 13.3 | 9.1 |" in answer.out
    assert answer.out.count("no run saw them") == 1


def test_methods_are_named_with_the_options_in_which_they_differ() -> None:
    def named(*changes: dict[str, Any]) -> list[str]:
        return name_methods([config_from_options({"method": "dcc", **options}) for options in changes])

    assert named({"seed": 0, "pair": "A:D", "benchmark": "office31"}, {"seed": 1, "source": "a"}) == ["dcc", "dcc"]
    assert named({}, {"repeat_classes": True}) == ["dcc", "dcc --repeat-classes"]
    assert named({}, {"spa": True}) == ["dcc", "dcc+spa"]
    differ = named({"spa": True}, {"spa": True, "spa_entropy": "off", "steps": 9}, {"steps": 5})
    assert differ == ["dcc+spa", "dcc+spa --steps 9 --spa.entropy off", "dcc"]
    assert named({"image_size": 224}, {}) == ["dcc --image-size 224", "dcc --image-size 256"]


def test_folders_with_the_same_names_are_told_apart_and_odd_names_break_no_table(
    tmp_path: Path, root: Path, clusters: Command
) -> None:
    write_run(tmp_path / "run", root)
    (found,) = read_clusterings([tmp_path / "run"], visible=False)

    def own(source: str, target: str) -> Clustering:
        return Clustering(
            found.run, "", "", source, target, "dcc", 0, clusters=found.clusters, source_classes=found.source_classes
        )

    assert "| dcc | a→b\\|\\n | 21 |" in report([own("/x/a", "/x/b|\n")])
    same = report([own("/x/a", "/x/b"), own("/y/a", "/y/b")])
    assert "| dcc | /x/a→/x/b | 21 |" in same and "| dcc | /y/a→/y/b | 21 |" in same


# ---- refusals --------------------------------------------------------------------------------------------------------


def assert_refused(answer: Answer, *parts: str) -> None:
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), answer
    assert answer.err.startswith("error: ") and all(part in answer.err for part in parts), answer.err


def test_a_target_that_has_changed_is_refused(tmp_path: Path, root: Path, clusters: Command) -> None:
    run = write_run(tmp_path / "run", root, **own_folders(root))  # with classes of dslr that were not clustered
    assert_refused(clusters(run), f"{run} has clustered 63 images, but its target in {root / 'dslr'} now has 93: put")


def test_a_run_without_its_checkpoint_is_named(tmp_path: Path, root: Path, clusters: Command) -> None:
    run = write_run(tmp_path / "run", root)
    (run / "checkpoint" / "resume.safetensors").unlink()
    assert_refused(clusters(run), f"{run / 'checkpoint' / 'resume.safetensors'} is not there", "put it back")


def test_a_checkpoint_of_another_method_is_named(tmp_path: Path, root: Path, clusters: Command) -> None:
    run = write_run(tmp_path / "run", root)
    write_tensors(run / "checkpoint" / "resume.safetensors", {"method/closed.weight": torch.zeros(1)}, {})
    assert_refused(clusters(run), f"{run / 'checkpoint' / 'resume.safetensors'} holds no clusters")


def test_a_model_file_without_classes_is_named(tmp_path: Path, root: Path, clusters: Command) -> None:
    run = write_run(tmp_path / "run", root)
    write_tensors(run / "checkpoint" / "model.safetensors", {}, {"model": "{}"})
    assert_refused(clusters(run), f"{run / 'checkpoint' / 'model.safetensors'} was made by another version")


def test_runs_of_other_methods_alone_are_refused(tmp_path: Path, root: Path, clusters: Command) -> None:
    runs = [write_run(tmp_path / name, root, method="ovanet") for name in "ab"]
    assert_refused(clusters(*runs), f"none of the 2 runs ({runs[0]}, …) is one of DCC", "--method dcc")


# ---- a real run ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of DCC on pictures whose colour is their class, so that any clustering of them is nearly pure."""
    root, runs = tmp_path_factory.mktemp("office31"), tmp_path_factory.mktemp("runs")
    draw = np.random.default_rng(0)
    for domain in ("dslr", "webcam"):
        for number, name in enumerate(OFFICE31.classes):
            (root / domain / name).mkdir(parents=True)
            colour = np.array([number % 3, number // 3 % 3, number // 9]) * 70 + 20
            for image in range(4):
                noise = draw.integers(-15, 16, (40, 40, 3))
                Image.fromarray((colour + noise).astype(np.uint8)).save(root / domain / name / f"{image}.png")
    unida.adapt(
        benchmark="office31",
        root=root,
        pair="webcam:dslr",
        method="dcc",
        steps=2,
        batch_size=4,
        backbone="test_resnet.r160_in1k",
        weights="none",
        train="all",
        image_size=40,
        crop=32,
        accelerator="cpu",
        cache=runs / "cache",
        out=runs / "run",
    )
    return runs / "run"


def test_images_are_in_the_order_of_the_real_run(real: Path) -> None:
    """As training numbers them; and in another order, clusters would hold all classes alike."""
    data = unida.load(real).config.data
    _, target = open_domains(data, visible=False)
    truth = read_truth_of_training(data, tuple(SOURCE), visible=False)
    assert truth is not None
    assert [truth.names[i] for i in truth.labels] == [file.path.parent.name for file in target.pixels.files]
    (clustering,) = read_clusterings([real], visible=False)
    assert sum(cluster.size for cluster in clustering.clusters) == 21 * 4
    assert clustering.target_classes == set(SETS.target_classes) and clustering.shared == set(SETS.shared)
    pure = sum(cluster.holds[cluster.most] for cluster in clustering.clusters) / (21 * 4)
    assert pure > 0.6


def test_the_command_on_the_real_run(real: Path, clusters: Command) -> None:
    (clustering,) = read_clusterings([real], visible=False)
    answer = clusters(real.parent)
    assert (answer.code, answer.err) == (0, "")
    assert f"| dcc | W→D | {len(clustering.clusters)} | 21.0 |" in answer.out
