"""Images in folders, archives and IDX files, and tokens in arrays, as people have them, whole and damaged.

The readers are those of torchvision (`ImageFolder`, `Resize`, `CenterCrop`, `MNIST`), webdataset (`tarfile` in stream mode, files
grouped by the name before its first point) and numpy, in as many lines of Pillow, `tarfile` and `struct`.
"""

import gzip
import io
import os
import struct
import tarfile
from pathlib import Path

import numpy
from PIL import Image

CLASSES = 3


class Refused(Exception):
    """The reader does not take the file."""


def drawn(rng):
    """An image with an edge and a ramp, of any mode that a file may have."""
    width, height = rng.randint(1, 40), rng.randint(1, 40)
    pixels = numpy.zeros((height, width, 3), numpy.uint8)
    pixels[..., 0] = numpy.linspace(0, rng.randint(0, 255), width)[None]
    pixels[..., 1] = numpy.linspace(rng.randint(0, 255), 20, height)[:, None]
    pixels[: height // 2, width // 3 :, 2] = rng.randint(0, 255)
    return Image.fromarray(pixels)


def encoded(rng):
    """The bytes of a file, and its extension."""
    image, out = drawn(rng), io.BytesIO()
    if rng.random() < 0.6:
        mode = rng.choice(["RGB", "RGBA", "L", "LA", "P", "1"])
        image.convert(mode).save(out, "PNG")
        return out.getvalue(), "png"
    image.convert(rng.choice(["RGB", "RGB", "L"])).save(out, "JPEG", quality=95, subsampling=0, progressive=rng.random() < 0.3)
    return out.getvalue(), rng.choice(["jpg", "jpeg", "JPG"])


def broken(rng, data):
    """Cuts the file, empties it, or puts another in its place."""
    return rng.choice([data[: rng.randrange(1, max(len(data) - 12, 2))], b"", b"GIF89a", b"<html></html>"])


def sample(data, size):
    """[channels, height, width]: Pillow's RGB, Resize and CenterCrop."""
    try:
        image = Image.open(io.BytesIO(data))
        if image.format not in ("JPEG", "PNG"):
            raise Refused
        image = image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise Refused from error
    width, height = image.size
    short = min(width, height)
    scaled = (int(size * width / short), int(size * height / short))
    if scaled != image.size:
        image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = (int(round((side - size) / 2.0)) for side in scaled)
    return numpy.asarray(image.crop((left, top, left + size, top + size))).transpose(2, 0, 1)


def told(samples):
    return [[label, pixels.reshape(-1).tolist()] for label, pixels in samples]


def keys(size, channels=3):
    return {"channels": channels, "height": size, "width": size, "classes": CLASSES}


def folders(rng, folder):
    size, files, odd = rng.randint(1, 12), [], rng.random() < 0.5
    for label in range(CLASSES):
        place = folder / "images" / f"class {label}"
        place.mkdir(parents=True)
        for number in range(rng.randint(1, 4)):
            data, end = encoded(rng)
            if odd and rng.random() < 0.2:
                data = broken(rng, data)
            inner = place / "deeper" if rng.random() < 0.2 else place
            inner.mkdir(exist_ok=True)
            path = inner / f"{number}.{end}"
            path.write_bytes(data)
            files.append((label, path))
    for name in rng.sample([".DS_Store", "notes.txt", "Thumbs.db"], rng.randint(0, 2)):
        (folder / "images" / "class 0" / name).write_text("nothing to it")
    if odd and rng.random() < 0.3:
        (folder / "images" / "class 1" / "again").symlink_to(rng.choice(["../class 2", "../..", "..", "nowhere.png"]))

    def read():
        links = [path for path in folder.rglob("*") if path.is_symlink()]
        if any(not link.exists() or link.resolve() in link.absolute().parents for link in links):
            # torchvision fails, or follows the circle until the system refuses.
            raise Refused
        named = []
        for label in range(CLASSES):
            place = folder / "images" / f"class {label}"
            walked = [Path(inside) / name for inside, _, names in os.walk(place, followlinks=True) for name in names]
            found = [path for path in walked if path.suffix.lower() in (".jpg", ".jpeg", ".png")]
            found.sort(key=lambda path: path.relative_to(place).parts)
            named += [((2 * at + 1) / (2 * len(found)), label, path) for at, path in enumerate(found)]
        # Each class is spread evenly.
        named.sort(key=lambda one: one[:2])
        return told([(label, sample(path.read_bytes(), size)) for _, label, path in named])

    return {"path": "images", "format": "images"}, keys(size), read


def packed(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def archives(rng, folder):
    size, files = rng.randint(1, 12), []
    for number in range(rng.randint(1, 8)):
        data, end = encoded(rng)
        if rng.random() < 0.05:
            data = broken(rng, data)
        key = rng.choice(["", "deep/er/", "./"]) + f"{number:04}"
        pair = [(f"{key}.{end}", data), (f"{key}.cls", str(rng.randrange(CLASSES)).encode())]
        rng.shuffle(pair)
        files += pair + ([(f"{key}.txt", b"a caption")] if rng.random() < 0.3 else [])
    way = rng.choice(["whole"] * 6 + ["lacking", "doubled", "open", "cut", "joined", "overwritten", "shuffled", "packed"])
    if way == "lacking":
        files.pop(rng.randrange(len(files)))
    if way == "doubled":
        files.insert(rng.randrange(len(files)), rng.choice(files))
    if way == "shuffled":
        rng.shuffle(files)
    data = packed(files)
    if way == "open":
        data = data.rstrip(b"\0")
        data += bytes(-len(data) % 512)
    if way == "cut":
        data = data[: rng.randrange(1, len(data))]
    more = {"joined": packed(files[:2]), "overwritten": packed(files * 3)[len(data) :]}.get(way, b"")
    data += more
    name = "a.tar.gz" if way == "packed" else "a.tar"
    (folder / name).write_bytes(gzip.compress(data) if way == "packed" else data)

    def read():
        samples, labels, images = [], {}, {}
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r|") as tar:
                for entry in tar:
                    before, _, base = entry.name.rpartition("/")
                    stem, _, end = base.partition(".")
                    key, end = f"{before}/{stem}", end.lower()
                    if samples[-1:] != [key]:
                        samples.append(key)
                    kind = labels if end == "cls" else images if end in ("jpg", "jpeg", "png") else {}
                    if key in kind or samples.count(key) > 1:
                        raise Refused
                    kind[key] = tar.extractfile(entry).read()
        except tarfile.TarError as error:
            raise Refused from error
        if not samples or set(labels) != set(samples) or set(images) != set(samples):
            raise Refused
        # What stands behind the end is not read, and not told.
        if more.strip(b"\0"):
            raise Refused
        try:
            return told([(int(labels[key]), sample(images[key], size)) for key in samples])
        except ValueError as error:
            raise Refused from error

    return {"path": name, "format": "webdataset"}, keys(size), read


def idx(rng, folder):
    count, side = rng.randint(1, 20), rng.randint(2, 9)
    kind = rng.choice([8] * 8 + [9, 11, 12, 13])
    values = bytes(rng.randrange(256) for _ in range(count * side * side))
    labels = bytes(rng.randrange(CLASSES + (rng.random() < 0.02)) for _ in range(count - (rng.random() < 0.1)))
    images = struct.pack(">HBBIII", 0, kind, 3, count, side, side) + values
    names = struct.pack(">HBBI", 0, 8, 1, len(labels)) + labels
    if rng.random() < 0.2:
        images = images[: rng.randrange(len(images))]
    elif rng.random() < 0.1:
        images += b"\0" * rng.randint(1, 9)
    is_packed = rng.random() < 0.3
    end = ".gz" if is_packed else ""
    for name, data in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", names)):
        (folder / (name + end)).write_bytes(gzip.compress(data) if is_packed else data)

    def read():
        if kind != 8 or len(images) != 16 + len(values) or len(labels) != count or max(labels, default=0) >= CLASSES:
            raise Refused
        pixels = numpy.frombuffer(images, numpy.uint8, offset=16).reshape(count, 1, side, side)
        return told(zip(labels, pixels))

    return {"path": f"images-idx3-ubyte{end}", "format": "idx", "labels": f"labels-idx1-ubyte{end}"}, keys(side, 1), read


def arrays(rng, folder):
    count = rng.randint(8, 400)
    tokens = numpy.array([rng.randrange(256) for _ in range(count)])
    kind = rng.choice(["<u2", "<u2", "<u4", "<u4", ">u2", "<i4", "<i8", "<f4", "<u1"])
    array = tokens.astype(kind)
    if rng.random() < 0.15 and count % 4 == 0:
        array = numpy.asarray(array.reshape(4, -1), order=rng.choice("CF"))
    is_numpy, wide = rng.random() < 0.5, rng.choice(["tokens-u16", "tokens-u32"])
    out = io.BytesIO()
    if is_numpy:
        numpy.save(out, array)
    else:
        out.write(array.tobytes())
    data = out.getvalue()
    if rng.random() < 0.15:
        data = data[: rng.randrange(len(data))]
    name = "a.npy" if is_numpy else "a.bin"
    (folder / name).write_bytes(data)

    def read():
        try:
            if is_numpy:
                found = numpy.load(io.BytesIO(data))
            else:
                found = numpy.frombuffer(data, "<u2" if wide == "tokens-u16" else "<u4")
        except (ValueError, EOFError, OSError) as error:
            raise Refused from error
        # A tokenizer of bytes has no other tokens.
        if found.size == 0 or found.dtype.kind == "f" or int(found.max()) > 255:
            raise Refused
        return [[int(of) for of in found.reshape(-1)]]

    return {"path": name, "format": wide}, None, read


READERS = {
    "image folders": (folders, "Pillow, as torchvision's ImageFolder, Resize, CenterCrop"),
    "image archives": (archives, "tarfile and Pillow, as webdataset"),
    "IDX files": (idx, "as torchvision's MNIST"),
    "token files": (arrays, f"numpy {numpy.__version__}"),
}
