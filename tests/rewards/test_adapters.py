"""Each adapter, called as its framework documents it."""

import inspect
import json
import pickle
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from califkit.data.load import Instance, load_rows
from califkit.data.rows import constraints_json, read_constraints
from califkit.rewards.adapters import (
    VerifierReward,
    completion_text,
    compute_score,
    constraints_followed,
    gym_row,
    gym_verify,
    verifier_reward,
)
from califkit.verifiers import Constraint, ConstraintError

NO_COMMA = Constraint("punctuation:no_comma")
TEA = Constraint("keywords:existence", {"keywords": ["tea"]})
JSON = constraints_json([NO_COMMA, TEA])
# The training set's column: text of a Python list of one dict.
GROUND_TRUTH = (
    "[{'instruction_id': ['punctuation:no_comma', 'keywords:existence'], "
    "'kwargs': [None, {'keywords': ['tea'], 'N': None}]}]"
)
# response -> share followed
CASES = [
    ("Green tea.", 1.0),
    ("Tea, milk.", 0.5),
    ("Milk, cake.", 0.0),
    ("<think>milk, cake</think>Green tea.", 1.0),
    ("Milk, cake. </think> ok", 0.0),  # with thinking off nothing is hidden
    ("<think>green tea", 0.0),
    ("", 0.0),
]


@pytest.mark.parametrize(("thinking", "share"), [(False, 0.5), (True, 1.0)])
def test_in_thinking_mode_the_template_may_have_opened_the_reasoning(thinking, share):
    text, turns = "milk, cake</think>Green tea.", [{"role": "user", "content": "?"}]
    assert VerifierReward(thinking=thinking)([turns], [text], constraints=[JSON]) == [share]
    assert compute_score("if", text, JSON, thinking=thinking) == share
    assert constraints_followed(text, JSON, thinking=thinking) == share
    row = gym_row(Instance("k", "?", (NO_COMMA, TEA), "?", "", "test"))
    assert gym_verify(row, text, thinking=thinking)["reward"] == share


# --- ground truth ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "truth",
    [
        JSON,
        GROUND_TRUTH,
        json.dumps(
            {
                "instruction_id_list": [NO_COMMA.id, TEA.id],
                "kwargs": [{}, {"keywords": ["tea"], "n": None}],
            }
        ),
        [{"id": NO_COMMA.id}, {"id": TEA.id, "kwargs": {"keywords": ["tea"]}}],
    ],
)
def test_constraints_are_read_in_every_form(truth):
    assert read_constraints(truth) == (NO_COMMA, TEA)


def test_zero_is_a_value():
    [constraint] = read_constraints(
        "[{'instruction_id': ['repeat:repeat_span'], "
        "'kwargs': [{'prompt_to_repeat': 'a b', 'n_start': 0, 'n_end': 1}]}]"
    )
    assert constraint.kwargs["n_start"] == 0


@pytest.mark.parametrize("truth", ["", "no data", "[]", "{}", "null", None, 5, '[{"id": 1}]'])
def test_unusable_ground_truth_is_an_error(truth):
    with pytest.raises(ValueError):
        read_constraints(truth)


def test_an_unknown_id_is_an_error_and_no_reward():
    with pytest.raises(ConstraintError, match="punctuation:no_coma"):
        compute_score("if", "Tea.", json.dumps([{"id": "punctuation:no_coma"}]))


def test_text_of_completions():
    assert completion_text("Tea.") == "Tea."
    turns = [
        {"role": "assistant", "content": "First."},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": [{"type": "text", "text": "Te"}, {"text": "a."}]},
        {"role": "user", "content": "Thanks."},
    ]
    assert completion_text(turns) == "Tea."
    assert completion_text([{"role": "assistant", "content": None}]) == ""
    with pytest.raises(ValueError, match="without an assistant message"):
        completion_text([{"role": "user", "content": "?"}])


# --- TRL ---------------------------------------------------------------------------------------
def trl_call(reward, completions, prompts=None, **columns):
    """As ``GRPOTrainer`` calls it: keywords only, every column repeated per completion."""
    metrics = {}
    rewards = reward(
        prompts=prompts or ["Say something."] * len(completions),
        completions=completions,
        completion_ids=[[1, 2]] * len(completions),
        trainer_state=SimpleNamespace(global_step=3),
        log_extra=lambda column, values: None,
        log_metric=metrics.__setitem__,
        **columns,
    )
    return rewards, metrics


def test_trl_reward_of_texts():
    texts, shares = zip(*CASES, strict=True)
    rewards, metrics = trl_call(
        verifier_reward, list(texts), constraints=[JSON] * len(texts), key=["k"] * len(texts)
    )
    assert rewards == list(shares)
    assert all(type(reward) is float for reward in rewards)
    assert metrics == {"all_followed": pytest.approx(2 / 7)}


def test_trl_reward_of_conversations_and_the_training_sets_columns():
    completions = [[{"role": "assistant", "content": text}] for text, _ in CASES]
    n = len(CASES)
    rewards, _ = trl_call(
        verifier_reward,
        completions,
        prompts=[[{"role": "user", "content": "Say something."}]] * n,
        ground_truth=[GROUND_TRUTH] * n,
        dataset=["ifeval"] * n,
    )
    assert rewards == [share for _, share in CASES]


def test_trl_reward_needs_a_column_and_equal_lengths():
    with pytest.raises(ValueError, match="'constraints' or 'ground_truth'; columns found: .*key"):
        trl_call(verifier_reward, ["Tea."], key=["k"])
    with pytest.raises(ValueError):
        trl_call(verifier_reward, ["Tea.", "Milk."], constraints=[JSON])


def test_trl_reward_semantics_name_and_pickle():
    assert verifier_reward.__name__ == "verifier"
    repaired = pickle.loads(pickle.dumps(VerifierReward("repaired")))  # noqa: S301
    assert repaired.__name__ == "verifier_repaired"
    column = [constraints_json([NO_COMMA])]
    assert trl_call(verifier_reward, ["茶，水"], constraints=column)[0] == [1.0]
    assert trl_call(repaired, ["茶，水"], constraints=column)[0] == [0.0]
    with pytest.raises(ValueError, match="fixed"):
        VerifierReward("fixed")


def bound_to(rows, evaluated=None, **arguments):
    """Binds the reward to a trainer with these data."""
    from datasets import Dataset

    made = [part and Dataset.from_dict(part) for part in (rows, evaluated)]
    arguments = {"remove_unused_columns": False} | arguments
    VerifierReward().bind(
        SimpleNamespace(
            args=SimpleNamespace(**arguments), train_dataset=made[0], eval_dataset=made[1]
        )
    )


def test_bind_names_the_row_that_no_reward_could_read():
    letter = '[{"id": "keywords:letter_frequency", "kwargs": {"letter": "ab", "let_frequency": 1, '
    letter += '"let_relation": "at least"}}]'
    bound_to({"constraints": [JSON, JSON]}, {"ground_truth": [GROUND_TRUTH]})
    with pytest.raises(ValueError, match="row 1 of the training set, constraints: .*letter.*'ab'"):
        bound_to({"constraints": [JSON, letter]})
    with pytest.raises(ValueError, match="row 0 of the evaluation set, ground_truth: "):
        bound_to({"constraints": [JSON]}, {"ground_truth": ["[{'instruction_id': ['no:id']}]"]})
    with pytest.raises(ValueError, match="the training set has no column 'constraints' or"):
        bound_to({"key": ["a"]})
    with pytest.raises(ValueError, match="remove_unused_columns=True"):
        bound_to({"constraints": [JSON]}, remove_unused_columns=True)


@pytest.mark.slow
def test_trl_trains_one_step_with_it(tmp_path):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from califkit.models.resolve import ModelError, load_tokenizer, resolve

    try:
        model = resolve("tiny-random-llama")
    except ModelError as error:
        pytest.skip(str(error))
    # All that a random model writes has fewer than 50 words and no such keyword.
    constraints = [
        Constraint("length_constraints:number_words", {"num_words": 50, "relation": "less than"}),
        Constraint("keywords:existence", {"keywords": ["zwitterion-xylophone"]}),
    ]
    rows = [{"prompt": f"Say {i}.", "constraints": constraints_json(constraints)} for i in range(2)]
    config = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=8,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=verifier_reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer(model),
    )
    verifier_reward.bind(trainer)
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert logged["rewards/verifier/mean"] == pytest.approx(0.5)
    assert logged["all_followed"] == 0.0


# --- verl --------------------------------------------------------------------------------------
def test_verl_compute_score():
    assert list(inspect.signature(compute_score).parameters) == [
        "data_source",
        "solution_str",
        "ground_truth",
        "extra_info",
        "thinking",
    ]
    for text, share in CASES:
        score = compute_score(
            data_source="if_multi",
            solution_str=text,
            ground_truth=GROUND_TRUTH,
            extra_info={"index": 3, "split": "train"},
        )
        assert type(score) is float and score == share
    assert compute_score("if_multi", "Green tea.", JSON) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_verl_in_worker_processes(method, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"""
import multiprocessing
from califkit.rewards.adapters import compute_score
if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        calls = [("if", text, {JSON!r}) for text, _ in {CASES!r}]
        print(pool.starmap(compute_score, calls))
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.stdout.strip() == str([share for _, share in CASES]), done.stderr


def test_threads_agree():
    results = {}

    def work(number: int) -> None:
        results[number] = [compute_score("if", text, GROUND_TRUTH) for text, _ in CASES] * 5

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result == [share for _, share in CASES] * 5 for result in results.values())
    assert len(results) == 16


# --- the verifiers library ---------------------------------------------------------------------
def rubric_call(function, **available) -> float:
    """As the library's rubric calls it: the arguments that the signature names, or all of them."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function(**available)
    return function(**{p.name: available[p.name] for p in parameters})


@pytest.mark.parametrize(
    "where",
    [
        {"answer": JSON, "info": {}},
        {"answer": "", "info": {"ground_truth": GROUND_TRUTH}},
        {"answer": "", "info": json.dumps({"ground_truth": GROUND_TRUTH})},
    ],
)
def test_rubric_function(where):
    for text, share in CASES:
        completion = [{"role": "assistant", "content": text}]
        reward = rubric_call(
            constraints_followed,
            prompt=[{"role": "user", "content": "Say something."}],
            completion=completion,
            state={"completion": completion, "turn": 1},
            task="if",
            **where,
        )
        assert reward == share
    assert constraints_followed.__name__ == "constraints_followed"


def test_rubric_function_without_ground_truth():
    with pytest.raises(ValueError, match="no ground truth"):
        constraints_followed("Tea.", "", {})


# --- NeMo Gym ----------------------------------------------------------------------------------
@pytest.fixture
def instance():
    row = {
        "key": "1",
        "prompt": "Say something. Use no commas. Mention tea.",
        "instruction_id_list": [NO_COMMA.id, TEA.id],
        "kwargs": [{}, {"keywords": ["tea"]}],
    }
    return load_rows([row], "test").instances[0]


def test_gym_row(instance):
    row = gym_row(instance, "binary")
    assert row == json.loads(json.dumps(row))
    assert row == {
        "responses_create_params": {
            "input": [{"role": "user", "content": "Say something. Use no commas. Mention tea."}]
        },
        "verifier_metadata": {
            "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
            "prompt": "Say something. Use no commas. Mention tea.",
            "kwargs": [{}, {"keywords": ["tea"]}],
            "grading_mode": "binary",
        },
    }


@pytest.mark.parametrize(("text", "share"), CASES)
def test_gym_grading(instance, text, share):
    output = [
        {"type": "reasoning", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        },
    ]
    for response in (text, {"output": output}):
        graded = gym_verify(gym_row(instance, "fraction"), response)
        assert graded["reward"] == share
        assert graded["follow_all_instructions"] is (share == 1.0)
        assert sum(graded["follow_instruction_list"]) == 2 * share
        assert gym_verify(gym_row(instance, "binary"), response)["reward"] == float(share == 1.0)


def test_gym_response_of_reasoning_alone(instance):
    response = {"output": [{"type": "reasoning", "summary": []}]}
    assert gym_verify(gym_row(instance), response)["reward"] == 0.0


def test_gym_refuses_an_unknown_grading_mode(instance):
    with pytest.raises(ValueError, match="grading_mode.*'half'"):
        gym_row(instance, "half")
    row = gym_row(instance)
    row["verifier_metadata"]["grading_mode"] = "half"
    with pytest.raises(ValueError, match="grading_mode.*'half'"):
        gym_verify(row, "Tea.")


# --- light -------------------------------------------------------------------------------------
def test_import_is_light():
    script = (
        "import sys, califkit.rewards.adapters; "
        "heavy = {'torch', 'transformers', 'trl', 'nltk', 'datasets'} & set(sys.modules); "
        "sys.exit(', '.join(heavy) or None)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
