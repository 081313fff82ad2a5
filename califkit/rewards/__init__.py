"""Rewards: what a rollout earns.

`califkit.rewards.rules` holds every reward of the paper on arrays; `califkit.rewards.trl` pays them
in TRL's ``GRPOTrainer`` and `califkit.rewards.verl` in verl; `califkit.rewards.adapters` offers the
verifier alone to other frameworks.
"""
