"""The training of `large.rs` in plain PyTorch on one thread, the processor's seconds and accuracy as JSON: python images.py IMAGES HELD_OUT EPOCHS"""

import json
import sys
import time

import torch

HIDDEN, BATCH, SIDE, AVERAGED, CHANNELS = [1024, 2048, 1024, 512, 256], 8, 224, 4, 3


def made_up(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The images of `large.rs` before they are averaged [N, C, H, W], and their classes [N]."""
    place = torch.arange(CHANNELS * SIDE * SIDE)
    is_left = place % SIDE < SIDE // 2
    images = torch.empty(count, CHANNELS, SIDE, SIDE, dtype=torch.uint8)
    for at in range(count):
        number = first + at
        noise = (place * 2_654_435_761 ^ number * 40_503) >> 7 & 0x7F
        images[at] = (noise + 16 * (is_left == (number % 2 == 0))).view(CHANNELS, SIDE, SIDE)
    return images, torch.arange(first, first + count) % 2


def main() -> None:
    count, held_out, epochs = (int(argument) for argument in sys.argv[1:])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images, classes = made_up(0, count)
    widths = [(SIDE // AVERAGED) ** 2, *HIDDEN]
    layers = [part for pair in zip(widths, widths[1:]) for part in (torch.nn.Linear(*pair), torch.nn.ReLU())]
    pool, model = torch.nn.AvgPool2d(AVERAGED), torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def averaged(images: torch.Tensor) -> torch.Tensor:
        return pool(images.float() / 255).mean(dim=-3).flatten(1)

    began = time.process_time()
    for _ in range(epochs):
        for chosen in torch.randperm(count).split(BATCH):
            loss = torch.nn.functional.cross_entropy(model(averaged(images[chosen])), classes[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    seconds = time.process_time() - began
    others, answers = made_up(count, held_out)
    with torch.no_grad():
        told = model(averaged(others)).argmax(dim=1) == answers
    print(json.dumps({"seconds": seconds, "accuracy": told.float().mean().item()}))


if __name__ == "__main__":
    main()
