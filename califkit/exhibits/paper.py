"""What the paper reports, for columns and hollow markers beside our own numbers.

"Diagnosing and Correcting Reward Hacking in Verifiable Instruction Following", arXiv 2610.19525.
``resources/paper.csv`` holds one printed number a row, named by configuration, method and metric
(the names of `califkit.exhibits.summary.METRICS`), with its standard deviation, its printed
difference from the base row and the exhibits it appears in. A number that the paper does not print
has no row, and every function answers None or NaN for it. Figures whose points are only drawn in
the paper are not measured off the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

import numpy as np
import pandas as pd

from califkit.exhibits.methods import label

CONFIGURATIONS = {
    "qwen3-1.7b": "Qwen3-1.7B",
    "qwen3-1.7b-thinking": "Qwen3-1.7B (thinking)",
    "qwen3-4b": "Qwen3-4B",
    "qwen3-4b-thinking": "Qwen3-4B (thinking)",
    "tulu3-8b-dpo": "Tulu 3 8B DPO",
    "average": "average of the five",
}
"""The five configurations and their average, with labels."""

METHODS = (
    *("base", "if_rlvr", "calif", "direct_bonus", "no_lower", "no_upper"),
    *("inner_region", "outer_region", "self_judge", "stronger_judge"),
)
"""Methods of which it prints numbers, by the names of `califkit.exhibits.methods.LOOKS`."""

RUBRIC_METRICS = {
    "advancedif_overall_pass_rate": "AdvancedIF (CIF): overall pass rate (%)",
    "advancedif_micro_rubric_pass": "AdvancedIF (CIF): micro rubric pass (%)",
    "followbench_hsr": "FollowBench: HSR (%)",
    "followbench_ssr": "FollowBench: SSR (%)",
    "followbench_csl": "FollowBench: CSL (levels, 0 to 5)",
    "complexbench_lexical": "ComplexBench: Lexical (%)",
    "complexbench_semantic": "ComplexBench: Semantic (%)",
    "complexbench_utility": "ComplexBench: Utility (%)",
    "complexbench_format": "ComplexBench: Format (%)",
}
"""The nine metrics of Table 1, with their labels."""

METRICS = (
    *("prompt_level_loose_acc", "response_quality", "loglik", "tokens", "distinct_2"),
    *RUBRIC_METRICS,
)

JUDGE = "GPT-5.6 Sol"
"""Judge of the paper's response quality in Fig. 5 and Table 4 (1 to 10)."""

TRAINING = {
    "steps": None,
    "prompts_per_step": 1024,
    "rollouts_per_prompt": 8,
    "max_completion_tokens": 2048,
    "temperature": 1.0,
    "learning_rate": 5e-7,
    "beta": 0.001,
}
"""Training of the non-thinking configurations, by the names of
`califkit.runs.settings.TrainingSettings`. Epochs are printed (four over 95,373 prompts), steps are
not; that the global batch of 1,024 counts prompts is our reading."""

ALPHA = 0.1

BETA_0_05 = (23.00, 3.98)
"""Constraint Satisfaction and response quality of IF-RLVR with beta 0.05, the only point of Fig. 8
that is printed there and nowhere else (Qwen3-1.7B)."""

ANCHORS = {"temperature": 1.0, "draws": 1, "max_tokens": 2048}
"""How l0 and l1 are drawn (the token limit is taken to be that of the rollouts)."""

_KEY = ["configuration", "method", "metric"]

NOT_PRINTED = "not printed in the paper"

LEADING_TYPE = "words"
"""The constraint type that leads in Fig. 7: hardest for the base policy; under IF-RLVR the one that
gains most Constraint Satisfaction and loses most response quality and length."""

PROMPTS = {6: ("70", "format:emoji"), 7: ("83", "format:list"), 8: ("255", "words:repeats")}
"""Key in IFBench and constraint id of the prompts of Tables 6 to 8."""

BLIND_SPOT_JUDGES = ("GPT-5.6 Sol", "Claude Opus 5", "Gemini 3.1 Pro")
"""Judges whose scores Fig. 1 averages, and by its values surely Fig. 2."""

BLIND_SPOT_EXAMPLE = {
    "policy": "DeepSeek V4 Pro",
    "constraint": "exactly five numbers",
    "quality_alone": 9.33,
    "quality": 2.00,
    "response": "No. 0 1 2 3 4",
}
"""Fig. 2 as printed. Of Fig. 1 no number is printed, and no list of its policies."""

QUERIES = {
    6: "IFBench key 70 (format:emoji): relativistic speed, an emoji after every sentence",
    7: "IFBench key 83 (format:list): define four kinds of music, with !?!? as the bullet",
    8: "IFBench key 255 (words:repeats): explain a function, no word more than five times",
}
"""The prompts of Tables 6 to 8 (Qwen3-1.7B), in our words."""

KEYS = {6: "70", 7: "83", 8: "255"}
"""Their keys in IFBench."""


def value(configuration: str, method: str, metric: str) -> float | None:
    """A printed number, or None if the paper prints none; a name that it does not have is an error.

    >>> value("qwen3-1.7b", "if_rlvr", "loglik")
    -5.91
    >>> value("qwen3-4b", "base", "loglik") is None
    True
    """
    number = table([configuration], [method], [metric])["value"].item()
    return None if pd.isna(number) else number


def table(
    configurations: Sequence[str], methods: Sequence[str], metrics: Sequence[str]
) -> pd.DataFrame:
    """A row for every combination, in the order given, printed or not.

    Columns: ``configuration``, ``method``, ``metric``; ``value``, its sample standard deviation
    ``std`` over three runs and its difference ``delta`` from the base row as printed (each NaN
    where the paper prints none); ``note``, which says so. KeyError for a name that the paper does
    not have: a misspelt one is no number that is not printed.
    """
    asked = ((configurations, CONFIGURATIONS), (methods, METHODS), (metrics, METRICS))
    for names, known in asked:
        if unknown := set(names) - set(known):
            raise KeyError(f"{', '.join(sorted(unknown))!r} is not one of {', '.join(known)}")
    wanted = pd.MultiIndex.from_product([configurations, methods, metrics], names=_KEY)
    return _noted(_numbers().reindex(wanted))


def exhibit(name: str) -> pd.DataFrame:
    """All numbers of one exhibit (``fig5``, ``table1``, ...), as `table` gives them."""
    numbers = _numbers()
    rows = numbers[[name in exhibits.split() for exhibits in numbers["exhibits"]]]
    if rows.empty:
        known = sorted(set(" ".join(numbers["exhibits"]).split()))
        raise KeyError(f"no numbers of {name!r} are entered; there are {', '.join(known)}")
    return _noted(rows)


def _noted(rows: pd.DataFrame) -> pd.DataFrame:
    note = np.where(rows["value"].isna(), NOT_PRINTED, "")
    return rows.drop(columns="exhibits").assign(note=note).reset_index()


def transitions() -> pd.DataFrame:
    """Table 2: change of response quality among prompts that the trained policy passes.

    Columns: ``method``, ``transition`` (a name of `califkit.metrics.TRANSITIONS`), ``mean`` and
    ``std`` over the five configurations.
    """
    return _resource("paper_transitions.csv")


def pairwise() -> pd.DataFrame:
    """Table 5: CaLIF against IF-RLVR, judged in both orders, counts from the side of CaLIF.

    Columns: ``configuration`` (``overall`` in the last row), ``wins``, ``ties``, ``losses``,
    ``adjusted_win_rate`` in percent.
    """
    return _resource("paper_pairwise.csv")


def example(number: int) -> pd.DataFrame:
    """Table 6, 7 or 8: a row a policy, scores as printed, responses in our words.

    Columns: ``policy``, ``response_quality``, ``loglik`` (Table 6 only), ``verdict`` (Tables 7 and
    8 only), ``response (described)``.
    """
    rows = _resource("paper_examples.csv").query("table == @number").dropna(axis="columns")
    rows = rows.drop(columns="table").rename(columns={"response": "response (described)"})
    rows.insert(0, "policy", rows.pop("method").map(label))
    return rows.reset_index(drop=True)


def _resource(name: str) -> pd.DataFrame:
    with (resources.files("califkit.exhibits") / "resources" / name).open(encoding="utf-8") as file:
        return pd.read_csv(file)


@cache
def _numbers() -> pd.DataFrame:
    return _resource("paper.csv").set_index(_KEY)
