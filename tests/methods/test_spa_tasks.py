"""SPA with each pretext task: what its losses reach, and that it can be learnt."""

import itertools
from typing import get_args

import numpy as np
import pytest
import torch
from few_steps import Batches, phases_of
from tiny_spa import CLASSES, WORDS, build, make_batches
from torch import Tensor, nn

from unida.data.glyphs import CLASSES as GLYPHS
from unida.data.glyphs import draw
from unida.errors import UserError
from unida.methods.spa.method import PRETEXT
from unida.methods.spa.options import PRESETS, SPAOptions, TaskName, resolve
from unida.models.words import Words
from unida.pretext.base import Decoder, Task
from unida.pretext.count import Count
from unida.pretext.inpainting import Inpainting
from unida.pretext.tasks import OTHER_TASKS
from unida.recipes.base import ImageRecipe, Made, SetRecipe

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
NAMES = get_args(TaskName)


def make_task(name: str, words: int = 32) -> Task:
    return Count(words, 2, "none", 64) if name == "count" else OTHER_TASKS[name](words, MEAN, STD)


def made(task: Task, images: Tensor, draws: np.random.Generator, count: int | None = None) -> Made:
    """What the task's recipe makes of the images; as many as there are, or this many mosaics."""
    if isinstance(task.recipe, SetRecipe):
        return task.recipe.make_of_several(images, np.arange(len(images)), draws, count or len(images))
    assert isinstance(task.recipe, ImageRecipe)
    return Made(*task.recipe.make_each(images, task.recipe.choose(len(images), draws)), torch.arange(len(images)))


def test_every_name_is_a_task() -> None:
    assert set(NAMES) == {"count", *OTHER_TASKS}
    assert {make_task(name).name.replace("_", "-") for name in NAMES} == set(NAMES)


@pytest.fixture(scope="module")
def batches() -> Batches:
    return make_batches()


@pytest.mark.parametrize(
    ("name", "train"), [*zip(OTHER_TASKS, ["all", "tail", "head", "all", "tail"], strict=True), ("inpainting", "head")]
)
def test_gradients_reach_features_words_and_head_but_not_the_methods_heads(
    name: str, train: str, batches: Batches
) -> None:
    method = build("ovanet", "paper", train, task=name, entropy="off")
    source, target = (
        batch._replace(extra={PRETEXT: made(method.task, batch.images, np.random.default_rng(0))}) for batch in batches
    )
    phases_of(method)
    losses = method.word_losses(source, target, [])
    assert set(losses) == {method.task.name}
    losses[method.task.name].backward()
    reached = {part for part, p in method.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert {part for part, p in method.named_parameters() if part.startswith("task.")} <= reached
    assert "method.backbone.vocabulary.prototypes" in reached
    in_backbone = {part for part in reached if part.startswith("method.backbone.backbone.")}
    assert bool(in_backbone) == (train != "head")
    others = reached - in_backbone - {"method.backbone.vocabulary.prototypes"}
    assert all(part.startswith("task.") for part in others)  # f_g is left alone
    shown = {f"{method.task.name}_{method.task.measure}_{domain}" for domain in ("source", "target")}
    assert all(0 <= method.watched[key]() <= 1 for key in shown)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_of_a_batch_is_the_mean_of_its_halves(name: str, batches: Batches) -> None:
    """So that two processes, which share a batch, learn what one learns."""
    torch.manual_seed(0)
    task = make_task(name, WORDS)
    labels = made(task, batches[0].images, np.random.default_rng(0)).labels
    log_words = torch.randn(len(labels), 2, 2, WORDS).log_softmax(dim=3)
    with torch.no_grad():
        whole, first, second = (task(log_words[part], labels[part]) for part in (slice(8), slice(4), slice(4, 8)))
    assert whole.loss.item() == pytest.approx((first.loss.item() + second.loss.item()) / 2, rel=1e-5)
    torch.testing.assert_close(whole.measure, torch.cat([first.measure, second.measure]))


def test_sizes_of_the_decoder_follow_the_map() -> None:
    decoder = Decoder(WORDS, outputs=7)
    seen: list[tuple[int, ...]] = []
    for stage in decoder.stages:
        stage.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape[2:])))
    for height, width, size, between in [
        (7, 7, (56, 56), [(14, 14), (28, 28), (56, 56)]),
        (1, 2, (8, 16), [(2, 4), (4, 8), (8, 16)]),
        (14, 14, (14, 14), [(14, 14)] * 3),
    ]:
        seen.clear()
        found = decoder(torch.randn(2, height, width, WORDS).log_softmax(dim=3), size)
        assert found.shape == (2, 7, *size) and seen == between


def test_inpainting_looks_inside_the_hole_alone() -> None:
    torch.manual_seed(0)
    task, labels = Inpainting(WORDS, MEAN, STD), torch.randint(0, 256, (2, 4, 4, 4), dtype=torch.uint8)
    labels[:, 3] = 0
    labels[0, 3, :2, :2] = labels[1, 3, 1:3, 2:] = 1
    log_words = torch.randn(2, 2, 2, WORDS).log_softmax(dim=3)
    result, answer = task(log_words, labels), task.head(log_words, (4, 4)).detach()
    losses, errors = [], []
    for image, label in zip(answer, labels, strict=True):
        inside = [(c, y, x) for c in range(3) for y in range(4) for x in range(4) if label[3, y, x]]
        assert len(inside) == 12
        differences = [float(image[at]) - (2 * int(label[at]) / 255 - 1) for at in inside]
        losses.append(np.mean(np.square(differences)))
        errors.append(np.mean(np.abs(differences)) / 2)
    assert result.loss.item() == pytest.approx(np.mean(losses), rel=1e-4)
    assert result.measure.tolist() == pytest.approx(errors, rel=1e-4)
    other = labels.clone()
    other[:, :3][(labels[:, 3:] == 0).expand(-1, 3, -1, -1)] = 0
    assert task(log_words, other).loss == result.loss


# Steps of training, and what the mean of the last accuracies must be above. Chance is 1/31 for jigsaw, 1/4 for others.
LEARNT = {"rotation": (32, 0.4), "patch-location": (15, 0.6), "jigsaw": (30, 0.07), "count": (60, 0.33)}
BATCH = 32


@pytest.fixture(scope="module")
def glyphs() -> Tensor:
    """(32, 3, 32, 32) normalised: eight drawn pictures of each of four things."""
    drawn = [np.asarray(draw(name, "flat", 0, 32, number=i)) for i in range(8) for name in list(GLYPHS)[:CLASSES]]
    return (torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25


def train(task: Task, images: Tensor, steps: int) -> list[tuple[float, float]]:
    """Losses and mean measures of steps on a small network."""
    widths = (3, 32, 64, 96)
    network = nn.Sequential()
    for one, other in itertools.pairwise(widths):
        network.extend([nn.Conv2d(one, other, 3, 2, 1), nn.BatchNorm2d(other), nn.ReLU()])
    words, draws = Words(widths[-1], 32), np.random.default_rng(0)
    learning = nn.ModuleList([network, words, task])
    optimiser, found = torch.optim.AdamW(learning.parameters(), lr=6e-3), []
    for _ in range(steps):
        shown = made(task, images, draws, BATCH)
        features = network(shown.images)
        result = task(words(features).unflatten(1, features.shape[2:]), shown.labels)
        optimiser.zero_grad()
        result.loss.backward()
        optimiser.step()
        found.append((result.loss.item(), result.measure.float().mean().item()))
    return found


@pytest.mark.parametrize("name", LEARNT)
def test_classes_can_be_learnt(name: str, glyphs: Tensor) -> None:
    torch.manual_seed(1)
    steps, least = LEARNT[name]
    images = glyphs[:4] if name == "count" else glyphs  # to count many images takes longer to learn
    measures = [measure for _, measure in train(make_task(name), images, steps)]
    assert np.mean(measures[-8:]) > least


@pytest.mark.parametrize("name", ["colorization", "inpainting"])
def test_pictures_can_be_learnt(name: str, glyphs: Tensor) -> None:
    """Better than the best answer that is the same everywhere."""
    torch.manual_seed(0)
    task, images = make_task(name), glyphs[:3]
    labels = made(task, images, np.random.default_rng(1)).labels
    if name == "colorization":
        bins, shares = task.encoded(labels)  # type: ignore[operator]
        share = torch.bincount(bins.flatten(), shares.flatten(), minlength=313) / shares.sum()
        constant = -(share[share > 0] * share[share > 0].log()).sum().item()
    else:
        colours = (labels[:, :3].float() * (2 / 255) - 1).transpose(0, 1)[:, labels[:, 3] > 0]
        constant = colours.var(dim=1, unbiased=False).mean().item()
    losses = [loss for loss, _ in train(task, images, 34)]
    assert np.mean(losses[-5:]) < 0.95 * constant


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_naming_a_task_turns_it_on(preset: str) -> None:
    for task in NAMES:
        resolved = resolve(SPAOptions(spa=True, spa_preset=preset, spa_task=task))  # type: ignore[arg-type]
        assert (resolved.spa_task, resolved.spa_pretext) == (task, "on")
        assert resolve(resolved) == resolved  # as a saved config is read again
    plain = resolve(SPAOptions(spa=True, spa_preset=preset))  # type: ignore[arg-type]
    assert (plain.spa_task, plain.spa_pretext) == ("count", PRESETS[preset]["spa_pretext"])
    assert resolve(plain) == plain


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"spa_pretext": "off"}, r"--spa\.task jigsaw has no effect with --spa\.pretext off"),
        ({"spa_grid": 3}, r"--spa\.grid belongs to --spa\.task count, not to jigsaw"),
        ({"spa_bins": "auto"}, r"--spa\.bins belongs to --spa\.task count"),
        ({"spa": False}, r"--spa\.task has no effect without --spa"),
    ],
)
def test_what_contradicts_the_task_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(SPAOptions(**{"spa": True, "spa_task": "jigsaw", **given}))  # type: ignore[arg-type]
