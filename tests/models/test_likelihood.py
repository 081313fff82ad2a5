"""l(y; x) against a computation over whole logits, and what the scorer leaves as it was."""

import contextlib
import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from califkit.models import likelihood, passes
from califkit.models.likelihood import ReferenceScorer
from califkit.models.passes import CHUNK

REQUESTS = [
    "Name a colour.",
    "Describe the way from the harbour to the old town, and say where to rest on the way. " * 4,
    "Où est le café ?",
    "Write two lines about rain.",
    "Why?",
]
# The template of SmolLM2, written out.
TEMPLATE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def answers(tiny) -> list[list[int]]:
    """Answers of 1 to 300 tokens, two of them with the end-of-turn token."""
    rng = np.random.default_rng(0)
    end = tiny.tokenizer.eos_token_id
    drawn = [rng.integers(3, 40_000, size=n).tolist() for n in (7, 3, CHUNK + 44, 1, 20)]
    return [[*drawn[0], end], *drawn[1:4], [*drawn[4], end]]


@pytest.fixture(scope="module")
def expected(tiny, answers) -> list[float]:
    """One row at a time, no padding, log-softmax over the whole sequence, mean in float64."""
    return [whole_logits(tiny, x, y) for x, y in zip(REQUESTS, answers, strict=True)]


def whole_logits(tiny, request: str, answer: list[int]) -> float:
    prefix = tiny.tokenizer(TEMPLATE.format(request), add_special_tokens=False)["input_ids"]
    ids = torch.tensor([prefix + answer])
    with torch.no_grad():
        log_probs = torch.log_softmax(tiny.model(ids).logits[0].double(), dim=-1)
    terms = [
        log_probs[position - 1, token].item()
        for position, token in enumerate(ids[0].tolist())
        if position >= len(prefix)
    ]
    assert len(terms) == len(answer)
    return sum(terms) / len(terms)


def test_one_answer_alone(tiny, answers, expected):
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    for request, answer, value in zip(REQUESTS, answers, expected, strict=True):
        assert scorer.score([request], [answer]) == pytest.approx([value], abs=1e-5)
    assert np.std(expected) > 0.01, "the answers differ, so a mix-up would show"


@pytest.mark.parametrize("tokens_per_pass", [1, 60, 100, 150, 2048])
def test_answers_of_mixed_length_in_batches_of_any_size(tiny, answers, expected, tokens_per_pass):
    result = ReferenceScorer(tiny.model, tiny.tokenizer, tokens_per_pass).score(REQUESTS, answers)
    assert result.dtype == np.float64
    assert result == pytest.approx(expected, abs=1e-5)


def test_the_order_of_rows_is_kept(tiny, answers, expected):
    order = [3, 0, 4, 2, 1]
    result = ReferenceScorer(tiny.model, tiny.tokenizer, 2).score(
        [REQUESTS[i] for i in order], [answers[i] for i in order]
    )
    assert result == pytest.approx([expected[i] for i in order], abs=1e-5)


@pytest.mark.parametrize("chunk", [1, 3, 331, 1000])
def test_the_chunk_does_not_matter(tiny, answers, expected, monkeypatch, chunk):
    monkeypatch.setattr(passes, "CHUNK", chunk)
    result = ReferenceScorer(tiny.model, tiny.tokenizer).score(REQUESTS, answers)
    assert result == pytest.approx(expected, abs=1e-5)


def test_logits_exist_for_a_chunk_of_answer_positions_only(tiny, answers, monkeypatch):
    rows = []
    head = tiny.model.get_output_embeddings()
    project = head.forward

    def counted(hidden):
        rows.append(len(hidden))
        return project(hidden)

    monkeypatch.setattr(head, "forward", counted, raising=False)
    output = []
    hook = tiny.model.register_forward_hook(lambda m, i, o: output.append(o.logits.numel()))
    try:
        ReferenceScorer(tiny.model, tiny.tokenizer, 5).score(REQUESTS, answers)
    finally:
        hook.remove()
    assert max(rows) <= CHUNK
    assert sum(rows) == sum(map(len, answers)), "none for the request or the padding"
    assert max(output) < 1000, "the model returns no logits"


def test_an_empty_answer_has_no_likelihood(tiny, answers, expected):
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    result = scorer.score([REQUESTS[0], "Hi", REQUESTS[3]], [answers[0], [], answers[3]])
    assert np.isnan(result).tolist() == [False, True, False]
    assert result[[0, 2]] == pytest.approx([expected[0], expected[3]], abs=1e-5)
    assert np.isnan(scorer.score(["Hi", "Ho"], [[], []])).all()
    assert scorer.score([], []).shape == (0,)


def test_the_end_of_turn_token_counts(tiny, answers):
    body, end = answers[0][:-1], tiny.tokenizer.eos_token_id
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    without, with_end = scorer.score([REQUESTS[0]] * 2, [body, [*body, end]])
    assert without == pytest.approx(whole_logits(tiny, REQUESTS[0], body), abs=1e-5)
    assert with_end == pytest.approx(whole_logits(tiny, REQUESTS[0], [*body, end]), abs=1e-5)
    assert abs(with_end - without) > 1e-4


def test_the_context_is_the_request_alone_in_the_template(tiny):
    request = "Write about tea."
    ids = ReferenceScorer(tiny.model, tiny.tokenizer).prefix_ids(request)
    assert tiny.tokenizer.decode(ids) == TEMPLATE.format(request)
    # Special tokens of the template are single ids, no second begin-of-text is added.
    special = [i for i in ids if i in tiny.tokenizer.all_special_ids]
    assert tiny.tokenizer.convert_ids_to_tokens(special) == [
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>",
    ]


def test_thinking_is_switched_off(tiny):
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = "{{ messages[0]['content'] }} {{ enable_thinking }}"
    ids = ReferenceScorer(tiny.model, tokenizer).prefix_ids("Tea?")
    assert tokenizer.decode(ids) == "Tea? False"


@pytest.mark.parametrize("opened", ["<think>", "<think>\\n", "<think>\\n\\n "])
def test_a_think_block_that_the_template_opens_is_closed_empty(tiny, opened):
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = "{{ messages[0]['content'] }}|{{ '" + opened + "' }}"
    ids = ReferenceScorer(tiny.model, tokenizer).prefix_ids("Tea? <think>")
    assert tokenizer.decode(ids) == "Tea? <think>|<think>\n\n</think>\n\n"
    tokenizer.chat_template = "{{ messages[0]['content'] }}|"
    ids = ReferenceScorer(tiny.model, tokenizer).prefix_ids("Tea? <think>")
    assert tokenizer.decode(ids) == "Tea? <think>|"


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was_found(tiny, answers, training):
    seen = []
    hook = tiny.model.base_model.layers[0].register_forward_hook(
        lambda module, inputs, output: seen.append((module.training, torch.is_grad_enabled()))
    )
    tiny.model.train(training)
    try:
        ReferenceScorer(tiny.model, tiny.tokenizer).score(REQUESTS, answers)
        assert tiny.model.training is training
        assert all(module.training is training for module in tiny.model.modules())
    finally:
        hook.remove()
        tiny.model.eval()
    assert set(seen) == {(False, False)}, (
        "evaluation mode, no gradient, even inside a training step"
    )
    assert all(parameter.grad is None for parameter in tiny.model.parameters())


def test_every_module_returns_to_its_own_mode(tiny, answers):
    frozen = tiny.model.base_model.layers[0]
    tiny.model.train()
    frozen.eval()
    try:
        before = [module.training for module in tiny.model.modules()]
        ReferenceScorer(tiny.model, tiny.tokenizer).score(REQUESTS, answers)
        assert [module.training for module in tiny.model.modules()] == before
        assert len(set(before)) == 2
    finally:
        tiny.model.eval()


def test_the_model_is_left_as_it_was_found_after_a_failure(tiny):
    def fail(module, inputs, output):
        raise ArithmeticError("no pass")

    tiny.model.train()
    hook = tiny.model.base_model.layers[1].register_forward_hook(fail)
    try:
        with pytest.raises(ArithmeticError):
            ReferenceScorer(tiny.model, tiny.tokenizer).score(["Hi"], [[5]])
        assert all(module.training for module in tiny.model.modules())
        assert "forward" not in vars(tiny.model.get_output_embeddings())
    finally:
        hook.remove()
        tiny.model.eval()


def test_the_head_gets_its_own_forward_back(tiny, answers, expected, monkeypatch):
    head = tiny.model.get_output_embeddings()
    ReferenceScorer(tiny.model, tiny.tokenizer).score(REQUESTS, answers)
    assert "forward" not in vars(head)

    # As accelerate's hooks do it.
    def offloaded(hidden):
        return type(head).forward(head, hidden)

    monkeypatch.setattr(head, "forward", offloaded, raising=False)
    result = ReferenceScorer(tiny.model, tiny.tokenizer).score(REQUESTS, answers)
    assert result == pytest.approx(expected, abs=1e-5)
    assert vars(head)["forward"] is offloaded


def test_every_pass_goes_through_the_root_module_and_the_head(tiny, answers):
    """Weights that live elsewhere are brought in by hooks of these modules."""
    calls = []
    modules = {"root": tiny.model, "head": tiny.model.get_output_embeddings()}
    hooks = [
        module.register_forward_pre_hook(lambda m, i, name=name: calls.append(name))
        for name, module in modules.items()
    ]
    try:
        ReferenceScorer(tiny.model, tiny.tokenizer, 1).score(REQUESTS, answers)
        assert calls == ["root", "head"] * 5
        calls.clear()
        ReferenceScorer(tiny.model, tiny.tokenizer).score([REQUESTS[1]] * 4, [[5]] * 4)
        assert calls == ["root", "head"], "prefix and answers in one"
    finally:
        for hook in hooks:
            hook.remove()


def test_as_many_answers_as_requests(tiny):
    with pytest.raises(ValueError, match="2 requests, but 1 answers"):
        ReferenceScorer(tiny.model, tiny.tokenizer).score(["a", "b"], [[5]])


@pytest.mark.parametrize(
    "name", ["final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier"]
)
def test_a_model_that_rescales_its_logits_is_refused(tiny, monkeypatch, name):
    monkeypatch.setattr(tiny.model.config, name, 0.0625, raising=False)
    with pytest.raises(ValueError, match=rf"LlamaForCausalLM rescales its logits \({name}=0.0625"):
        ReferenceScorer(tiny.model, tiny.tokenizer)
    monkeypatch.setattr(tiny.model.config, name, 1.0)
    ReferenceScorer(tiny.model, tiny.tokenizer)


@pytest.mark.parametrize(
    ("token", "named"),
    [(10**9, "answer 1: token id 1000000000 is not in the vocabulary of 49152"), (-1, "id -1")],
)
def test_a_token_outside_the_vocabulary_is_named(tiny, token, named):
    with pytest.raises(ValueError, match=named):
        ReferenceScorer(tiny.model, tiny.tokenizer).score(["a", "b"], [[5], [6, token, 7]])


def test_the_pad_token_inside_an_answer_is_a_token_like_others(tiny):
    pad = tiny.tokenizer.pad_token_id
    answers = [[pad, 17, pad, 900, pad], [pad], [5, 6, 7, 8, 9, 10]]
    result = ReferenceScorer(tiny.model, tiny.tokenizer).score(REQUESTS[:3], answers)
    rows = zip(REQUESTS, answers, strict=False)
    assert result == pytest.approx([whole_logits(tiny, x, y) for x, y in rows], abs=1e-5)


# --- answers that share their request ----------------------------------------------------------
@pytest.fixture(scope="module")
def group(tiny) -> tuple[list[str], list[list[int]], list[float]]:
    """Rollouts of three requests, mixed: four of one, two of another, one of the last."""
    rng = np.random.default_rng(1)
    requests = [REQUESTS[i] for i in (1, 0, 1, 3, 1, 0, 1)]
    answers = [rng.integers(3, 40_000, size=n).tolist() for n in (30, 4, 1, 9, 12, 40, 3)]
    answers[3] = [*answers[3], tiny.tokenizer.eos_token_id]
    expected = [whole_logits(tiny, x, y) for x, y in zip(requests, answers, strict=True)]
    return requests, answers, expected


@pytest.mark.parametrize("chunk", [2, 256])
@pytest.mark.parametrize("tokens_per_pass", [1, 150, 300, 2048])
def test_a_shared_prefix_changes_no_likelihood(tiny, group, monkeypatch, tokens_per_pass, chunk):
    requests, answers, expected = group
    monkeypatch.setattr(passes, "CHUNK", chunk)
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer, tokens_per_pass)
    assert scorer.score(requests, answers) == pytest.approx(expected, abs=1e-5)
    assert np.isnan(scorer.score(requests, [[], *answers[1:]])[0])


class Passes:
    """Shape of the inputs of each pass, and whether it had a block mask."""

    def __init__(self, model) -> None:
        self.seen = []
        self.hook = model.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, module, args, kwargs):
        self.seen.append((*kwargs["input_ids"].shape, kwargs["attention_mask"].dim() == 4))

    def __enter__(self):
        return self.seen

    def __exit__(self, *exception):
        self.hook.remove()


def test_a_shared_prefix_is_computed_once(tiny):
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    prefix = len(scorer.prefix_ids(REQUESTS[0]))
    with Passes(tiny.model) as seen:
        scorer.score([REQUESTS[0]] * 4, [[5] * 10, [6] * 20, [7] * 20, []])
    # All but the last token of the prefix; then for each answer that token and all but its last.
    assert seen == [(1, prefix - 1 + 50, True)]


def test_a_row_of_several_answers_fits_into_the_tokens_of_a_pass(tiny):
    prefix = len(ReferenceScorer(tiny.model, tiny.tokenizer).prefix_ids(REQUESTS[0]))
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer, tokens_per_pass=prefix - 1 + 40)
    with Passes(tiny.model) as seen:
        scorer.score([REQUESTS[0]] * 5, [[5] * 20] * 5)
    assert seen == [(1, prefix - 1 + 20, False), *[(1, prefix - 1 + 40, True)] * 2]


def test_a_prefix_is_not_shared_where_attention_would_cost_more_than_it_saves(tiny):
    # 6 x hidden size = 384 tokens, to which the attention of a token costs as much as the rest.
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    prefix = len(scorer.prefix_ids("Why?"))
    assert tiny.model.config.hidden_size == 64
    for tokens, shares in [(40, True), (400, False)]:
        one, two = prefix - 1 + tokens, prefix - 1 + 2 * tokens
        assert (two * (1 + two / 384) < 2 * one * (1 + one / 384)) is shares
        with Passes(tiny.model) as seen:
            scorer.score(["Why?"] * 2, [[5] * tokens] * 2)
        assert seen == [(1, two, True) if shares else (2, one, False)]


# --- other models ------------------------------------------------------------------------------
SMALL = {
    "vocab_size": 49_152,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}


def small_model(tiny, **settings) -> SimpleNamespace:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**SMALL | settings)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():  # biases start at zero, which would hide them
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_()
    return SimpleNamespace(model=model, tokenizer=tiny.tokenizer)


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({"model_type": "llama", "tie_word_embeddings": False}, True),
        ({"model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": True}, True),
        ({"model_type": "qwen2"}, True),
        ({"model_type": "phi"}, True),  # its head has a bias
        ({"model_type": "olmo2"}, True),
        ({"model_type": "mistral", "sliding_window": 16}, False),
        ({"model_type": "mistral", "sliding_window": 500}, True),
        (
            {
                "model_type": "qwen3",
                "head_dim": 8,
                "use_sliding_window": True,
                "sliding_window": 16,
                "max_window_layers": 1,
            },
            False,
        ),
        (
            {
                "model_type": "llama",
                "max_position_embeddings": 32,
                "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
            },
            False,
        ),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_other_architectures(tiny, group, settings, shares):
    requests, answers, _ = group
    small = small_model(tiny, **settings)
    one_by_one = ReferenceScorer(small.model, tiny.tokenizer, 1).score(requests, answers)
    expected = [whole_logits(small, x, y) for x, y in zip(requests, answers, strict=True)]
    if settings.get("rope_parameters"):
        # The rotation depends on the longest row of a pass and of earlier ones.
        assert one_by_one == pytest.approx(expected, abs=1e-3)
        return
    assert one_by_one == pytest.approx(expected, abs=1e-5)
    with Passes(small.model) as seen:
        batched = ReferenceScorer(small.model, tiny.tokenizer).score(requests, answers)
    assert any(block_mask for *_, block_mask in seen) is shares
    assert batched == pytest.approx(expected, abs=1e-5)
    assert np.std(expected) > 0.001


def test_a_model_without_a_head_is_refused(tiny):
    from transformers import AutoModel

    body = AutoModel.from_config(tiny.model.config)
    with pytest.raises(ValueError, match="LlamaModel has no language-model head"):
        ReferenceScorer(body, tiny.tokenizer)


def test_the_softmax_of_a_bfloat16_model_is_taken_in_float32(tiny):
    model = copy.deepcopy(tiny.model).to(torch.bfloat16)
    answer = list(range(100, 160))
    scorer = ReferenceScorer(model, tiny.tokenizer)
    ids = torch.tensor([scorer.prefix_ids("Tea?") + answer])
    with torch.no_grad():
        logits = model(ids[:, :-1]).logits[0, -len(answer) :]
    in_float32 = logits.double().log_softmax(-1)[range(60), answer].mean().item()
    in_bfloat16 = logits.log_softmax(-1)[range(60), answer].float().mean().item()
    assert scorer.score(["Tea?"], [answer])[0] == pytest.approx(in_float32, abs=1e-4)
    assert abs(in_bfloat16 - in_float32) > 1e-3, "the test could tell"


def in_autocast(tiny, request: str, answer: list[int]) -> float:
    """l from logits that are made in bfloat16 autocast on the CPU; log-softmax in double."""
    prefix = tiny.tokenizer(TEMPLATE.format(request), add_special_tokens=False)["input_ids"]
    ids = torch.tensor([prefix + answer])
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        logits = tiny.model(ids[:, :-1]).logits[0, -len(answer) :]
    assert logits.dtype == torch.bfloat16
    return logits.double().log_softmax(-1)[range(len(answer)), answer].mean().item()


def test_the_callers_autocast_does_not_change_the_precision(tiny):
    answer = [100] * 5
    expected = whole_logits(tiny, "Tea?", answer)
    assert abs(in_autocast(tiny, "Tea?", answer) - expected) > 1e-4, "the test could tell"
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert scorer.score(["Tea?"], [answer])[0] == pytest.approx(expected, abs=1e-5)


def test_nor_does_the_autocast_that_a_trainer_wraps_around_forward(tiny):
    """As accelerate does it in ``prepare_model``."""
    answer = [100] * 5
    model = copy.deepcopy(tiny.model)
    model._original_forward = model.forward
    wrapped = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    model.forward = wrapped
    scorer = ReferenceScorer(model, tiny.tokenizer)
    expected = whole_logits(tiny, "Tea?", answer)
    assert scorer.score(["Tea?"], [answer])[0] == pytest.approx(expected, abs=1e-5)
    assert vars(model)["forward"] is wrapped, "it is back for the trainer"
    hook = model.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scorer.score(["Tea?"], [answer])
    hook.remove()
    assert vars(model)["forward"] is wrapped


def test_where_passes_run_in_autocast_the_softmax_is_taken_in_float32(tiny, monkeypatch):
    """The branch of a GPU, on the CPU."""
    answer = [100] * 5
    monkeypatch.setattr(likelihood, "scoring_precision", lambda device=None: "bfloat16 autocast")
    scorer = ReferenceScorer(tiny.model, tiny.tokenizer)
    value = scorer.score(["Tea?"], [answer])[0]
    assert value == pytest.approx(in_autocast(tiny, "Tea?", answer), abs=1e-4)


def test_the_precision_follows_from_the_device(tiny, monkeypatch):
    assert ReferenceScorer(tiny.model, tiny.tokenizer).precision == "float32"
    assert likelihood.scoring_precision(torch.device("cpu")) == "float32"
    assert likelihood.scoring_precision(torch.device("cuda", 1)) == "bfloat16 autocast"
    for on_gpu, expected in [(True, "bfloat16 autocast"), (False, "float32")]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda on_gpu=on_gpu: on_gpu)
        assert likelihood.scoring_precision() == expected


def test_dropout_is_off(tiny, group):
    requests, answers, _ = group
    small = small_model(tiny, model_type="llama", attention_dropout=0.5)
    expected = [whole_logits(small, x, y) for x, y in zip(requests, answers, strict=True)]
    small.model.train()
    scorer = ReferenceScorer(small.model, tiny.tokenizer)
    assert scorer.score(requests, answers) == pytest.approx(expected, abs=1e-5)


# --- adapters ----------------------------------------------------------------------------------
def adapted(tiny, **settings):
    """The tiny model under a LoRA adapter that changes what it says."""
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        policy = get_peft_model(copy.deepcopy(tiny.model), LoraConfig(r=2, **settings))
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.5)
    return policy


def test_with_the_adapter_switched_off_the_model_is_the_base(tiny, group):
    requests, answers, expected = group
    policy = adapted(tiny, target_modules="all-linear")
    trainable = [name for name, p in policy.named_parameters() if p.requires_grad]
    reference = ReferenceScorer(policy, tiny.tokenizer, 200, active=policy.disable_adapter)
    assert reference.score(requests, answers) == pytest.approx(expected, abs=1e-5)
    moved = ReferenceScorer(policy, tiny.tokenizer, 200).score(requests, answers)
    assert np.abs(moved - expected).max() > 0.01, "by itself the model is the policy"
    assert [name for name, p in policy.named_parameters() if p.requires_grad] == trainable


def test_the_context_is_entered_around_every_pass(tiny, group):
    requests, answers, _ = group
    events = []

    @contextlib.contextmanager
    def active():
        events.append("in")
        yield
        events.append("out")

    hook = tiny.model.register_forward_hook(lambda *_: events.append("pass"))
    try:
        ReferenceScorer(tiny.model, tiny.tokenizer, 1, active=active).score(requests, answers)
    finally:
        hook.remove()
    assert len(events) > 6
    assert events == ["in", "pass", "out"] * (len(events) // 3)


def test_an_adapter_on_the_head_is_refused(tiny):
    policy = adapted(tiny, target_modules=["q_proj", "lm_head"])
    with pytest.raises(ValueError, match="the language-model head carries an adapter"):
        ReferenceScorer(policy, tiny.tokenizer, active=policy.disable_adapter)


def test_lockstep_needs_several_processes(tiny):
    with pytest.raises(RuntimeError, match=r"lockstep=True needs torch\.distributed"):
        ReferenceScorer(tiny.model, tiny.tokenizer, lockstep=True)
