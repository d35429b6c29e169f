"""Time to the same HOS: training the tail on kept features, against fine-tuning everything.

# how to run
    python benchmarks/tail_against_all.py --root DIR      # the folder that holds Office-31; a quarter of an hour

OVANet, amazon:dslr, UniDA. `all` is evaluated as it goes; counted is its time up to the first evaluation whose HOS is
within two points of the tail's last step, training steps only. `tail` is counted whole: decoding is done beforehand for
both, features, training and the last evaluation are in. Target labels serve to measure here, not to choose. Writes
tail_against_all.csv.
"""

import argparse
import json
import tempfile
from pathlib import Path

from common import Measure, report, timed

import unida


def main() -> None:
    parser = argparse.ArgumentParser(description="Tail against all.")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--tail-steps", type=int, default=120)
    parser.add_argument("--all-steps", type=int, default=200)
    parser.add_argument("--views", type=int, default=1, help="kept of each image for the tail")
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    task = {"benchmark": "office31", "root": options.root, "pair": "amazon:dslr", "method": "ovanet"}
    task |= {"backbone": "tf_efficientnet_lite0", "regime": "published", "engine": "torch"}
    task |= {"neighbours": 0, "threshold": "method"}  # as papers answer: the curve is of features and heads alone
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        task["cache"] = work / "cache"
        unida.adapt(out=work / "decode", steps=1, train="all", **task)  # decodes the images
        short = {**task, "steps": options.tail_steps, "train": "tail", "views": options.views}
        seconds, tail = timed(lambda: unida.adapt(out=work / "tail", **short))
        again, _ = timed(lambda: unida.adapt(out=work / "again", seed=1, **short))
        whole = unida.adapt(out=work / "all", steps=options.all_steps, train="all", eval_every=20, **task)
        of_tail, of_all = tail.metrics, whole.metrics  # read while the folder is there
        cost = json.loads((whole.folder / "metrics.json").read_text())["cost"]
        lines = [json.loads(line) for line in (whole.folder / "metrics.jsonl").read_text().splitlines()]
    assert of_tail is not None and of_all is not None
    goal = (of_tail["hos"] or 0) - 0.02
    curve = [(line["step"], line["hos"]) for line in lines if line["kind"] == "evaluation"]
    curve.append((options.all_steps, of_all["hos"]))
    reached = next((step for step, hos in curve if hos >= goal), None)
    per_step = 72 / cost["images_per_second"]
    report(
        [
            Measure("tail: HOS after the last step", 100 * (of_tail["hos"] or 0), "%"),
            Measure(f"tail: {options.tail_steps} steps with everything", seconds, "s"),
            Measure("tail: the same with features there", again, "s"),
            Measure("all: HOS after the last step", 100 * (of_all["hos"] or 0), "%"),
            Measure("all: a step", per_step, "s"),
            Measure(f"all: {options.all_steps} steps", per_step * options.all_steps, "s"),
            Measure("all: first step within two points of the tail (-1: never)", reached or -1, "steps"),
            Measure("all: time until then", per_step * (reached or -1), "s"),
        ],
        options.csv,
        pair="amazon:dslr unida",
        views=options.views,
    )


if __name__ == "__main__":
    main()
