"""Backbones: equal to timm as a whole, and cut at every tap."""

import copy
from functools import cache

import pytest
import timm
import torch
from torch import Tensor, nn

from unida.errors import UserError
from unida.models.backbone import Backbone, create_backbone, stages_of

# Small models: of every known family, then chains found by watching, then models of the single tap "final".
CHAINS = [
    "resnet18",
    "tf_efficientnet_lite0",
    "mobilenetv3_small_050",
    "mobilenetv4_conv_small_035",
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "test_vit2",  # register tokens, average pooling
    "convnext_atto",
    "test_convnext2",
    "regnetx_002",
    "tiny_vit_5m_224",
    "test_mambaout",  # channels last
    "densenet121",  # its stages are in a row with single layers
]
SINGLE = ["dpn48b", "xcit_nano_12_p16_224"]  # a feature map, and tokens with a class token


@cache
def cached_backbone(name: str) -> Backbone:
    torch.manual_seed(0)
    return create_backbone(name, weights="none").eval()


def backbone_and_images(name: str) -> tuple[Backbone, Tensor]:
    """A backbone, shared between tests, and small images."""
    return cached_backbone(name), torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def forget(backbone: Backbone) -> None:
    """TinyViT keeps a table of its weights while it is in evaluation mode, with the gradient of that moment."""
    backbone.train().eval()


@pytest.mark.parametrize("name", CHAINS + SINGLE)
def test_forward_equals_timm(name: str) -> None:
    backbone, images = backbone_and_images(name)
    model = backbone.model
    with torch.no_grad():
        expected = model.forward_head(model.forward_features(images), pre_logits=True)
        features = backbone(images)
    assert torch.equal(features, expected)
    assert features.shape == (2, backbone.num_features)


@pytest.mark.parametrize("name", CHAINS)
def test_cut_at_every_tap_changes_nothing(name: str) -> None:
    backbone, images = backbone_and_images(name)
    with torch.no_grad():
        whole = backbone.run(images)
        for tap in backbone.taps:
            state = backbone.run(images, upto=tap)
            kept = state.clone()
            assert torch.equal(backbone.run(state, after=tap), whole), tap
            assert torch.equal(state, kept), f"the layers behind {tap} worked in place on a state one may keep"


@pytest.mark.parametrize("name", CHAINS + SINGLE)
def test_spatial_shape_at_every_tap(name: str) -> None:
    backbone, images = backbone_and_images(name)
    height, state, before = images.shape[2], images, None
    with torch.no_grad():
        for tap in backbone.taps:
            state, before = backbone.run(state, after=before, upto=tap), tap
            spatial = backbone.spatial(state, tap)
            batch, channels, rows, columns = spatial.shape
            assert (batch, channels) == (2, backbone.channels(tap)), tap
            assert rows == columns
            assert rows <= height
    assert rows == height // (16 if state.ndim == 3 else 32)


def test_taps_by_family() -> None:
    assert cached_backbone("resnet18").taps == ("stem", "layer1", "layer2", "layer3", "layer4")
    lite_blocks = tuple(f"blocks.{i}" for i in range(7))
    assert cached_backbone("tf_efficientnet_lite0").taps == ("stem", *lite_blocks, "head")
    assert cached_backbone("mobilenetv3_small_050").taps[-1] == "blocks.5"
    vit_blocks = tuple(f"blocks.{i}" for i in range(12))
    assert cached_backbone("vit_tiny_patch16_224").taps == ("embed", *vit_blocks, "norm")
    assert cached_backbone("convnext_atto").taps == (
        "stem", "stages.0", "stages.1", "stages.2", "stages.3", "norm",
    )  # fmt: skip
    assert cached_backbone("regnetx_002").taps == ("stem", "s1", "s2", "s3", "s4")
    assert cached_backbone("tiny_vit_5m_224").taps == ("patch_embed", "stages.0", "stages.1", "stages.2", "stages.3")
    assert [cached_backbone(name).taps for name in SINGLE] == [("final",)] * 2


class Watched(nn.Module):
    """Three convolutions in a row, with something between the second and the third."""

    pretrained_cfg = {"input_size": (3, 8, 8)}  # noqa: RUF012
    num_features = 3

    def __init__(self, between: str) -> None:
        super().__init__()
        self.between = between
        self.third = nn.Conv2d(3, 3, 1)  # timm may build a layer before others that run first
        self.first, self.second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.act, self.plain = nn.ReLU(inplace=True), nn.Identity()
        self.position = nn.Parameter(torch.zeros(3, 8, 8))  # as in a new model

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        if self.between == "layers without weights":
            x = self.plain(self.act(x))
        elif self.between == "addition":
            x = x + self.position
        elif self.between == "addition in place":
            x += self.position
        elif self.between == "second time":
            x = self.second(x)
        elif self.between == "number":
            x = self.act(x) if x.mean().item() > 0 else x
        return self.third(x)


@pytest.mark.parametrize("between", ["layers without weights", "nothing"])
def test_a_chain_is_found_by_watching(between: str) -> None:
    backbone = Backbone(Watched(between), "watched", (0.5,) * 3, (0.5,) * 3)
    assert backbone.taps == ("first", "second", "third")  # the activation would write over a kept output of `second`
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(backbone.run(images), backbone.model.forward_features(images))


@pytest.mark.parametrize("between", ["addition", "addition in place", "second time", "number"])
def test_what_is_no_chain_is_one_stage(between: str) -> None:
    backbone = Backbone(Watched(between), "watched", (0.5,) * 3, (0.5,) * 3)
    assert backbone.taps == ("final",)
    with pytest.raises(UserError, match=r"--train tail: backbone 'watched' cannot be cut .*: use --train all or head"):
        _ = backbone.default_tap


def test_watching_leaves_the_model_and_random_state_alone() -> None:
    torch.manual_seed(0)
    model = timm.create_model("regnetx_002", num_classes=0)
    before, random_state = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    assert len(stages_of(model)) == 5
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(module.training and "forward" not in vars(module) for module in model.modules())
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())


def test_channels_of_known_networks() -> None:
    resnet = cached_backbone("resnet50")
    assert [resnet.channels(tap) for tap in resnet.taps] == [64, 256, 512, 1024, 2048]
    lite = cached_backbone("tf_efficientnet_lite0")
    assert [lite.channels(tap) for tap in lite.taps] == [32, 16, 24, 40, 80, 112, 192, 320, 1280]


def test_measuring_channels_leaves_the_weights_and_random_state_alone() -> None:
    backbone = create_backbone("test_efficientnet", weights="none").train()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    random_state = torch.get_rng_state()
    backbone.channels("stem")
    assert torch.equal(torch.get_rng_state(), random_state)
    assert backbone.training
    for key, value in backbone.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "test_vit2"])
def test_spatial_puts_every_token_at_its_place(name: str) -> None:
    """The embedding of a single patch differs from the rest: it must show at that patch's row and column."""
    backbone, images = backbone_and_images(name)
    changed = images.clone()
    changed[:, :, 16:32, 48:64] += 1.0  # row 1, column 3 of the 4×4 grid
    with torch.no_grad():
        maps = [backbone.spatial(backbone.run(x, upto="embed"), "embed") for x in (images, changed)]
    moved = (maps[0] - maps[1]).abs().sum(dim=(0, 1)) > 0
    assert moved.nonzero().tolist() == [[1, 3]]


def test_spatial_of_oblong_images() -> None:
    backbone = cached_backbone("vit_tiny_patch16_224")
    state = backbone.run(torch.randn(1, 3, 64, 144), upto="embed")  # 4×9 = 36 tokens look square, and are not
    tokens = state[:, 1:]
    spatial = backbone.spatial(state, "embed", image_size=(64, 144))
    assert spatial.shape == (1, 192, 4, 9)
    assert torch.equal(spatial[0, :, 2, 5], tokens[0, 2 * 9 + 5])
    for width, count in ((96, 24), (80, 20)):
        state = backbone.run(torch.randn(1, 3, 64, width), upto="embed")
        assert backbone.spatial(state, "embed", (64, width)).shape == (1, 192, 4, count // 4)
        with pytest.raises(UserError, match=f"the {count} tokens of backbone 'vit_tiny_patch16_224' form no"):
            backbone.spatial(state, "embed")


def test_spatial_of_channels_last_model() -> None:
    torch.manual_seed(0)
    model = timm.create_model(
        "swin_tiny_patch4_window7_224",
        num_classes=0, pretrained_cfg_overlay={"input_size": (3, 64, 64)},
        img_size=64, window_size=2, embed_dim=12, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1),
    ).eval()  # fmt: skip
    backbone = Backbone(model, "swin", (0.5,) * 3, (0.5,) * 3)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        state = backbone.run(images)
        spatial = backbone.spatial(state, "norm")
        assert spatial.shape == (2, backbone.channels("norm"), 2, 2)
        assert torch.equal(spatial[:, :, 0, 1], state[:, 0, 1, :])
        assert torch.equal(backbone(images), model.forward_head(model.forward_features(images), pre_logits=True))


@pytest.mark.parametrize("name", CHAINS)
def test_gradient_reaches_only_what_lies_behind_the_cut(name: str) -> None:
    backbone, images = backbone_and_images(name)
    forget(backbone)
    tap = backbone.taps[1]
    state = backbone.run(images, upto=tap).detach()
    backbone.zero_grad()
    backbone.pool(backbone.run(state, after=tap)).pow(2).sum().backward()
    reached = {id(p) for p in backbone.parameters() if p.grad is not None}
    frozen = {id(p) for p in backbone.parameters_upto(tap)}
    assert reached == {id(p) for p in backbone.parameters()} - frozen
    backbone.zero_grad()


@pytest.mark.parametrize("name", CHAINS + SINGLE)
def test_parameters_upto_a_tap_are_those_used_before_it(name: str) -> None:
    backbone, images = backbone_and_images(name)
    parameters = list(backbone.parameters())
    for tap in backbone.taps[:: len(backbone.taps) - 1 or 1]:  # the first and the last
        forget(backbone)
        state = backbone.run(images, upto=tap)
        gradients = torch.autograd.grad(state.sum(), parameters, allow_unused=True)
        used = {id(p) for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None}
        assert used == {id(p) for p in backbone.parameters_upto(tap)}


def test_copies_run_their_own_weights() -> None:
    backbone, images = backbone_and_images("resnet18")
    twin = copy.deepcopy(backbone)
    nn.init.zeros_(twin.model.conv1.weight)
    with torch.no_grad():
        assert not torch.equal(twin(images), backbone(images))


def test_state_dict_has_timm_names() -> None:
    backbone = cached_backbone("resnet18")
    assert set(backbone.state_dict()) == {f"model.{key}" for key in backbone.model.state_dict()}


@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0", "test_vit2", "convnext_atto"])
def test_channels_last_and_autocast(name: str) -> None:
    backbone, images = backbone_and_images(name)
    with torch.no_grad():
        expected = backbone(images)
        twin = copy.deepcopy(backbone).to(memory_format=torch.channels_last)
        relaid = twin(images.contiguous(memory_format=torch.channels_last))
        assert (relaid - expected).norm() <= 1e-4 * expected.norm()
        with torch.autocast("cpu", dtype=torch.float16):
            rough = backbone(images)
        assert (rough.float() - expected).norm() <= 0.01 * expected.norm()


def test_other_sizes_than_the_training_size() -> None:
    for size in (96, 224):
        assert cached_backbone("vit_tiny_patch16_224")(torch.randn(1, 3, size, size)).shape == (1, 192)
    assert cached_backbone("vit_tiny_patch16_224").input_size == (224, 224)


def test_run_between_two_taps() -> None:
    backbone, images = backbone_and_images("resnet18")
    with torch.no_grad():
        state = backbone.run(images, upto="layer1")
        assert torch.equal(backbone.run(state, after="layer1", upto="layer1"), state)
        middle = backbone.run(state, after="layer1", upto="layer3")
        assert torch.equal(middle, backbone.run(images, upto="layer3"))
    with pytest.raises(UserError, match="'layer1' comes before tap 'layer3'"):
        backbone.run(state, after="layer3", upto="layer1")


def test_unknown_tap_lists_the_taps() -> None:
    backbone, images = backbone_and_images("resnet18")
    with pytest.raises(UserError, match=r"no tap 'layer_2' \(did you mean 'layer2'\?\); taps are stem, layer1"):
        backbone.run(images, upto="layer_2")
    for call in (backbone.channels, backbone.parameters_upto):
        with pytest.raises(UserError, match="no tap 'xyz'"):
            call("xyz")


def test_no_spatial_map() -> None:
    with pytest.raises(UserError, match="no spatial map at tap 'layer4'"):
        cached_backbone("resnet18").spatial(torch.zeros(2, 512), "layer4")


def test_freezing_leaves_only_what_follows_to_be_trained() -> None:
    backbone = create_backbone("test_resnet", weights="none")
    backbone.freeze("layer2", torch.float16)
    trained = {name for name, parameter in backbone.model.named_parameters() if parameter.requires_grad}
    assert trained == {n for n, _ in backbone.model.named_parameters() if n.startswith(("layer3", "layer4"))}


@pytest.mark.parametrize(
    ("name", "tap"),
    [
        ("tf_efficientnet_lite0", "blocks.5"),
        ("resnet18", "layer3"),
        ("test_vit", "blocks.3"),
        ("test_convnext", "stages.2"),
        ("regnetx_002", "s3"),
        ("tiny_vit_5m_224", "stages.2"),
        ("gmixer_12_224", "blocks.8"),  # a token model of equal blocks
        ("densenet121", "features.transition3"),
    ],
)
def test_default_taps(name: str, tap: str) -> None:
    assert cached_backbone(name).default_tap == tap
