"""Settings -> instances: what is chosen must not depend on the machine."""

import pytest

from califkit import data, prompts
from califkit.params import EvaluationSettings, load_params


@pytest.mark.parametrize("tagger", [True, False])
def test_chosen_test_prompts_do_not_depend_on_optional_data(tagger, monkeypatch, request):
    if tagger:
        import nltk

        folder = request.getfixturevalue("shared") / "nltk_data"
        monkeypatch.setattr(nltk.data, "path", [str(folder)])
    usable = data.load_ifbench_wheel().instances
    assert len(usable) == 293 or not tagger
    settings = EvaluationSettings(n_prompts=64)
    chosen = {instance.key for instance in prompts.benchmark_prompts(settings).instances}
    without = [i for i in usable if all(c.id != "words:start_verb" for c in i.constraints)]
    assert chosen == {instance.key for instance in data.select(without, 64, 0)}


def test_the_composed_prompts_of_a_profile_have_their_requests():
    settings = load_params("cpu").settings.data
    loaded = prompts.training_prompts(settings)
    assert len(loaded.instances) == settings.n_prompts and not loaded.quarantined
    assert all(i.prompt.startswith(i.request) for i in loaded.instances)
    assert all(c.id in settings.constraint_ids for i in loaded.instances for c in i.constraints)
