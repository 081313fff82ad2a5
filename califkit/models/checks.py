"""What can be told of a model before it is loaded: is it there, its engine, its template."""

from __future__ import annotations

from califkit.models.engines import EngineError, check_engine
from califkit.models.reasoning import END
from califkit.models.resolve import ModelError, load_tokenizer, resolve
from califkit.runs.settings import Execution, ParamsError
from califkit.runs.stages import AnchorStage, GenerateStage, ScoreStage


def check_model(profile: str, stage: AnchorStage | GenerateStage, execution: Execution) -> None:
    """Refuse a stage that draws with an engine or a model that is not there.

    Raises
    ------
    ParamsError
        If the engine is not installed, or the model does not reason although it should.
    ModelError
        If the model cannot be found.
    """
    try:
        check_engine(stage.engine)
    except EngineError as error:
        raise ParamsError(f"settings.{error}") from error
    resolve(stage.model)
    if stage.thinking:
        check_thinking(stage.model)


def check_reference(profile: str, stage: ScoreStage, execution: Execution) -> None:
    """Refuse a reference that is not there, or that reads other tokens than the policy writes.

    Raises
    ------
    ModelError
        If one of them cannot be found, or their vocabularies differ.
    """
    model, reference = stage.responses.model, stage.reference
    if reference is None:
        return
    theirs, ours = (load_tokenizer(resolve(name)).get_vocab() for name in (model, reference))
    if theirs != ours:
        raise ModelError(
            f"reference {reference} has another vocabulary than {model}: it cannot score its tokens"
        )


def check_thinking(model: str) -> None:
    """Refuse a model that does not mark the end of its reasoning, by its chat template.

    Without the marker every rollout would count as reasoning that never ends, hence no answer.
    The template of a model that reasons names it, to close empty reasoning or to cut it from the
    history.
    """
    if END not in str(load_tokenizer(resolve(model)).chat_template):
        raise ParamsError(
            f"thinking = true: the chat template of model {model} has no {END}, so the model does "
            "not mark where its reasoning ends"
        )
