"""Features of another backbone: open one by name, show it the images of a folder, look at a map in the middle.

    python examples/other_backbone.py [OUT] [NAME] [WEIGHTS]

NAME is any model of timm. WEIGHTS is a .safetensors or .pth file, or "none" for random weights. Without it, pretrained
weights come from the name. In a run, the same: `unida adapt … --backbone NAME --weights FILE`.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from unida.data.augment import Preprocess
from unida.data.folders import scan
from unida.data.glyphs import write_glyphs
from unida.data.pixels import decode_in_memory
from unida.models.backbone import create_backbone

if {"-h", "--help"} & set(sys.argv):
    sys.exit(__doc__)
OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/other-backbone")
NAME = sys.argv[2] if len(sys.argv) > 2 else "tf_efficientnet_lite0"
WEIGHTS = sys.argv[3] if len(sys.argv) > 3 else None

if __name__ == "__main__":
    folder = write_glyphs(OUT, shared=2, source_private=0, target_private=0, per_class=4).source
    files, skipped = scan(folder)  # in the order of their digests
    pixels = decode_in_memory(files, "squash", size=96)
    backbone = create_backbone(NAME, WEIGHTS).eval()
    preprocess = Preprocess(80, backbone.mean, backbone.std, torch.device("cpu"))
    with torch.inference_mode():
        images = preprocess.test_view(pixels, np.arange(len(pixels)))  # (N, 3, 80, 80), normalised
        features = backbone(images)  # (N, num_features)
        tap = backbone.default_tap  # one of backbone.taps: where --train tail cuts it
        maps = backbone.spatial(backbone.run(images, upto=tap), tap)  # (N, channels, height, width)
    print(f"{NAME}: taps {', '.join(backbone.taps)}")
    print(f"features {tuple(features.shape)}; maps at {tap} {tuple(maps.shape)}; skipped {len(skipped)} files")
