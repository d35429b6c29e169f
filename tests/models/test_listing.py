"""What is said about known backbones is true, and measured figures are shown as they are."""

import pytest
import timm
import torch
from torch import nn

from unida.errors import UserError
from unida.models import listing
from unida.models.known import KNOWN, Known
from unida.models.listing import Measured, backbone_lines, read_measured
from unida.models.options import default_backbone

HEADER = "backbone,mode,method,setting,answering,hos,seeds"


def bytes_of(model: nn.Module) -> int:
    return sum(value.numel() * value.element_size() for value in model.state_dict().values())


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_sizes_are_those_of_timms_models(known: Known) -> None:
    with torch.device("meta"):
        complete, plain = timm.create_model(known.name), timm.create_model(known.name, num_classes=0)
    assert known.repository == timm.get_pretrained_cfg(known.name).hf_hub_id
    assert known.parameters == round(sum(p.numel() for p in plain.parameters()) / 1e6, 1)
    assert known.megabytes == round(bytes_of(complete) / 1e6)
    assert known.features == getattr(plain, "head_hidden_size", None) or plain.num_features


def test_the_defaults_are_among_them() -> None:
    assert {default_backbone(has_gpu) for has_gpu in (True, False)} <= {known.name for known in KNOWN}


def test_the_committed_figures_can_be_read_and_are_of_known_backbones() -> None:
    rows = read_measured(listing.MEASURED.read_text("utf-8"))
    assert listing.MEASURED.read_text("utf-8").splitlines()[0] == HEADER == ",".join(Measured._fields)
    assert {row.backbone for row in rows} <= {known.name for known in KNOWN}
    assert all(1 < row.hos <= 100 and row.seeds >= 1 for row in rows)  # in percent


def test_measured_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""{HEADER}
mobilenetv2_100,tail,ovanet,UniDA,alone,70.04,3
mobilenetv2_100,tail,ovanet,UniDA,together,80.16,3
mobilenetv2_100,tail,ovanet,OSDA,together,81,3
mobilenetv2_100,head,source-only,UniDA,alone,60,1
"""
    rows = read_measured(text)
    monkeypatch.setattr(listing, "read_measured", lambda text: rows)
    lines = backbone_lines()
    start = lines.index("mobilenetv2_100")
    assert lines[start + 4 : start + 7] == [
        "  HOS on Office-31: UniDA 70.0 alone, 80.2 together; OSDA 81.0 together (ovanet, --train tail, 3 seeds)",
        "  HOS on Office-31: UniDA 60.0 alone (source-only, --train head, 1 seed)",
        "",
    ]
    assert lines.count("  HOS on Office-31: not measured") == len(KNOWN) - 1


@pytest.mark.parametrize("row", ["a,tail,ovanet,UniDA,alone,many,3", "a,tail,ovanet", "a,b,c,d,e,1,2,3"])
def test_a_damaged_row_is_named(row: str) -> None:
    with pytest.raises(UserError, match="line 3 cannot be read"):
        read_measured(f"{HEADER}\na,tail,ovanet,UniDA,alone,70,3\n{row}\n")
