"""Training: settings to a GRPO run with checkpoints, a log, and what is refused before it starts.

`califkit.training.grpo.train` is the stage, `califkit.training.groups` TRL's trainer with prompts
computed once. Another trainer is another function of that kind, named in
`califkit.runs.stages.TrainStage`. Beside this room only `califkit.rewards.reference` knows TRL.
"""
