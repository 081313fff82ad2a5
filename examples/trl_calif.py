import os

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from califkit import CalifReward, Constraint, constraints_json, measure_bounds
from califkit.models.resolve import resolve

model = str(resolve(os.environ.get("MODEL", "smollm2-135m-instruct")))
requests = ["Describe the sea.", "Explain how bread is made."]
prompts = [[{"role": "user", "content": f"{x} Use no comma."}] for x in requests]
checked = [constraints_json([Constraint("punctuation:no_comma")])] * len(requests)
l0, l1 = measure_bounds(model, prompts, requests, max_tokens=48)
rows = {"prompt": prompts, "request": requests, "constraints": checked, "l0": l0, "l1": l1}
gpu = torch.cuda.is_available()
args = GRPOConfig(beta=0.001, max_steps=4, max_completion_length=48, bf16=gpu, use_cpu=not gpu)
reward = CalifReward(alpha=0.1)
trainer = GRPOTrainer(model, reward, args, train_dataset=Dataset.from_dict(rows))
reward.bind(trainer)
trainer.train()
