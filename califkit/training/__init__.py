"""Training: settings to a GRPO run with checkpoints, a log, and what is refused before it starts.

`califkit.training.grpo.train` is the stage; it and `califkit.rewards.reference` alone know TRL.
"""
