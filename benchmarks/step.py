"""One training step of OVANet: this library against a plain implementation with the reference's semantics.

# how to run
    python benchmarks/step.py                  # drawn pictures, some ten minutes
    python benchmarks/step.py --images DIR     # pictures of a folder

Both sides start from the same weights and see the same images, crops and mirrors for 20 steps in float32; the losses
must agree to 1e-4. The learning rate is a tenth of OVANet's: sums in another order are another rounding, and training
makes such differences grow, the faster the larger its steps (at the full rate they reached 9e-4 after 20 steps). The
time of a step does not depend on it. The plain side does what reference code does: it opens, resizes, crops and
normalises every picture with PIL in the loop, keeps one parameter group per tensor, sets each group's rate in Python,
leaves the memory layout as it is and reads five numbers from the device in every step. Each side has a process of its
own, one after the other in one run. One more process measures --compile. Writes step.csv.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import Measure, in_own_process, report
from data_path import BACKBONE, BATCH, CROP, SIZE, write_pictures
from lightning_fabric import Fabric
from PIL import Image
from torchvision.transforms import functional as pictures

from unida.config import complete, config_from_options
from unida.data.augment import random_views
from unida.data.domains import Source, Target
from unida.data.folders import scan
from unida.data.pixels import open_pixels
from unida.features.inputs import PixelInputs
from unida.methods.base import Problem
from unida.methods.ovanet import OVANet, OVANetOptions
from unida.models.backbone import create_backbone
from unida.support.memory import keep_freed_memory
from unida.support.random import generator, torch_seed
from unida.training.batches import BatchStream
from unida.training.optim import build_optimiser, inverse_decay, set_learning_rate

CLASSES, LR, BACKBONE_LR = 10, 0.001, 0.0001


def main() -> None:
    parser = argparse.ArgumentParser(description="A training step, side by side.")
    parser.add_argument("--images", type=Path, help="a folder of pictures (default: drawn for the occasion)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--side", choices=("plain", "ours", "compiled"), help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    if options.side:
        run = plain_steps if options.side == "plain" else our_steps
        print(json.dumps(run(options)))
        return
    with tempfile.TemporaryDirectory() as work:
        folder = options.images or write_pictures(Path(work) / "pictures", 200)
        common = ("--images", folder, "--cache", Path(work) / "cache", "--steps", options.steps)
        sides = {side: in_own_process(__file__, "--side", side, *common) for side in ("ours", "plain", "compiled")}
    ours, plain, compiled = sides["ours"], sides["plain"], sides["compiled"]
    apart = np.abs(np.array(ours["losses"]) - np.array(plain["losses"])).max(axis=1)
    second = {side: median(values["seconds"][2:]) for side, values in sides.items()}
    report(
        [
            Measure("plain step", second["plain"], "s"),
            Measure("of it: pictures", 100 * median(plain["drawing"][2:]) / second["plain"], "%"),
            Measure("this library's step", second["ours"], "s"),
            Measure("of it: pictures", 100 * median(ours["drawing"][2:]) / second["ours"], "%"),
            Measure("of it: backward", 100 * median(ours["backward"][2:]) / second["ours"], "%"),
            Measure("of it: optimiser", 100 * median(ours["optimiser"][2:]) / second["ours"], "%"),
            Measure("faster by", second["plain"] / second["ours"], "times"),
            Measure("largest difference of a loss, first step", float(apart[0]), ""),
            Measure(f"largest difference of a loss over {options.steps} steps", float(apart.max()), ""),
            Measure("step with --compile", second["compiled"], "s"),
            Measure("first step with --compile", compiled["seconds"][0], "s"),
        ],
        options.csv,
        backbone=BACKBONE,
        batch=f"{BATCH}+{BATCH} of {CROP} px",
    )
    if apart.max() > 1e-4:
        raise SystemExit("the two sides do not compute the same")


def prepare(options: argparse.Namespace) -> tuple[OVANet, BatchStream]:
    fabric = Fabric(accelerator="cpu", devices=1)
    config = config_from_options({"steps": options.steps, "batch_size": BATCH})
    files = scan(options.images)[0]
    pixels = open_pixels(files, resize="squash", size=SIZE, cache_dir=options.cache)
    names = tuple(f"class {i}" for i in range(CLASSES))
    source = Source(pixels, np.arange(len(pixels)) % CLASSES, names)
    torch.manual_seed(torch_seed(0, "backbone"))
    problem = Problem(CLASSES, len(pixels), len(pixels), options.steps)
    method = OVANet(create_backbone(BACKBONE), problem, OVANetOptions()).train()
    inputs = PixelInputs(CROP, method.backbone.mean, method.backbone.std, fabric.device)
    return method, BatchStream(source, Target(pixels), inputs, config, fabric, method.recipes)


def our_steps(options: argparse.Namespace) -> dict[str, Any]:
    keep_freed_memory()
    method, stream = prepare(options)
    method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if options.side == "compiled":
        method.backbone.compile()
    (phase,) = method.phases()
    (turn,) = phase.turns
    training = complete(config_from_options({"steps": options.steps, "lr": LR}), has_gpu=False).training
    assert training.backbone_lr == BACKBONE_LR
    optimiser = build_optimiser(turn, training)
    times: dict[str, list[float]] = {"seconds": [], "drawing": [], "backward": [], "optimiser": []}
    losses = []
    for step in range(options.steps):
        clock = [time.perf_counter()]
        set_learning_rate(optimiser, step, options.steps, turn.decay)
        source, target = stream.batch(step, phase)
        clock.append(time.perf_counter())
        values = turn.losses(source, target, step)
        total = torch.stack(list(values.values())).sum()
        clock.append(time.perf_counter())
        total.backward()
        clock.append(time.perf_counter())
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        clock.append(time.perf_counter())
        losses.append([value.item() for value in values.values()])
        times["seconds"].append(clock[4] - clock[0])
        times["drawing"].append(clock[1] - clock[0])
        times["backward"].append(clock[3] - clock[2])
        times["optimiser"].append(clock[4] - clock[3])
    return {**times, "losses": losses}


def plain_steps(options: argparse.Namespace) -> dict[str, Any]:
    """The same step written out as reference code writes it."""
    method, stream = prepare(options)
    backbone, closed, one_vs_all = method.backbone, method.closed, method.one_vs_all
    groups = [{"params": [p], "lr": BACKBONE_LR, "first": BACKBONE_LR} for p in backbone.parameters()]
    heads = [{"params": [p], "lr": LR, "first": LR} for p in (*closed.parameters(), *one_vs_all.parameters())]
    optimiser_g = torch.optim.SGD(groups, lr=LR, momentum=0.9, weight_decay=5e-4, nesterov=True, foreach=False)
    optimiser_c = torch.optim.SGD(heads, lr=LR, momentum=0.9, weight_decay=5e-4, nesterov=True, foreach=False)
    seconds, drawing, losses = [], [], []
    for step in range(options.steps):
        start = time.perf_counter()
        for group in (*optimiser_g.param_groups, *optimiser_c.param_groups):
            group["lr"] = group["first"] * inverse_decay(step, options.steps)
        source_index, target_index = stream.source_samplers["balanced"].batch(step), stream.target_sampler.batch(step)
        source = plain_batch(stream, stream.source, source_index, "source view", step)
        target = plain_batch(stream, stream.target, target_index, "target view", step)
        labels = torch.from_numpy(stream.source.labels[source_index])
        drawing.append(time.perf_counter() - start)
        optimiser_g.zero_grad()
        optimiser_c.zero_grad()
        weight = one_vs_all.weight.data
        one_vs_all.weight.data = weight / weight.norm(dim=1, keepdim=True)
        features = backbone(source)
        loss_closed = F.cross_entropy(closed(features), labels)
        open_p = F.softmax(F.linear(features, one_vs_all.weight).view(len(labels), 2, -1), 1)
        mask = torch.zeros(len(labels), CLASSES)
        mask[torch.arange(len(labels)), labels] = 1
        positive = torch.mean(torch.sum(-torch.log(open_p[:, 1] + 1e-8) * mask, 1))
        negative = torch.mean(torch.max(-torch.log(open_p[:, 0] + 1e-8) * (1 - mask), 1)[0])
        loss_open = 0.5 * (positive + negative)
        target_p = F.softmax(F.linear(backbone(target), one_vs_all.weight).view(len(target), 2, -1), 1)
        loss_entropy = 0.1 * torch.mean(torch.mean(torch.sum(-target_p * torch.log(target_p + 1e-8), 1), 1))
        total = loss_closed + loss_open + loss_entropy
        total.backward()
        optimiser_g.step()
        optimiser_c.step()
        read = [loss_closed.item(), loss_open.item(), loss_entropy.item(), positive.item(), negative.item()]
        losses.append(read[:3])
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "drawing": drawing, "losses": losses}


def plain_batch(
    stream: BatchStream, domain: Source | Target, index: np.ndarray, purpose: str, step: int
) -> torch.Tensor:
    """Every picture opened, resized, cropped, mirrored and normalised by itself; the crops are the other side's."""
    views = random_views(generator(stream.seed, purpose, step), domain.pixels.shapes[index], CROP)
    backbone_mean, backbone_std = (127 / 255,) * 3, (128 / 255,) * 3  # of the Lite0 weights
    batch = []
    for i, top, left, flip in zip(index.tolist(), views.top.tolist(), views.left.tolist(), views.flip, strict=True):
        picture = Image.open(domain.pixels.files[i].path).convert("RGB")
        picture = pictures.crop(pictures.resize(picture, [SIZE, SIZE]), top, left, CROP, CROP)
        tensor = pictures.to_tensor(pictures.hflip(picture) if flip else picture)
        batch.append(pictures.normalize(tensor, backbone_mean, backbone_std))
    return torch.stack(batch)


if __name__ == "__main__":
    main()
