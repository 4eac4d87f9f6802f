"""Images and what the reference makes of them: images/*, images.json, gemma_images.json and family_images.json beside this script.

Needs transformers 5.23 and Pillow 13 (no torchvision): the reference's own conversion and resizing, by its Pillow backend.
Run: python make_images.py (all), or python make_images.py gemma (gemma_images.json alone, from the images that are there), or
python make_images.py families (family_images.json alone)
"""

import base64
import hashlib
import io
import json
import random
import re
import sys
from pathlib import Path

import numpy as np
import PIL
import transformers
from PIL import Image, ImageOps
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

HERE = Path(__file__).parent
FILES = HERE / "images"


def pattern(width, height, channels, levels=256):
    """Edges, gradients and speckles that pack well."""
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for channel in range(channels):
        ramp = (x * (3 + channel) + y * (5 - channel)) // 2
        checks = ((x // (5 + channel) + y // (7 - channel)) % 2) * 255
        ring = (((x - width // 2) ** 2 + (y - height // 2) ** 2) // (40 + 9 * channel)) % 256
        plane = np.where((x + y) % 61 < 20, checks, np.where(x % 37 < 18, ring, ramp % 256))
        planes.append(plane * (levels - 1) // 255)
    return np.stack(planes, axis=-1)


def rgb(width, height):
    return Image.fromarray(pattern(width, height, 3).astype(np.uint8))


def rgba(width, height):
    return Image.fromarray(pattern(width, height, 4).astype(np.uint8))


def save(name, image, **options):
    image.save(FILES / name, **options)
    return name


def exif(orientation):
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def png16(name, width, height, channels):
    """A PNG of 16 bits by hand: Pillow writes none of colour."""
    import struct
    import zlib

    samples = pattern(width, height, channels, 65536).astype(">u2")
    rows = b"".join(b"\0" + samples[row].tobytes() for row in range(height))
    color = {1: 0, 2: 4, 3: 2, 4: 6}[channels]

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 16, color, 0, 0, 0)
    FILES.joinpath(name).write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )
    # The reference: the upper half of each sample, transparency on white.
    high = (samples >> 8).astype(np.uint8)
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    return name, Image.fromarray(high[..., 0] if channels == 1 else high, mode=mode)


def all_images():
    """(name, what the reference opens, lossy)"""
    alphas = np.stack(np.meshgrid(np.arange(256), np.arange(256)), axis=-1)
    table = np.concatenate([np.repeat(alphas[..., :1], 3, axis=-1), alphas[..., 1:]], axis=-1).astype(np.uint8)
    palette = rgb(90, 70).quantize(32)
    holes = palette.copy()
    yield save("up.png", rgb(100, 60)), None, False
    yield save("down.png", rgb(300, 211)), None, False
    yield save("odd.png", rgb(97, 131)), None, False
    yield save("exact.png", rgb(128, 96)), None, False
    yield save("wide.png", rgb(400, 21)), None, False
    yield save("tall.png", rgb(33, 400)), None, False
    yield save("portrait.png", rgb(150, 260)), None, False
    yield save("dot.png", rgb(1, 1)), None, False
    yield save("gray.png", rgb(70, 50).convert("L")), None, False
    yield save("bits.png", rgb(70, 50).convert("1")), None, False
    yield save("palette.png", palette), None, False
    yield save("holes.png", holes, transparency=3), None, False
    yield save("alpha.png", rgba(80, 64)), None, False
    yield save("gray_alpha.png", rgba(60, 64).convert("LA")), None, False
    yield save("on_white.png", Image.fromarray(table, mode="RGBA")), None, False
    for channels in (1, 2, 3, 4):
        name, opened = png16(f"deep{channels}.png", 40, 36, channels)
        yield name, opened, False
    for orientation in range(1, 9):
        yield save(f"turned{orientation}.png", rgb(67, 45), exif=exif(orientation)), None, False
    yield save("still.gif", palette), None, False
    yield save("holes.gif", holes, transparency=3), None, False
    yield save("lossless.webp", rgb(90, 75), lossless=True), None, False
    yield save("lossless_alpha.webp", rgba(70, 61), lossless=True, exact=True, exif=exif(6)), None, False
    yield save("lossy.webp", rgb(96, 80), quality=90), None, True
    yield save("baseline.jpg", rgb(96, 80), quality=92, subsampling=0), None, True
    yield save("turned.jpg", rgb(96, 64), quality=92, subsampling=2, exif=exif(8)), None, True
    yield save("progressive.jpg", rgb(80, 96), quality=92, subsampling=0, progressive=True), None, True
    yield save("gray.jpg", rgb(80, 96).convert("L"), quality=92), None, True


def golden(name, opened, lossy):
    processor = Qwen2VLImageProcessorPil(patch_size=16, merge_size=2)
    image = ImageOps.exif_transpose(opened or Image.open(FILES / name))
    array = processor.process_image(image, do_convert_rgb=True)
    seen = np.ascontiguousarray(np.moveaxis(array, 0, -1))
    assert seen.dtype == np.uint8
    case = {"file": name, "width": seen.shape[1], "height": seen.shape[0]}
    if lossy:
        # Two decoders of the same file differ by little: the pixels themselves, to compare.
        buffer = io.BytesIO()
        Image.fromarray(seen).save(buffer, "PNG")
        case["png"] = base64.b64encode(buffer.getvalue()).decode()
        return case
    case["sha256"] = hashlib.sha256(seen.tobytes()).hexdigest()
    case["resized"] = []
    for low, high in [(65536, 16777216), (1024, 4096), (1024, 16384)]:
        size = processor._standardize_kwargs(size={"shortest_edge": low, "longest_edge": high})["size"]
        made = processor.resize(array, size, 3, 32)
        made = np.ascontiguousarray(np.moveaxis(np.asarray(made), 0, -1))
        assert made.dtype == np.uint8
        case["resized"].append(
            {
                "min_pixels": low,
                "max_pixels": high,
                "width": made.shape[1],
                "height": made.shape[0],
                "sha256": hashlib.sha256(made.tobytes()).hexdigest(),
            }
        )
    return case


def sizes():
    draw = random.Random(7)
    cases = []
    asked = [(16, 48, 32), (80, 112, 32), (48, 16, 32), (200, 1, 32), (201, 1, 32), (1, 200, 28), (14, 42, 28), (8192, 8192, 32)]
    asked += [(draw.randint(1, 8192), draw.randint(1, 8192), draw.choice([28, 32])) for _ in range(250)]
    asked += [(16 * draw.randint(1, 60), 16 * draw.randint(1, 60), 32) for _ in range(150)]
    for width, height, factor in asked:
        low, high = draw.choice([(65536, 16777216), (3136, 12845056), (1024, 4096), (50176, 50176 * 4), (1, 1 << 24)])
        try:
            tall, wide = smart_resize(height, width, factor, low, high)
        except ValueError:
            wide, tall = 0, 0
        cases.append([width, height, factor, low, high, wide, tall])
    return cases


def gemma_golden(name):
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    case = {"file": name, "filled": []}
    for budget in (70, 280):
        processor = Gemma4ImageProcessorPil(max_soft_tokens=budget)
        array = processor.process_image(ImageOps.exif_transpose(Image.open(FILES / name)), do_convert_rgb=True)
        made = processor.aspect_ratio_preserving_resize(array, 16, budget * 9, 3, processor.resample)
        made = np.ascontiguousarray(np.moveaxis(np.asarray(made), 0, -1))
        assert made.dtype == np.uint8
        # What the model gets are these bytes, divided by 255.
        values = processor(Image.fromarray(made), do_resize=False, return_tensors="np")["pixel_values"][0]
        rows, columns = made.shape[0] // 16, made.shape[1] // 16
        flat = values[: rows * columns].reshape(rows, columns, 16, 16, 3).transpose(0, 2, 1, 3, 4).reshape(made.shape)
        assert (np.abs(flat - made / 255.0) < 1e-6).all()
        case["filled"].append({"rows": budget, "width": made.shape[1], "height": made.shape[0],
                               "sha256": hashlib.sha256(made.tobytes()).hexdigest()})
    return case


def gemma_sizes():
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

    draw = random.Random(11)
    asked = [(1, 1), (1, 9000), (9000, 1), (47, 3000), (336, 480), (480, 336), (8192, 8192), (1000, 3)]
    asked += [(draw.randint(1, 8192), draw.randint(1, 8192)) for _ in range(200)]
    asked += [(draw.randint(1, 40), draw.randint(1, 8192)) for _ in range(50)]
    asked += [(48 * draw.randint(1, 30), 48 * draw.randint(1, 30)) for _ in range(100)]
    cases = []
    for width, height in asked:
        rows, (patch, pooled) = draw.choice([70, 140, 280, 560, 1120]), draw.choice([(16, 3), (14, 2)])
        high, wide = get_aspect_ratio_preserving_size(height, width, patch, rows * pooled**2, pooled)
        cases.append([width, height, patch * pooled, rows, wide, high])
    return cases


def families():
    """The processors of families whose images keep their own size within bounds."""
    from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
    from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil

    return {"qwen2_vl": Qwen2VLImageProcessorPil, "qwen2_5_vl": Qwen2VLImageProcessorPil, "glm4v": Glm4vImageProcessorPil,
            "glm_ocr": Glm46VImageProcessorPil, "paddleocr_vl": PaddleOCRVLImageProcessorPil, "hunyuan_vl": HunYuanVLImageProcessorPil}


def of_family(model_type, of_class):
    """Sizes by the processor's own defaults, and what a byte becomes."""
    processor, draw = of_class(), random.Random(5)
    side = processor.patch_size * processor.merge_size
    more = {"temporal_factor": processor.temporal_patch_size} if model_type.startswith("glm") else {}
    asked = [(1, 1), (1, 200), (1, 201), (27, 27), (5, 500), (500, 5), (3, 29), (29, 3), (4000, 3000), (3000, 4000), (6000, 31)]
    asked += [(draw.randint(1, 4000), draw.randint(1, 4000)) for _ in range(40)]
    asked += [(draw.randint(1, 40), draw.randint(1, 1000)) for _ in range(20)]
    cases, line = [], np.zeros((3, 1, 1), np.uint8)
    for width, height in asked:
        # Only the size matters, so an image of zeros without memory of its own will do.
        image = np.broadcast_to(line, (3, height, width))
        try:
            made = processor.resize(image, size=processor.size, resample=processor.resample, factor=side, **more)
            cases.append([width, height, made.shape[-1], made.shape[-2]])
        except ValueError:
            cases.append([width, height, 0, 0])
    resized = []
    for name in ("gray.png", "odd.png", "down.png"):
        array = processor.process_image(ImageOps.exif_transpose(Image.open(FILES / name)), do_convert_rgb=True)
        # As published: HunyuanOCR's file names a filter that its processor does not use.
        filter_ = 1 if model_type == "hunyuan_vl" else processor.resample
        made = processor.resize(array, size=processor.size, resample=filter_, factor=side, **more)
        made = np.ascontiguousarray(np.moveaxis(np.asarray(made), 0, -1))
        assert made.dtype == np.uint8
        resized.append({"file": name, "width": made.shape[1], "height": made.shape[0],
                        "sha256": hashlib.sha256(made.tobytes()).hexdigest()})
    scaled = processor.normalize(processor.rescale(np.array([0, 255]).reshape(1, 1, 2).repeat(3, 0), 1 / 255),
                                 processor.image_mean, processor.image_std)
    return {"model_type": model_type, "patch": processor.patch_size, "merge": processor.merge_size,
            "black": [float(value) for value in scaled[:, 0, 0]], "white": [float(value) for value in scaled[:, 0, 1]], "sizes": cases, "resized": resized}


def make_families():
    write("family_images.json", {
        "made_with": f"transformers {transformers.__version__}, Pillow {PIL.__version__}",
        "meaning": "black, white: what bytes 0 and 255 become; sizes: width, height, width and height it gets (0 0: refused); "
                   "resized: files of images/ in the size they get, and the digest of their bytes",
        "families": [of_family(*family) for family in families().items()],
    })


def write(name, golden_file):
    text = json.dumps(golden_file, indent=1)
    # A list of numbers on a line of its own.
    text = re.sub(r"\[\s+(-?\d[^\[\]{}]*?)\s+\]", lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", text)
    (HERE / name).write_text(text + "\n")


def make_gemma():
    names = sorted(path.name for path in FILES.iterdir())
    exact = [name for name in names if name.endswith((".png", ".gif")) and not name.startswith("deep")]
    write("gemma_images.json", {
        "made_with": f"transformers {transformers.__version__}, Pillow {PIL.__version__}",
        "images": [gemma_golden(name) for name in exact],
        "sizes_note": "width, height, side of a row's square, most rows, width and height it gets",
        "sizes": gemma_sizes(),
    })


def make_all():
    FILES.mkdir(exist_ok=True)
    golden_file = {
        "made_with": f"transformers {transformers.__version__}, Pillow {PIL.__version__}",
        "images": [golden(*image) for image in all_images()],
        "sizes_note": "width, height, factor, min_pixels, max_pixels, width and height it gets (0 0: refused)",
        "sizes": sizes(),
    }
    write("images.json", golden_file)
    make_gemma()
    make_families()


if __name__ == "__main__":
    {("gemma",): make_gemma, ("families",): make_families}.get(tuple(sys.argv[1:]), make_all)()
