"""What a PyTorch user has today: a byte-level GPT trained by one process, by DistributedDataParallel over gloo, or by
DiLoCo over gloo (Douillard et al. 2023, arXiv 2311.08105).

The baseline of the benchmarks across a WAN. Written for PyTorch 2.11 on CPUs, 32-bit floats. Each process prints one
line of JSON with its seconds per step; with `--each-step`, one for each step as well. Local speed, and two ranks:

    python ddp_gpt.py --data text.txt local
    python ddp_gpt.py --data text.txt ddp --rank 0 --world 2 --master 10.77.0.1:29500 --hook fp16 --interface wan
    python ddp_gpt.py --data text.txt diloco --rank 0 --world 2 --master 10.77.0.1:29500 --interface wan

The model has 10,893,312 parameters, unless told otherwise: token and position embeddings (256 + 128) × 384, six blocks
of 12 · 384² + 13 · 384 (weights; biases and two layer norms), a final layer norm of 2 · 384, and an untied head of
384 × 256.

With `--report` a run is a whole one, as the worker makes it: the learning rate rises and falls as a cosine over
`--steps`, the gradient is clipped, a share at the end of the text is held out, and the loss on it at the end is written
to the file.
"""

import argparse
import dataclasses
import datetime
import json
import math
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 256
# As the worker's defaults.
BETAS, WEIGHT_DECAY, LAST_RATE_SHARE, HELD_OUT_SHARE = (0.9, 0.95), 0.1, 0.1, 0.05

# One bucket for PowerSGD: with several it deadlocks over gloo at WAN latency.
ONE_BUCKET_MB = 1024
# PowerSGD sends dense gradients first; DDP needs one step to settle its buckets.
POWERSGD_START_STEP = 2
# Of one collective: dense gradients take six minutes at 1 Mbit/s.
COLLECTIVE_MAX = datetime.timedelta(hours=2)


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    sequence: int
    tied: bool


class Block(nn.Module):
    """Pre-norm transformer block (Radford et al. 2019)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, width = shape.heads, shape.width
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each [B, H, T, D/H]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Byte-level GPT-2: the loss of predicting each next byte."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(inputs) + self.positions.weight  # [B, T, D]
        logits = self.head(self.norm(self.blocks(x)))  # [B, T, V]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def text(path: str, sequence: int) -> Tensor:
    with open(path, "rb") as file:
        data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    if len(data) * HELD_OUT_SHARE <= sequence:
        raise SystemExit(f"{path} is too short for sequences of {sequence} bytes")
    return data


def batches(data: Tensor, sequence: int, batch: int, rank: int, seed: int):
    """Endless (inputs, targets), each [B, T]: random windows, other ones on each rank."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + rank)
    offsets = torch.arange(sequence + 1)
    while True:
        starts = torch.randint(len(data) - sequence, (batch, 1), generator=generator)
        windows = data[starts + offsets]
        yield windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def held_out_loss(model: Gpt, data: Tensor, sequence: int, batch: int) -> float:
    """The mean over all windows of the held-out text, one beside the other."""
    count = (len(data) - 1) // sequence
    inputs = data[: count * sequence].view(count, sequence)
    targets = data[1 : count * sequence + 1].view(count, sequence)
    total = 0.0
    for i, t in zip(inputs.split(batch), targets.split(batch), strict=True):
        total += model(i, t).item() * len(i)
    return total / count


def learning_rate(step: int, arguments: argparse.Namespace) -> float:
    """Of a step from 0: a linear warm-up, then half a cosine down to a tenth; without `--report`, always the same."""
    peak, rising = arguments.learning_rate, arguments.rising_steps
    if not arguments.report:
        return peak
    if step < rising:
        return peak * (step + 1) / rising
    progress = min((step - rising) / max(arguments.steps - rising, 1), 1.0)
    last = peak * LAST_RATE_SHARE
    return last + (peak - last) * 0.5 * (1.0 + math.cos(math.pi * progress))


def join(arguments: argparse.Namespace) -> None:
    if arguments.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = arguments.interface
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{arguments.master}",
        rank=arguments.rank,
        world_size=arguments.world,
        timeout=COLLECTIVE_MAX,
    )


def distributed(model: Gpt, arguments: argparse.Namespace) -> DistributedDataParallel:
    bucket_mb = ONE_BUCKET_MB if arguments.hook == "powersgd" else arguments.bucket_mb
    # All ranks draw the same parameters from the same seed, so none need be sent at the start.
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True, init_sync=False)
    if arguments.hook == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif arguments.hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=arguments.powersgd_rank, start_powerSGD_iter=POWERSGD_START_STEP
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp


class OuterLoop:
    """DiLoCo's: after every H local steps, one step of Nesterov SGD along the mean of what the ranks have changed."""

    def __init__(self, model: nn.Module, arguments: argparse.Namespace) -> None:
        self.parameters = list(model.parameters())
        self.every = arguments.inner_steps
        self.shared = nn.Parameter(self._flat())  # [P]
        self.optimizer = torch.optim.SGD(
            [self.shared], lr=arguments.outer_learning_rate, momentum=arguments.outer_momentum, nesterov=True
        )

    @torch.no_grad()
    def after(self, step: int) -> None:
        """To be called after each local step, counted from 0."""
        if (step + 1) % self.every:
            return
        delta = self.shared - self._flat()
        dist.all_reduce(delta)
        self.shared.grad = delta / dist.get_world_size()
        self.optimizer.step()
        # A copy, as the parameters become views of it.
        nn.utils.vector_to_parameters(self.shared.detach().clone(), self.parameters)

    @torch.no_grad()
    def _flat(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.parameters)


def adamw(model: nn.Module, arguments: argparse.Namespace) -> torch.optim.AdamW:
    """Weight decay is for matrices only."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=arguments.learning_rate, betas=BETAS, fused=True)


def train(
    model: nn.Module, data, arguments: argparse.Namespace, outer: OuterLoop | None
) -> tuple[list[float], list[float]]:
    """Seconds and loss of each step, the warm-up's included."""
    optimizer = adamw(model, arguments)
    seconds, losses = [], []
    for step in range(arguments.warmup + arguments.steps):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, arguments)
        loss = model(*next(data))
        loss.backward()
        if arguments.gradient_clip > 0.0:
            nn.utils.clip_grad_norm_(model.parameters(), arguments.gradient_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if outer:
            outer.after(step)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        if arguments.each_step:
            print(json.dumps({"step_s": seconds[-1], "loss": losses[-1]}), flush=True)
    return seconds, losses


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank [8]")
    parser.add_argument("--steps", type=int, default=10, help="steps that are measured [10]")
    parser.add_argument("--warmup", type=int, default=4, help="steps before them [4]")
    parser.add_argument("--threads", type=int, default=1, help="threads per rank [1]")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--sequence", type=int, default=128, help="bytes of a sequence [128]")
    parser.add_argument("--tied", action="store_true", help="the head is the token embedding")
    parser.add_argument("--gradient-clip", type=float, default=0.0, help="norm of the gradient; 0: not clipped [0]")
    parser.add_argument("--rising-steps", type=int, default=40, help="with --report: steps to the peak rate [40]")
    parser.add_argument("--report", help="train a whole run, and write the loss on held-out text to this file")
    parser.add_argument("--each-step", action="store_true", help="print a line of JSON after each step")
    modes = parser.add_subparsers(dest="mode", required=True)
    modes.add_parser("local", help="one process, no network")
    ddp = modes.add_parser("ddp", help="DistributedDataParallel over gloo")
    diloco = modes.add_parser("diloco", help="local steps, and their mean now and then, over gloo")
    for several in (ddp, diloco):
        several.add_argument("--rank", type=int, required=True)
        several.add_argument("--world", type=int, required=True)
        several.add_argument("--master", required=True, metavar="ADDRESS:PORT", help="where rank 0 listens")
        several.add_argument("--interface", help="network device that gloo is to use")
    ddp.add_argument("--hook", choices=["none", "fp16", "powersgd"], default="none")
    ddp.add_argument("--powersgd-rank", type=int, default=4)
    ddp.add_argument("--bucket-mb", type=float, default=None, help="DDP's bucket_cap_mb; not for powersgd [25]")
    diloco.add_argument("--inner-steps", type=int, default=20, help="H [20]")
    diloco.add_argument("--outer-learning-rate", type=float, default=0.7)
    diloco.add_argument("--outer-momentum", type=float, default=0.9)
    return parser.parse_args()


def write_report(path: str, loss: float) -> None:
    """As a whole: it is looked for by its name."""
    with open(path + ".part", "w", encoding="ascii") as file:
        json.dump({"loss": loss}, file)
    os.replace(path + ".part", path)


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    shape = Shape(
        arguments.layers, arguments.width, arguments.heads, arguments.sequence, arguments.tied
    )
    model = Gpt(shape)
    is_ddp = arguments.mode == "ddp"
    is_alone = arguments.mode == "local"
    rank = 0 if is_alone else arguments.rank
    if not is_alone:
        join(arguments)
    outer = OuterLoop(model, arguments) if arguments.mode == "diloco" else None
    data = text(arguments.data, shape.sequence)
    held_out = int(len(data) * HELD_OUT_SHARE) if arguments.report else 0
    seen, kept = data[: len(data) - held_out], data[len(data) - held_out :]
    stream = batches(seen, shape.sequence, arguments.batch, rank, arguments.seed)
    seconds, losses = train(distributed(model, arguments) if is_ddp else model, stream, arguments, outer)
    if arguments.report and rank == 0:
        write_report(arguments.report, held_out_loss(model, kept, shape.sequence, arguments.batch))
    measured = seconds[arguments.warmup :]
    report = {
        "mode": arguments.mode,
        "hook": arguments.hook if is_ddp else None,
        "rank": rank,
        "world": 1 if is_alone else arguments.world,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "batch": arguments.batch,
        "sequence": shape.sequence,
        "threads": arguments.threads,
        "steps": len(measured),
        "s_per_step": statistics.fmean(measured),
        "s_per_step_median": statistics.median(measured),
        "s_per_step_min": min(measured),
        "s_per_step_max": max(measured),
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "torch": torch.__version__,
    }
    print(json.dumps(report), flush=True)
    if not is_alone:
        # Nobody ends before the report is there.
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
