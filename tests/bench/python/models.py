"""A training step as its user would write it with transformers, and with PEFT where the bench asks for adapters.

    python models.py FOLDER BATCH LENGTH PRECISION RANK

FOLDER is a model as `save_pretrained` writes it; PRECISION f32 or bf16 (autocast over f32 weights); RANK 0 trains all weights, and others adapters of that
rank on all linear modules, beside weights of that precision. For each line `step` of standard input it computes a step on the same tokens (encoders predict each seventh), and prints its
seconds, its loss and the process's peak memory in bytes; for `logits PATH` it writes the first sequence's logits in f32. Before the first, it prints the
seconds of loading and the peak memory.
"""

import json
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM


def peak():
    # Not `ru_maxrss`, which has the parent's memory too.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


torch.set_num_threads(1)
folder, batch, length, precision, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
if rank:
    # Imports are not part of loading, as the start of our process is not.
    import peft

began = time.perf_counter()
family = AutoConfig.from_pretrained(folder).model_type
is_encoder = family in ("bert", "roberta", "electra")
# transformers has no other for Gemma 2, whose scores are capped.
attention = "eager" if family == "gemma2" else "sdpa"
kind = AutoModelForMaskedLM if is_encoder else AutoModelForCausalLM
model = kind.from_pretrained(folder, dtype=torch.bfloat16 if rank and precision == "bf16" else torch.float32, attn_implementation=attention)
if rank:
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    model = peft.get_peft_model(model, config)
model.train()
for module in model.modules():
    # Our side trains without dropout.
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
loaded = time.perf_counter() - began
print(json.dumps({"seconds": loaded, "peak_bytes": peak()}), flush=True)
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimiser = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
places = torch.arange(length + 1)
FIRST_TOKEN, MASK, MASKED_EVERY = 8, 4, 7
tokens = torch.stack([FIRST_TOKEN + (places * places + 31 * sequence) % (model.config.vocab_size - FIRST_TOKEN) for sequence in range(batch)])
inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
if is_encoder:
    masked = (places[:-1] % MASKED_EVERY == 0).expand_as(inputs)
    step = {"input_ids": inputs.masked_fill(masked, MASK), "labels": inputs.masked_fill(~masked, -100)}
else:
    step = {"input_ids": inputs, "labels": targets, "shift_labels": targets}
context = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
for line in sys.stdin:
    began = time.perf_counter()
    if line.startswith("logits "):
        with torch.no_grad():
            model(inputs[:1]).logits.float().numpy().tofile(line.split(maxsplit=1)[1].strip())
        loss = torch.zeros(())
    else:
        with context:
            loss = model(**step).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "loss": loss.item(), "peak_bytes": peak()}), flush=True)
