"""Each kind of picture file is seen as a person sees it; whatever gives no picture is a BadImage."""

import io
import os
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import Resize

from unida.data import images
from unida.data.images import BadImage, has_image_suffix, read_rgb, resize

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def photo(width: int, height: int) -> Image.Image:
    """Noise with some structure, so that no two resizes agree by chance."""
    noise = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3))
    slope = np.linspace(0, 120, width)[None, :, None]
    return Image.fromarray(((noise + slope) / 2).clip(0, 255).astype(np.uint8))


def grey_of(path: Path) -> np.ndarray:
    """(H, W), after making sure that all three channels agree."""
    pixels = np.asarray(read_rgb(path))
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


def grey_tiff(
    values: bytes, width: int, height: int, bits: int, sample_format: int = 1, white_is_zero: bool = False
) -> bytes:
    """A one-strip TIFF of grey samples, for depths that Pillow does not write."""
    photometric = 0 if white_is_zero else 1
    tags = [
        (256, width),
        (257, height),
        (258, bits),
        (259, 1),
        (262, photometric),
        (273, 8 + 2 + 12 * 10 + 4),
    ]
    tags += [(277, 1), (278, height), (279, len(values)), (339, sample_format)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return struct.pack("<2sHI", b"II", 42, 8) + struct.pack("<H", len(tags)) + entries + bytes(4) + values


def png(
    width: int,
    height: int,
    depth: int,
    colour_type: int,
    rows: bytes,
    extra: tuple[bytes, bytes] | None = None,
) -> bytes:
    """A PNG of raw rows, with one more chunk before the data if given."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0))
    middle = chunk(*extra) if extra else b""
    return b"\x89PNG\r\n\x1a\n" + header + middle + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_suffixes_in_any_case() -> None:
    assert has_image_suffix(Path("a.JPG"))
    assert has_image_suffix(Path("a.b.TiFf"))
    assert not has_image_suffix(Path("a.gif"))
    assert not has_image_suffix(Path("jpg"))


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "tif"])
def test_plain_rgb_is_exactly_what_pillow_decodes(tmp_path: Path, suffix: str) -> None:
    path = saved(tmp_path / f"a.{suffix}", photo(37, 23))
    with Image.open(path) as reference:
        assert np.array_equal(np.asarray(read_rgb(path)), np.asarray(reference.convert("RGB")))


def test_grey_and_one_bit(tmp_path: Path) -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.array_equal(grey_of(saved(tmp_path / "grey.png", Image.fromarray(ramp))), ramp)
    checker = np.indices((8, 8)).sum(axis=0) % 2 == 1
    assert np.array_equal(grey_of(saved(tmp_path / "bit.png", Image.fromarray(checker))), checker * 255)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    ramp = np.arange(256, dtype=np.uint16).reshape(16, 16)
    path = saved(tmp_path / f"deep.{suffix}", Image.fromarray(ramp * 257))
    assert np.array_equal(grey_of(path), ramp)


def test_a_dark_sixteen_bit_picture_stays_dark(tmp_path: Path) -> None:
    path = saved(tmp_path / "dark.png", Image.fromarray(np.full((4, 4), 200, dtype=np.uint16)))
    assert (grey_of(path) == 1).all()


def test_twelve_bit_tiff_uses_its_own_full_scale(tmp_path: Path) -> None:
    path = tmp_path / "twelve.tif"
    path.write_bytes(grey_tiff(bytes([0xFF, 0xF0, 0x00, 0x80, 0x00, 0x00]), 4, 1, bits=12))  # 4095, 0, 2048, 0
    assert grey_of(path).tolist() == [[255, 0, 128, 0]]


def test_white_is_zero_and_unsigned_32_bit_tiff(tmp_path: Path) -> None:
    inverted = tmp_path / "inverted.tif"
    inverted.write_bytes(grey_tiff(struct.pack("<2H", 0, 65535), 2, 1, bits=16, white_is_zero=True))
    assert grey_of(inverted).tolist() == [[255, 0]]
    unsigned = tmp_path / "unsigned.tif"
    unsigned.write_bytes(grey_tiff(struct.pack("<3I", 0, 2**31, 2**32 - 1), 3, 1, bits=32))
    assert grey_of(unsigned).tolist() == [[0, 128, 255]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 255]], np.int32), [[0, 255]]),
        (np.array([[0, 257, 65535]], np.int32), [[0, 1, 255]]),
        (np.array([[-100, 0, 155]], np.int32), [[0, 100, 255]]),
        (np.array([[0.0, 0.2, 1.0]], np.float32), [[0, 51, 255]]),
        (np.array([[0.0, 51.0, 255.0]], np.float32), [[0, 51, 255]]),
        (np.array([[0.0, 65535.0]], np.float32), [[0, 255]]),
        (np.array([[-1.0, 1.0]], np.float32), [[0, 255]]),
        (np.array([[np.nan, np.inf, 1.0]], np.float32), [[0, 0, 255]]),
        (np.array([[-3.0, -3.0]], np.float32), [[0, 0]]),
    ],
)
def test_int32_and_float_tiff(tmp_path: Path, values: np.ndarray, expected: list[list[int]]) -> None:
    assert grey_of(saved(tmp_path / "a.tif", Image.fromarray(values))).tolist() == expected


def test_cmyk_jpeg_with_and_without_adobe_marker(tmp_path: Path) -> None:
    path = saved(tmp_path / "cmyk.jpg", Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=95)
    assert np.allclose(read_rgb(path).getpixel((8, 8)), RED, atol=4)
    data = path.read_bytes()
    at = data.index(b"\xff\xee")
    path.write_bytes(data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :])
    with Image.open(path) as stripped:
        assert stripped.mode == "CMYK"
        assert "adobe" not in stripped.info
    assert np.allclose(read_rgb(path).getpixel((8, 8)), RED, atol=4)


def test_cmyk_tiff(tmp_path: Path) -> None:
    assert read_rgb(saved(tmp_path / "cmyk.tif", Image.new("CMYK", (4, 4), (255, 0, 255, 0)))).getpixel((1, 1)) == GREEN


def test_alpha_is_laid_on_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (3, 1), (255, 0, 0, 255))
    image.putpixel((1, 0), (255, 0, 0, 0))
    image.putpixel((2, 0), (0, 0, 0, 128))
    seen = read_rgb(saved(tmp_path / "rgba.png", image))
    assert [seen.getpixel((x, 0)) for x in range(3)] == [RED, WHITE, (127, 127, 127)]
    seen = read_rgb(saved(tmp_path / "rgba.webp", image, lossless=True, exact=True))
    assert [seen.getpixel((x, 0)) for x in range(3)] == [RED, WHITE, (127, 127, 127)]


def test_grey_with_alpha(tmp_path: Path) -> None:
    image = Image.new("LA", (2, 1), (40, 255))
    image.putpixel((1, 0), (40, 0))
    assert grey_of(saved(tmp_path / "la.png", image)).tolist() == [[40, 255]]


def test_palette_with_and_without_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *BLUE])
    image.putpixel((1, 0), 1)
    opaque = read_rgb(saved(tmp_path / "p.png", image))
    assert [opaque.getpixel((x, 0)) for x in range(2)] == [RED, BLUE]
    for transparency in (1, bytes([255, 0])):
        seen = read_rgb(saved(tmp_path / "pt.png", image, transparency=transparency))
        assert [seen.getpixel((x, 0)) for x in range(2)] == [RED, WHITE]


def test_transparent_colour_of_rgb_and_grey(tmp_path: Path) -> None:
    image = Image.new("RGB", (2, 1), RED)
    image.putpixel((1, 0), GREEN)
    seen = read_rgb(saved(tmp_path / "rgb.png", image, transparency=GREEN))
    assert [seen.getpixel((x, 0)) for x in range(2)] == [RED, WHITE]
    deep = tmp_path / "deep.png"
    deep.write_bytes(png(2, 1, 16, 0, struct.pack(">B2H", 0, 1000, 40 * 257), (b"tRNS", struct.pack(">H", 1000))))
    assert grey_of(deep).tolist() == [[255, 40]]
    colours = struct.pack(">B6H", 0, 0x1234, 0, 0, 0, 0xFFFF, 0)
    deep.write_bytes(png(2, 1, 16, 2, colours, (b"tRNS", struct.pack(">3H", 0x1234, 0, 0))))
    seen = read_rgb(deep)
    assert [seen.getpixel((x, 0)) for x in range(2)] == [WHITE, GREEN]


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_every_exif_orientation_is_turned_upright(tmp_path: Path, suffix: str) -> None:
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16], upright[:8, 16:], upright[8:, :16] = RED, GREEN, BLUE
    stored_as = {  # how a camera stores the upright picture for each orientation
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.swapaxes(0, 1), 6: np.rot90(upright),
        7: np.rot90(upright, 2).swapaxes(0, 1), 8: np.rot90(upright, -1),
    }  # fmt: skip
    for orientation, stored in stored_as.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        image = Image.fromarray(np.ascontiguousarray(stored))
        seen = np.asarray(read_rgb(saved(tmp_path / f"{orientation}.{suffix}", image, exif=exif))).astype(int)
        assert seen.shape == upright.shape
        for y, x in ((4, 8), (4, 24), (12, 8), (12, 24)):
            assert np.abs(seen[y, x] - upright[y, x]).max() < 40, (orientation, y, x)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF:UserWarning")
def test_damaged_exif_does_not_spoil_the_picture(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", Image.new("RGB", (8, 8), RED), exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    assert np.allclose(read_rgb(path).getpixel((4, 4)), RED, atol=4)


@pytest.mark.parametrize(("kind", "suffix"), [("GIF", "png"), ("WEBP", "webp"), ("TIFF", "tif"), ("PNG", "png")])
def test_first_of_many_frames_whatever_the_suffix(tmp_path: Path, kind: str, suffix: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    path = tmp_path / f"frames.{suffix}"
    options = {"lossless": True} if kind == "WEBP" else {}
    frames[0].save(path, format=kind, save_all=True, append_images=frames[1:], **options)
    assert read_rgb(path).getpixel((4, 4)) == RED


@pytest.mark.parametrize("mode", ["squash", "short"])
@pytest.mark.parametrize("shape", [(301, 203), (203, 301), (64, 64), (64, 97), (20, 31), (33, 500), (1, 9)])
def test_resize_equals_torchvision(mode: images.ResizeMode, shape: tuple[int, int]) -> None:
    image = photo(*shape)
    reference = np.asarray(Resize((64, 64) if mode == "squash" else 64)(image))
    resized = resize(image, mode, 64)
    assert resized.dtype == np.uint8
    assert resized.flags.writeable
    assert np.array_equal(resized, reference)


def test_large_jpeg_is_not_decoded_at_reduced_scale(tmp_path: Path) -> None:
    path = saved(tmp_path / "large.jpg", photo(1200, 900), quality=90)
    with Image.open(path) as image:
        reference = np.asarray(Resize((32, 32))(image.convert("RGB")))
    assert np.array_equal(resize(read_rgb(path), "squash", 32), reference)


def test_too_elongated_to_resize_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 100_000)
    assert resize(Image.new("RGB", (2, 60)), "short", 50).shape == (1500, 50, 3)
    with pytest.raises(BadImage, match="too many pixels"):
        resize(Image.new("RGB", (1, 60)), "short", 50)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "tif"])
def test_truncated_file_is_bad(tmp_path: Path, suffix: str) -> None:
    path = saved(tmp_path / f"a.{suffix}", photo(60, 60))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(BadImage, match=r"^(truncated|truncated or damaged: .*|not an image.*)$") as caught:
        read_rgb(path)
    assert "\n" not in str(caught.value) and "bytes not processed" not in str(caught.value)


def test_no_bytes_no_image_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"")
    with pytest.raises(BadImage, match="empty file"):
        read_rgb(path)
    path.write_text("<html>404 not found</html>")
    with pytest.raises(BadImage, match="not an image"):
        read_rgb(path)
    with pytest.raises(BadImage, match="no such file"):
        read_rgb(tmp_path / "none.jpg")
    with pytest.raises(BadImage, match="is a directory"):
        read_rgb(tmp_path)
    with pytest.raises(BadImage, match="null byte"):
        read_rgb("a\0.jpg")


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
def test_damaged_bytes_raise_nothing_but_bad_image(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "a"
    outcomes = set()
    for kind in ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"):
        buffer = io.BytesIO()
        photo(24, 20).save(buffer, kind)
        for _ in range(60):
            data = np.frombuffer(buffer.getvalue(), np.uint8).copy()
            hits = rng.integers(0, min(len(data), 200), 6)  # headers lie at the front
            data[hits] = rng.integers(0, 256, 6)
            path.write_bytes(data.tobytes())
            try:
                assert read_rgb(path).mode == "RGB"
                outcomes.add("decoded")
            except BadImage:
                outcomes.add("bad")
    assert outcomes == {"decoded", "bad"}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [9460, 13380, 60000])  # Pillow warns, raises, raises
def test_decompression_bomb_is_bad(tmp_path: Path, side: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png(side, side, 1, 0, bytes(64)))
    with pytest.raises(BadImage, match="too many pixels"):
        read_rgb(path)


@pytest.mark.filterwarnings("error")
def test_decompression_bomb_is_bad_when_warnings_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png(9460, 9460, 1, 0, bytes(64)))
    with pytest.raises(BadImage, match="too many pixels"):
        read_rgb(path)


def test_limit_holds_when_pillows_is_lifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    path = tmp_path / "bomb.png"
    path.write_bytes(png(9460, 9460, 1, 0, bytes(64)))
    with pytest.raises(BadImage, match="too many pixels"):
        read_rgb(path)


def test_file_without_permission_is_bad() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = saved(Path(folder) / "a.png", Image.new("RGB", (4, 4)))
        path.chmod(0)
        was_root = os.geteuid() == 0
        if was_root:
            os.seteuid(65534)  # root reads everything
        try:
            with pytest.raises(BadImage, match="permission denied"):
                read_rgb(path)
        finally:
            if was_root:
                os.seteuid(0)
