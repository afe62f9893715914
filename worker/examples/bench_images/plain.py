"""Seconds that plain PyTorch takes for the training of `large.rs` on one thread: python plain.py IMAGES EPOCHS"""

import sys
import time

import torch

HIDDEN, BATCH, SIDE, AVERAGED = [1024, 2048, 1024, 512, 256], 8, 224, 4


def main() -> None:
    count, epochs = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images = torch.randint(0, 144, (count, 3, SIDE, SIDE), dtype=torch.uint8)
    classes = torch.arange(count) % 2
    widths = [(SIDE // AVERAGED) ** 2, *HIDDEN]
    layers = [part for pair in zip(widths, widths[1:]) for part in (torch.nn.Linear(*pair), torch.nn.ReLU())]
    pool, model = torch.nn.AvgPool2d(AVERAGED), torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    began = time.perf_counter()
    for _ in range(epochs):
        for chosen in torch.randperm(count).split(BATCH):
            x = pool(images[chosen].float() / 255).mean(dim=-3).flatten(1)
            loss = torch.nn.functional.cross_entropy(model(x), classes[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main()
