"""On what scales are NTR and DIS, and how long do they take? Figures of docs/studies/layers.md and docs/analysis.md.

    OMP_NUM_THREADS=1 python examples/measure_scales.py --root DIR [--pair amazon:dslr] [--backbone NAME]

Of as many images as `--track` and `--tap auto` look at. NTR reads the target's labels: for this analysis, not for a
run.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from unida.analysis.auto_tap import measure_curves
from unida.analysis.images import images_to_study
from unida.analysis.measures import domain_invariance_score, negative_transfer_risk, validated_l2
from unida.analysis.taps import digests, features_at_taps
from unida.config import Config, config_from_options
from unida.data.augment import Preprocess
from unida.data.domains import open_domains
from unida.errors import UserError
from unida.evaluation.truth import read_truth
from unida.models.backbone import create_backbone
from unida.support.memory import keep_freed_memory

IMAGES = 300  # of each domain, as in unida.analysis.tracking and auto_tap
WEAK, STRONG = 1e-4, 1e-1  # l2 of NTR's probe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder that holds Office-31")
    parser.add_argument("--pair", default="amazon:dslr")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--weights", help="a .safetensors or .pth file (default: pretrained, by the backbone's name)")
    parser.add_argument("--cache", type=Path, help="where decoded images are kept (default: as in unida adapt)")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    keep_freed_memory()  # as a run does
    try:
        print("\n".join(scales(config_from_options({"benchmark": "office31", "setting": "unida", **given}))))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def scales(config: Config) -> list[str]:
    source, target = open_domains(config.data)
    truth = read_truth(config.data, target, source.classes)
    images = images_to_study(source, target, truth, IMAGES, IMAGES, seed=0)
    assert images.target_is_private is not None  # a benchmark has labels
    backbone = create_backbone(config.model.backbone, config.model.weights).to(memory_format=torch.channels_last)
    preprocess = Preprocess(config.data.crop, backbone.mean, backbone.std, torch.device("cpu"))
    choosing = seconds(lambda: measure_curves(backbone, preprocess, source, target, seed=0))

    ours = features_at_taps(backbone, images.source, preprocess, "source")
    theirs = features_at_taps(backbone, images.target, preprocess, "target")
    which, others = digests(images.source), digests(images.target)
    itself, halves = [], []  # DIS at every tap
    for tap in backbone.taps:
        rows = ours[tap].pooled
        itself.append(domain_invariance_score(rows, rows, 0, which, which))
        halves.append(domain_invariance_score(rows[::2], rows[1::2], 0, which[::2], which[1::2]))

    last = backbone.taps[-1]
    source_rows, target_rows, is_private = ours[last].pooled, theirs[last].pooled, images.target_is_private
    classes, labels = torch.unique(images.source_labels, return_inverse=True)

    def ntr(l2: float | None) -> float:
        return negative_transfer_risk(source_rows, labels, target_rows, is_private, len(classes), l2)

    for_ntr = seconds(lambda: ntr(None))
    for_dis = seconds(lambda: domain_invariance_score(source_rows, target_rows, 0, which, others))
    validated = validated_l2(source_rows, labels, len(classes))
    strengths = {"weak": WEAK, "chosen by held-out images": validated, "strong": STRONG}
    return [
        f"{config.data.pair}, {backbone.name}: {len(which)} + {len(others)} images, {len(classes)} classes",
        f"DIS of the source against itself, lowest and highest of all taps: {min(itself):.3f}, {max(itself):.3f}",
        f"DIS of one half of it against the other: {min(halves):.3f}, {max(halves):.3f}",
        *(f"NTR at {last} with l2 = {l2:.4f} ({name}): {ntr(l2):.3f}" for name, l2 in strengths.items()),
        f"seconds of one core: choosing a tap {choosing:.1f}, NTR at {last} {for_ntr:.1f}, DIS at {last} {for_dis:.1f}",
    ]


def seconds(work: Callable[[], object]) -> float:
    """Of the processor, however busy the machine is."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
