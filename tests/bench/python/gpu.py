"""The training of `gpu.rs` in plain PyTorch, its figures as JSON lines: python gpu.py WARM_UP STEPS"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

LENGTH, MICRO_BATCH, VOCABULARY, LAYERS, WIDTH, HEADS = 1024, 16, 50_304, 12, 768, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.last = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return F.linear(self.last(self.blocks(x)), self.tokens.weight)


def measure(
    case: str, steps: tuple[int, int], dtype: torch.dtype = torch.bfloat16, compiled: bool = False, micros: int = 1, in_f32: bool = False
) -> None:
    warm_up, steps = steps
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    torch.manual_seed(1)
    model = Gpt2().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if compiled else model
    tokens = torch.randint(VOCABULARY, (micros, MICRO_BATCH, LENGTH + 1)).pin_memory()

    def step() -> None:
        for micro in tokens:
            micro = micro.cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
                logits = run(micro[:, :-1])
                logits = logits.float() if in_f32 else logits
                loss = F.cross_entropy(logits.flatten(0, 1), micro[:, 1:].flatten())
            (loss / micros).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / steps
    used = free - torch.cuda.mem_get_info()[0]
    for metric, value, unit in [
        ("tokens_per_s", micros * MICRO_BATCH * LENGTH / seconds, "tokens/s"),
        ("step_s", seconds, "s"),
        ("memory_bytes", used, "B"),
    ]:
        line = {"bench": "gpu", "case": f"PyTorch, {case}", "metric": metric, "value": value, "unit": unit}
        print(json.dumps(line), flush=True)


def main() -> None:
    warm_up, count = (int(argument) for argument in sys.argv[1:])
    steps = (warm_up, count)
    measure("bf16", steps)
    measure("bf16, 4 micro-batches", steps, micros=4)
    measure("bf16, loss in f32", steps, in_f32=True)
    measure("bf16, compiled", steps, compiled=True)
    measure("f32", steps, dtype=torch.float32)


if __name__ == "__main__":
    main()
