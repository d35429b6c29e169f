"""Answers of an exported model: python FILE.py PICTURE_OR_FOLDER … > answers.csv

This needs onnxruntime, numpy and pillow, and nothing else. The model lies beside this file: the same name with .onnx.
"""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
AT_ONCE = 16


def read(path: str | Path, about: dict[str, Any]) -> np.ndarray:
    """A picture file → uint8 (crop, crop, 3): upright, on white where it is transparent, resized, the centre of it."""
    with Image.open(path, formats=FORMATS) as opened:
        image = ImageOps.exif_transpose(opened)
        if image.mode in ("I", "F"):
            raise ValueError("grey of more than 16 bits: save it with 8 bits first")
        if image.mode.startswith("I;16"):
            image = Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
        if image.has_transparency_data:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        image = image.convert("RGB")
    size, crop, short = about["image_size"], about["crop"], min(image.size)
    squash = about["resize"] == "squash"
    width, height = (size if squash else int(size * side / short) for side in image.size)
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    top, left = round((height - crop) / 2), round((width - crop) / 2)
    return pixels[top : top + crop, left : left + crop]


def answers(
    model: str | Path, paths: Sequence[str | Path], threads: int = 0
) -> Iterator[tuple[str, str, float, float, str]]:
    """For each file: path, label, probability of the best class, unknown score, and why it was skipped.

    Args:
        threads: of the network; 0: one for each core.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["unida"])
    names = [*about["classes"], about["unknown"]]
    for start in range(0, len(paths), AT_ONCE):
        good, pixels = [], []
        for path in paths[start : start + AT_ONCE]:
            try:
                pixels.append(read(path, about))
                good.append(str(path))
            except Exception as error:  # of any kind: decoders raise nearly anything on damaged bytes
                yield str(path), "", 0.0, 0.0, " ".join(str(error).split())
        if good:
            outputs = session.run(["label", "probability", "unknown_score"], {"images": np.stack(pixels)})
            for path, label, probability, unknown in zip(good, *outputs, strict=True):
                yield path, names[label], float(probability), float(unknown), ""


def files(given: Sequence[str]) -> list[Path]:
    """The given files, and the pictures in the given folders."""
    found: list[Path] = []
    for path in map(Path, given):
        found += sorted(inside(path)) if path.is_dir() else [path]
    return found


def inside(folder: Path, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
    """Pictures below a folder. Links are followed, except back to a folder above them; hidden names are left out."""
    try:
        status, paths = folder.stat(), list(folder.iterdir())
    except OSError:
        yield folder  # it will be listed as skipped, with the reason
        return
    if (status.st_dev, status.st_ino) in above:
        return
    for path in paths:
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from inside(path, (*above, (status.st_dev, status.st_ino)))
        elif path.suffix.lower() in SUFFIXES and (path.is_file() or not path.exists()):  # a pipe would wait forever
            yield path


def complaint(given: Sequence[str], model: Path) -> str | None:
    """What is wrong with the arguments; an empty text if the usage says it all, None if nothing is wrong."""
    wrong = next((path for path in given if not Path(path).exists()), None)
    if not given or {"-h", "--help"} & set(given):
        return ""
    if wrong is not None:
        return f"{wrong}: no such file or folder\n"
    return None if model.is_file() else f"{model}: no such file; the model must lie beside this script\n"


if __name__ == "__main__":
    model = Path(__file__).with_suffix(".onnx")
    if (told := complaint(sys.argv[1:], model)) is not None:
        usage = f"usage: python {Path(__file__).name} PICTURE_OR_FOLDER [PICTURE_OR_FOLDER …] > answers.csv"
        print(f"{told}{usage}", file=sys.stderr)
        sys.exit(0 if {"-h", "--help"} & set(sys.argv[1:]) else 2)
    out = csv.writer(sys.stdout)
    out.writerow(["path", "label", "probability", "unknown_score", "skipped"])
    for path, label, probability, unknown, reason in answers(model, files(sys.argv[1:])):
        numbers = ["", ""] if reason else [f"{probability:.4f}", f"{unknown:.4f}"]
        out.writerow([path, label, *numbers, reason])
