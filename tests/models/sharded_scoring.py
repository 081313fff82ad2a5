"""What each process of test_likelihood_sharded.py runs under ``torch.distributed.run``.

    sharded_scoring.py MODEL_FOLDER CALLS_JSON RESULT_FOLDER [lora]

Shards the model with FSDP2, scores its own rows of every call in lockstep, and writes
``rank<N>.json``: the likelihoods of each call and the number of passes it took.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from califkit.models.likelihood import ReferenceScorer
from califkit.models.resolve import load_tokenizer


def with_adapter(model):
    """The model under a LoRA adapter that changes what it says."""
    from peft import LoraConfig, get_peft_model

    policy = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.5)
    return policy


def main(model_folder: Path, calls_file: Path, result_folder: Path, lora: bool) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    layers = model.base_model.layers
    if lora:
        model = with_adapter(model)
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)  # the root group: embeddings, norm and head

    sharded = all(isinstance(parameter, DTensor) for parameter in model.parameters())
    passes = 0

    def count(*_):
        nonlocal passes
        passes += 1

    model.register_forward_pre_hook(count)
    reference = {"active": model.disable_adapter} if lora else {}
    scorer = ReferenceScorer(
        model, load_tokenizer(model_folder), tokens_per_pass=150, lockstep=True, **reference
    )
    results = []
    for call in json.loads(calls_file.read_text()):
        passes = 0
        requests, answers = call[rank]
        results.append({"l": scorer.score(requests, answers).tolist(), "passes": passes})
    report = {
        "world_size": world_size,
        "sharded": sharded,
        "calls": results,
    }
    (result_folder / f"rank{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), lora="lora" in sys.argv[4:])
