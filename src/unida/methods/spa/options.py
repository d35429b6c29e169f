"""Every choice in SPA, and the two presets that make them all."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_args

from unida.errors import UserError
from unida.pretext.bins import parse_bins
from unida.support.options import check_numbers, flag, shown

MAX_GRID = 6  # the paper's study goes up to 6×6
LARGEST_VOCABULARY, LARGEST_POOL = 65_536, 1_000_000


def _named(name: str, metavar: str, hint: str = "(default: the preset's)") -> Any:
    return shown(metavar, hint, name=f"spa.{name}")


Switch = Literal["on", "off"]
TaskName = Literal["count", "rotation", "jigsaw", "patch-location", "colorization", "inpainting"]
OF_COUNT = ("spa_grid", "spa_bins", "spa_pool")  # options of the task that counts


@dataclass(frozen=True)
class SPAOptions:
    spa: bool = False
    """Add Subsidiary Prototype Alignment to the method."""
    spa_preset: Annotated[Literal["best", "paper"], _named("preset", "best|paper", "(default: best)")] = "best"
    """best: what helped in our tests (docs/spa.md); paper: as published. Other --spa options change one choice each."""
    spa_words: Annotated[Switch | None, _named("words", "on|off")] = None
    """Put the word histogram into the feature that the method's heads see."""
    spa_pretext: Annotated[Switch | None, _named("pretext", "on|off")] = None
    """Train the pretext task."""
    spa_task: Annotated[TaskName | None, _named("task", "|".join(get_args(TaskName)), "(default: count)")] = None
    """The pretext task; a name here turns it on (docs/pretext.md). count: how many images is a mosaic made of?
    rotation: which way is up? jigsaw: how do the nine tiles lie? patch-location: which quarter is it? colorization:
    which colours has a grey image? inpainting: what was in the hole?"""
    spa_entropy: Annotated[Switch | None, _named("entropy", "on|off")] = None
    """Make the entropy of the words at each location small."""
    spa_place: Annotated[Literal["instead", "beside"] | None, _named("place", "instead|beside")] = None
    """Put the histogram in the feature instead of the pooled vector, or beside it."""
    spa_scale: Annotated[
        Literal["raw", "count", "root", "unit", "batchnorm"] | None, _named("scale", "raw|count|root|unit|batchnorm")
    ] = None
    """Scale the histogram for the heads. raw: as it is; count: times the number of words; root: its square root, as
    long as --spa.share says; unit: to length 20; batchnorm: ReLU of its BatchNorm."""
    spa_share: Annotated[float | None, _named("share", "FLOAT", "(default: 0.5)")] = None
    """With --spa.scale root, the histogram is this many times as long as the pooled feature."""
    spa_vocabulary: Annotated[int | None, _named("vocabulary", "K")] = None
    """Number of words."""
    spa_tap: Annotated[str | None, _named("tap", "NAME", "(default: the last)")] = None
    """Read words at this tap of the backbone. auto: choose as --tap auto does, after the frozen part."""
    spa_similarity: Annotated[Literal["dot", "cosine"] | None, _named("similarity", "dot|cosine")] = None
    """Compare a location's feature with a word by dot product or cosine."""
    spa_temperature: Annotated[float | None, _named("temperature", "FLOAT")] = None
    """Temperature of the softmax over words."""
    spa_init: Annotated[Literal["random", "kmeans"] | None, _named("init", "random|kmeans")] = None
    """Start with random words, or with k-means centres of the features of both domains."""
    spa_learn: Annotated[Switch | None, _named("learn", "on|off")] = None
    """Let the pretext and entropy losses update the words; off: words stay as they started."""
    spa_goal_words: Annotated[Switch | None, _named("goal-words", "on|off")] = None
    """Let the method's own losses update the words too (the paper does not)."""
    spa_updates: Annotated[Literal["turns", "joint"] | None, _named("updates", "turns|joint")] = None
    """Update by goal and pretext losses in turns, with an optimiser each, or in one update."""
    spa_anchored: Annotated[Switch | None, _named("anchored", "on|off")] = None
    """Let the entropy loss pull each location to the word that the pretrained network gives it, not to any word."""
    spa_entropy_of: Annotated[Literal["both", "target"] | None, _named("entropy-of", "both|target")] = None
    """Apply the entropy loss to images of both domains, or of the target only, which has no labels."""
    spa_entropy_weight: Annotated[float | None, _named("entropy-weight", "FLOAT")] = None
    """Weight of the entropy loss."""
    spa_gap: Annotated[Switch | None, _named("gap", "on|off")] = None
    """Scale the entropy loss by how differently the domains use words before training."""
    spa_pretext_weight: Annotated[float | None, _named("pretext-weight", "FLOAT")] = None
    """Weight of the pretext loss."""
    spa_grid: Annotated[int | None, _named("grid", "N")] = None
    """Make mosaics of N × N cells, for the task count."""
    spa_bins: Annotated[str | None, _named("bins", "LIST", "(for instance 1,2-3,4, or auto; default: none merged)")] = (
        None
    )
    """Count these numbers of images as one pretext class; auto merges those whose histogram entropies overlap."""
    spa_pool: Annotated[int | None, _named("pool", "N")] = None
    """Make and keep this many mosaics of each domain with --train tail or head."""
    spa_statistics: Annotated[Literal["mixed", "images"] | None, _named("statistics", "mixed|images")] = None
    """Collect BatchNorm's statistics from images and mosaics, or from images alone."""


# As in the paper. Choices that it leaves open follow its cost table and text (docs/spa.md).
PAPER: dict[str, Any] = {
    "spa_words": "on",
    "spa_pretext": "on",
    "spa_task": "count",
    "spa_entropy": "on",
    "spa_place": "instead",  # ψ(x) ∈ R^K, f_g: R^K → C_s
    "spa_scale": "count",  # not in the paper; raw ψ has a mean of 1/K: heads without bias learn nothing from it
    "spa_share": 0.5,  # ours: for the root alone
    "spa_vocabulary": 1024,  # the only K that gives the cost table's figures
    "spa_similarity": "dot",  # Eq. 4
    "spa_temperature": 1.0,  # Eq. 4
    "spa_init": "random",  # not in the paper
    "spa_learn": "on",  # "the word-prototypes are learnt only through the pretext-task"
    "spa_goal_words": "off",  # min over {h, f_g} for the goal
    "spa_updates": "turns",  # "goal task iterations and pretext task iterations"
    "spa_anchored": "off",  # Eq. 6
    "spa_entropy_of": "both",  # Eq. 6
    "spa_entropy_weight": 1.0,  # Eq. 8 has no weights
    "spa_gap": "off",  # ours
    "spa_pretext_weight": 1.0,
    "spa_grid": 2,  # N_gs = 4
    "spa_bins": "none",
    "spa_pool": 1024,  # ours: the paper makes new mosaics in every step
    "spa_statistics": "mixed",  # as any plain implementation does
}

# The differences were measured on Office-31 (docs/studies/spa.md).
BEST: dict[str, Any] = {
    **PAPER,
    "spa_place": "beside",
    "spa_scale": "root",
    "spa_vocabulary": 256,
    "spa_similarity": "cosine",
    "spa_temperature": 0.05,
    "spa_init": "kmeans",
    "spa_learn": "off",
    "spa_updates": "joint",
    "spa_anchored": "on",
    "spa_entropy_of": "target",
    "spa_entropy_weight": 4.0,  # times the squared gap: 1 to 2 if the domains look different, a tenth if alike
    "spa_gap": "on",
    "spa_pretext": "off",  # with it, a run takes 1.6 times as long and is no better; if it is on:
    "spa_pretext_weight": 0.3,
    "spa_statistics": "images",
}

PRESETS = {"paper": PAPER, "best": BEST}


def resolve(options: SPAOptions) -> SPAOptions:
    """Fill in the preset's choice for every option that the user did not set."""
    open_choices = {
        name: value for name, value in PRESETS[options.spa_preset].items() if getattr(options, name) is None
    }
    if options.spa_task is not None and options.spa_pretext is None:
        open_choices["spa_pretext"] = "on"  # who names a task wants it, whatever the preset says
    resolved = replace(options, **open_choices)
    _check(resolved, options)
    return resolved


def _check(resolved: SPAOptions, given: SPAOptions) -> None:
    check_numbers(resolved, "spa_vocabulary", least=1, most=LARGEST_VOCABULARY)
    check_numbers(resolved, "spa_pool", least=1, most=LARGEST_POOL)
    check_numbers(resolved, "spa_temperature", "spa_share", above=0)
    if resolved.spa_scale != "root" and resolved.spa_share != PRESETS[resolved.spa_preset]["spa_share"]:
        raise UserError(f"--spa.share has no effect with --spa.scale {resolved.spa_scale}: leave one of them out")
    check_numbers(resolved, "spa_entropy_weight", "spa_pretext_weight", least=0)
    check_numbers(resolved, "spa_grid", least=2, most=MAX_GRID)
    parse_bins(resolved.spa_bins, resolved.spa_grid**2)  # type: ignore[arg-type, operator]
    if resolved.spa_task != "count":
        _check_other_task(resolved)
    if not resolved.spa:
        for field in fields(given):
            if field.name != "spa" and getattr(given, field.name) != field.default:
                raise UserError(f"{flag(field.name)} has no effect without --spa: add --spa, or leave it out")


def _check_other_task(resolved: SPAOptions) -> None:
    """A saved config has every choice made: its options of counting are the preset's, and are no mistake."""
    if resolved.spa_pretext == "off":
        raise UserError(f"--spa.task {resolved.spa_task} has no effect with --spa.pretext off: leave one of them out")
    for name in OF_COUNT:
        if getattr(resolved, name) != PRESETS[resolved.spa_preset][name]:
            raise UserError(
                f"{flag(name)} belongs to --spa.task count, not to {resolved.spa_task}: leave one of them out"
            )
