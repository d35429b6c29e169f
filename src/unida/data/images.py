"""Any picture file → 8-bit RGB as a person sees it, and the two ways of resizing it."""

import os
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})

# Pictures that are not read, to tell them from other files.
OF_PHONES_AND_THE_WEB = (".heic", ".heif", ".avif", ".jxl", ".gif", ".svg", ".ico", ".jfif", ".jpe", ".jp2")
OF_CAMERAS = (".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".raw")
OF_PROGRAMS = (".psd", ".xcf", ".eps", ".tga", ".ppm", ".pgm", ".pbm")
OTHER_PICTURES = frozenset({*OF_PHONES_AND_THE_WEB, *OF_CAMERAS, *OF_PROGRAMS})

ResizeMode = Literal["squash", "short"]

# Pillow's own default for "possibly a decompression bomb". Pillow only warns from here to twice as much, and
# its limit is a global that any code may change; here everything above is bad, with any warnings filter.
MAX_PIXELS = 1024**3 // 4 // 3

# Formats that files with these suffixes really have (a GIF named .jpg is common). Not all of Pillow's formats:
# for some of them it calls an external program.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")

_TIFF_BITS_PER_SAMPLE, _TIFF_PHOTOMETRIC, _TIFF_SAMPLE_FORMAT = 258, 262, 339


class BadImage(Exception):
    """A file that gives no picture; ``str(error)`` is a short reason without the file's name."""


def has_image_suffix(path: Path) -> bool:
    """Whether the name ends like a picture's, in upper or lower case."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def why_no_image(path: Path) -> str:
    """Why a file without an image's suffix is left out."""
    if path.suffix.lower() in OTHER_PICTURES:
        return f"a picture in a format that is not read ({path.suffix}): convert it to jpg or png"
    return f"not an image file: {path.suffix or 'no suffix'}"


def os_reason(error: OSError) -> str:
    """The operating system's reason in a few lower-case words: "permission denied"."""
    return (error.strerror or str(error) or type(error).__name__).lower()


def read_rgb(path: str | os.PathLike[str], at_least: int | None = None) -> Image.Image:
    """The first frame of a picture file, upright, in mode RGB, on white where it is transparent.

    Args:
        at_least: of a large JPEG, a smaller picture is enough, whose sides are not shorter than this: it is decoded
            many times as fast. For thumbnails only, not for a network.

    Raises:
        BadImage: the file cannot be read or gives no picture. Nothing else is raised for a bad file.
    """
    try:
        stream = open(path, "rb")  # noqa: SIM115 (closed below; only the opening may fail with an OS reason)
    except OSError as error:
        raise BadImage(os_reason(error)) from error
    except ValueError as error:  # a null byte in the name
        raise BadImage(_one_line(error)) from error
    with stream:
        return decode_rgb(stream, at_least)


def decode_rgb(stream: BinaryIO, at_least: int | None = None, most_pixels: int = MAX_PIXELS) -> Image.Image:
    """`read_rgb` for an open, seekable file. A picture of more pixels than `most_pixels` is not even decoded."""
    try:
        if stream.seek(0, os.SEEK_END) == 0:
            raise BadImage("empty file")
        stream.seek(0)
        with Image.open(stream, formats=_FORMATS) as image:
            _check_pixel_count(image.width, image.height, most_pixels)
            if at_least is not None:
                image.draft(None, (at_least, at_least))
            image.load()
            return _to_rgb(_upright(image))
    except BadImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(_too_many_pixels()) from error
    except UnidentifiedImageError as error:
        raise BadImage("not an image, or damaged from its first bytes") from error
    except Exception as error:  # decoders raise nearly anything on damaged bytes; one file must not end a run
        reason = _one_line(error)
        if "file is truncated" in reason:  # Pillow's words, with a number of bytes that says nothing
            raise BadImage("truncated") from error
        raise BadImage(f"truncated or damaged: {reason}") from error


def resize(image: Image.Image, mode: ResizeMode, size: int) -> np.ndarray:
    """Resize as torchvision's ``Resize`` does a PIL image: bilinear, antialiased.

    Args:
        image: any RGB image.
        mode: "squash" gives size × size; "short" gives the short side ``size`` and keeps the aspect ratio.
        size: pixels.

    Returns:
        uint8 (H, W, 3).

    Raises:
        BadImage: the picture is so long and narrow that it would exceed `MAX_PIXELS` when resized.
    """
    width, height = resized_shape(image.width, image.height, mode, size)
    _check_pixel_count(width, height)
    return np.array(image.resize((width, height), Image.Resampling.BILINEAR))


def resized_shape(width: int, height: int, mode: ResizeMode, size: int) -> tuple[int, int]:
    """(width, height) after `resize`; the long side is rounded down, as torchvision does."""
    if mode == "squash":
        return size, size
    if width <= height:
        return size, int(size * height / width)
    return int(size * width / height), size


def _check_pixel_count(width: int, height: int, most: int = MAX_PIXELS) -> None:
    if width < 1 or height < 1:
        raise BadImage("has no pixels")
    if width * height > min(most, MAX_PIXELS):
        raise BadImage(_too_many_pixels(most))


def _too_many_pixels(most: int = MAX_PIXELS) -> str:
    return f"too many pixels (more than {min(most, MAX_PIXELS):,})"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _upright(image: Image.Image) -> Image.Image:
    """Turn the image by its EXIF orientation; a damaged EXIF block is ignored."""
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:  # the EXIF parser raises nearly anything, too
        return image
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return Image.fromarray(_deep_grey_to_8bit(image)).convert("RGB")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, _to_rgba(image)).convert("RGB")
    # CMYK needs no special case: Pillow reads every CMYK JPEG as Adobe writes them (inverted), as browsers do.
    return image.convert("RGB")


def _to_rgba(image: Image.Image) -> Image.Image:
    key = image.info.get("transparency")
    if image.mode == "RGB" and isinstance(key, tuple) and max(key) > 255:
        # 16-bit RGB: Pillow keeps the high byte of the pixels, but all of the transparent colour.
        image.info["transparency"] = tuple(value >> 8 for value in key)
    return image.convert("RGBA")


def _deep_grey_to_8bit(image: Image.Image) -> np.ndarray:
    """Grey of more than 8 bits, or float → uint8 (H, W). Pillow's own conversion would clip at 255."""
    tags = getattr(image, "tag_v2", {})  # TIFF only
    values = np.asarray(image)
    if image.mode == "I" and tags and tags.get(_TIFF_SAMPLE_FORMAT, (1,))[0] == 1:
        values = values.view(np.uint32)  # unsigned 32-bit samples, which Pillow holds as signed
    if image.mode.startswith("I;16"):
        full_scale = 2.0 ** tags.get(_TIFF_BITS_PER_SAMPLE, (16,))[0] - 1  # 12-bit files come in this mode too
    elif image.format == "PNG":
        full_scale = 65535.0  # older Pillow gives 16-bit PNG as mode "I"
    else:
        full_scale = None
    grey = _scale_to_8bit(values, full_scale, is_float=image.mode == "F")
    if tags.get(_TIFF_PHOTOMETRIC) == 0:  # "white is zero": Pillow respects it for 8-bit files only
        grey = 255 - grey
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return grey


def _scale_to_8bit(values: np.ndarray, full_scale: float | None, is_float: bool) -> np.ndarray:
    """Linear map of [0, full_scale] to 0…255.

    32-bit and float files do not say what white is. It is the smallest of 1 (float only), 255 and 65535 that no
    value exceeds. If none fits, or there are negative values, the smallest value is black and the largest white.
    """
    if is_float:
        values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    values = values.astype(np.float64)
    low, high = 0.0, full_scale
    if high is None:
        low, largest = float(values.min()), float(values.max())
        usual = [white for white in (1.0, 255.0, 65535.0) if largest <= white and (is_float or white > 1)]
        low, high = (0.0, usual[0]) if low >= 0 and usual else (low, largest)
    if high <= low:  # all values alike and below zero
        return np.zeros(values.shape, dtype=np.uint8)
    scaled = (values - low) * (255.0 / (high - low))
    return np.rint(scaled.clip(0, 255)).astype(np.uint8)
