"""Which fields of a generation config shape draws."""

import pytest
import torch
from helpers import OWN_SETTINGS
from peft import get_peft_model
from tiny_trainer import lora
from transformers import AutoModelForCausalLM, GenerationConfig

from califkit.models.sampling import NO_DRAWS, PLAIN, changed_by, resolved, without_own_settings
from califkit.runs.settings import Sampling


def test_every_field_of_a_generation_config_is_known():
    """One that a new version brings has to be sorted in by hand: does it shape draws?"""
    assert not PLAIN.keys() & NO_DRAWS
    assert set(vars(GenerationConfig())) <= PLAIN.keys() | NO_DRAWS


def test_what_transformers_does_by_itself_is_plain_but_for_top_k_and_sampling():
    defaults = GenerationConfig._get_default_generation_params()
    known = {name: value for name, value in defaults.items() if name in PLAIN}
    assert changed_by(known) == "do_sample=False"
    assert changed_by(known | {"do_sample": True}) == "top_k=50"
    assert changed_by(known | {"do_sample": True, "top_k": 0}) is None


@pytest.mark.parametrize("name", sorted(OWN_SETTINGS.keys() - NO_DRAWS))
def test_a_setting_that_changes_draws_is_named(name):
    plain = resolved(Sampling())
    assert changed_by(plain) is None
    assert changed_by(plain | {name: OWN_SETTINGS[name]}) == f"{name}={OWN_SETTINGS[name]}"


def test_what_nobody_knows_counts_as_a_change():
    assert changed_by({"top_n_sigma": 1.0}) == "top_n_sigma=1.0"
    assert changed_by({"top_n_sigma": None}) is None


@pytest.mark.parametrize("adapter", [False, True])
def test_the_model_s_own_settings_are_back_after_the_draw(tiny_folder, adapter):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    own = model.generation_config
    own.do_sample, own.num_return_sequences = True, 2
    model = get_peft_model(model, lora()) if adapter else model
    inputs = {"input_ids": torch.tensor([[5, 6]]), "attention_mask": torch.ones(1, 2)}
    # Every token ends an answer, so it has one.
    inputs["eos_token_id"] = [*range(model.config.vocab_size)]
    assert model.generate(**inputs, pad_token_id=2).shape == (2, 3)
    with without_own_settings(model):
        assert model.generate(**inputs, pad_token_id=2).shape == (1, 3)
    assert model.generation_config is own
    assert model.generate(**inputs, pad_token_id=2).shape == (2, 3)
