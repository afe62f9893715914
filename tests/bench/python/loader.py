"""Samples in a second of PyTorch's DataLoader, which decodes, resizes and augments each image each time.

    python loader.py FOLDER SIDE BATCH WORKERS PASSES
"""

import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

SHIFT = 16


class Folder(Dataset):
    """A folder with a folder of images for each class."""

    def __init__(self, place, side):
        classes = sorted(path for path in Path(place).iterdir() if path.is_dir())
        self.files = [(path, number) for number, one in enumerate(classes) for path in sorted(one.iterdir())]
        self.side = side

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        with Image.open(path) as image:
            image = ImageOps.fit(image.convert("RGB"), (self.side, self.side), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
        down, right = (random.randint(0, 2 * SHIFT) for _ in range(2))
        pixels = np.pad(pixels, ((SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)))
        pixels = pixels[down : down + self.side, right : right + self.side]
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), label


def main():
    place, (side, batch, workers, passes) = sys.argv[1], map(int, sys.argv[2:])
    loader = DataLoader(Folder(place, side), batch, shuffle=True, num_workers=workers, persistent_workers=True)

    def once():
        return sum(len(labels) for _, labels in loader)

    # The first starts the processes.
    samples, began = once(), time.perf_counter()
    for _ in range(passes):
        assert once() == samples
    print(passes * samples / (time.perf_counter() - began))


if __name__ == "__main__":
    main()
