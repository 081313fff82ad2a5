"""The frozen reference of a trainer: the policy it was constructed with, wherever that lives.

The bounds l0 and l1 are likelihoods under the starting policy, so l of a rollout must be too (paper
section 2.5). Where the starting policy can be found depends on the run:

================================  ================  ==========================================
run                               ``kind``          reference
================================  ================  ==========================================
all weights, beta > 0             ``kl_model``      the frozen model of the trainer's KL term
all weights, beta = 0             ``own_copy``      a frozen copy, loaded from the model's path
adapter that starts as identity   ``adapter_off``   the policy with its adapter switched off
adapter that was trained before   ``adapter_copy``  the policy with a frozen copy of the adapter
================================  ================  ==========================================

Resuming keeps the reference, since the trainer is built from the starting policy and only then
loads the checkpoint. A run whose model path *is* a checkpoint has that checkpoint as reference.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from califkit import CalifkitError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel


COPY = "ref"
"""Name of the frozen adapter; TRL's own for the copy that it makes for its KL term."""

HEAD_AND_EMBEDDINGS = ("lm_head", "embed_tokens")


class NoReferenceError(CalifkitError, ValueError):
    """The starting policy of a trainer cannot be had; the message says why."""


@dataclass(frozen=True)
class Reference:
    """Where the reference lives.

    ``model`` is out of its data-parallel wrapper; ZeRO-3 and FSDP2 keep their hooks on the modules,
    so calling it is right there too. ``active`` makes a context in which it computes as the
    reference, to be entered around each forward. ``kind`` is one of the four above, for logs.
    """

    model: nn.Module
    active: Callable[[], AbstractContextManager[Any]]
    kind: str


def find_reference(trainer: Any) -> Reference:
    """The reference of a ``GRPOTrainer`` that has not trained yet; it may resume from a checkpoint.

    An adapter that was trained before gets a frozen copy named `COPY` if the trainer made none (it
    does so for beta > 0); checkpoints then hold it too. `NoReferenceError` says why there is none.
    """
    if trainer.state.global_step > 0:
        raise NoReferenceError(
            f"the trainer is at step {trainer.state.global_step}: its policy is no longer the "
            "starting policy; find the reference before trainer.train()"
        )
    if trainer.is_fsdp_enabled and trainer.accelerator.state.fsdp_plugin.fsdp_version == 1:
        raise NoReferenceError(
            "FSDP 1 hides the model in a wrapper that exists only during training; use FSDP 2 "
            '(fsdp_config={"version": 2})'
        )
    unwrap = trainer.accelerator.unwrap_model
    policy = unwrap(trainer.model)
    if _is_peft(policy):
        return _adapter_reference(policy)
    if trainer.ref_model is not None:
        model, kind = unwrap(trainer.ref_model), "kl_model"
    else:
        model, kind = unwrap(_own_copy(trainer, policy)), "own_copy"
    _check_same_weights(trainer, policy, model)
    return Reference(model, nullcontext, kind)


# --- adapters ------------------------------------------------------------------------------------


def check_adapter(config: Any) -> None:
    """Refuse a PEFT configuration under which l of the starting policy cannot be had."""
    names = [
        name
        for field in ("target_modules", "modules_to_save", "target_parameters")
        for name in _names(getattr(config, field, None))
    ]
    for name in names:
        found = [part for part in HEAD_AND_EMBEDDINGS if part in name]
        if found:
            raise NoReferenceError(
                f"the adapter trains {name!r}: likelihoods are computed through the frozen "
                f"{found[0]}, so an adapter or a trained copy of it would be left out; leave the "
                "head and the embeddings to the base model"
            )
    bias = getattr(config, "bias", "none")
    if bias != "none":
        raise NoReferenceError(
            f"bias={bias!r} trains biases of the base model, which stay changed when the adapter "
            "is off, so the starting policy would be lost; use bias='none'"
        )


def _names(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _is_peft(model: nn.Module) -> bool:
    from peft import PeftModel

    return isinstance(model, PeftModel)


def _adapter_reference(policy: Any) -> Reference:
    if len(policy.active_adapters) != 1:
        raise NoReferenceError(f"one adapter can be trained, active are {policy.active_adapters}")
    (trained,) = policy.active_adapters
    config = policy.peft_config[trained]
    check_adapter(config)
    weights = _adapter_weights(policy, trained)
    if COPY not in policy.peft_config:
        if _is_identity(config, weights):
            return Reference(policy, policy.disable_adapter, "adapter_off")
        _add_copy(policy, config, weights)
    elif not _same(weights, _adapter_weights(policy, COPY)):
        raise NoReferenceError(
            f"the model has an adapter {COPY!r} that differs from {trained!r}, which is trained; "
            "that name is needed for a copy of the starting policy: give yours another one"
        )

    @contextmanager
    def frozen_copy() -> Iterator[None]:
        policy.set_adapter(COPY, inference_mode=True)
        try:
            yield
        finally:
            policy.set_adapter(trained)

    return Reference(policy, frozen_copy, "adapter_copy")


def _adapter_weights(policy: Any, name: str) -> dict[str, torch.Tensor]:
    """Weights of one adapter by their names without the adapter's."""
    from peft import get_peft_model_state_dict

    with _whole([p for n, p in policy.named_parameters() if name in n.split(".")]):
        weights = get_peft_model_state_dict(policy, adapter_name=name, save_embedding_layers=False)
        return {key: weight.detach().clone() for key, weight in weights.items()}


def _is_identity(config: Any, weights: dict[str, torch.Tensor]) -> bool:
    """Whether the policy with this adapter is the model without it.

    So it is for a fresh LoRA adapter, whose B is 0; not for one that was trained, nor with an
    initialisation such as PiSSA, which moves a part of the base weights into the adapter.
    """
    if config.peft_type != "LORA" or config.modules_to_save:
        return False
    second = [w for name, w in weights.items() if "lora_B" in name or "lora_embedding_B" in name]
    return not any(bool(weight.any()) for weight in second)


def _add_copy(policy: Any, config: Any, weights: dict[str, torch.Tensor]) -> None:
    """Add a frozen adapter with these weights."""
    import torch
    from peft import set_peft_model_state_dict

    config = copy.deepcopy(config)
    if hasattr(config, "init_lora_weights"):
        config.init_lora_weights = True  # some initialisations would change the base weights again
    in_float32 = next(iter(weights.values())).dtype == torch.float32
    policy.add_adapter(COPY, config, autocast_adapter_dtype=in_float32)
    set_peft_model_state_dict(policy, weights, adapter_name=COPY)


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)


# --- all weights ---------------------------------------------------------------------------------


def _own_copy(trainer: Any, policy: PreTrainedModel) -> nn.Module:
    """A frozen copy of the starting policy, loaded and prepared as TRL does for its KL term."""
    from trl.models import prepare_deepspeed, prepare_fsdp

    path = policy.config._name_or_path
    options = {
        "dtype": policy.dtype,
        "attn_implementation": policy.config._attn_implementation,
        "trust_remote_code": trainer.args.trust_remote_code,
        **(trainer.args.model_init_kwargs or {}),
        "device_map": None,  # the accelerator places it
    }
    try:
        if not path:
            raise OSError("a model that was built in memory")
        model = type(policy).from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        raise NoReferenceError(
            "with beta = 0 the trainer holds no reference, so a copy of the starting policy has to "
            f"be loaded from config._name_or_path = {path!r}, which failed: {error}. Save the "
            "model and load it from there, or give the trainer its path"
        ) from error
    model.requires_grad_(False).eval()
    if trainer.is_deepspeed_enabled:
        return prepare_deepspeed(model, trainer.accelerator)
    if trainer.is_fsdp_enabled:
        return prepare_fsdp(model, trainer.accelerator)
    return trainer.accelerator.prepare_model(model, evaluation_mode=True)


def _check_same_weights(trainer: Any, policy: nn.Module, model: nn.Module) -> None:
    """Refuse a path that does not hold the weights of the policy.

    Not under FSDP, where the policy's weights may not be loaded on every process yet.
    """
    if trainer.is_fsdp_enabled:
        return
    others = dict(model.named_parameters())
    for name, parameter in policy.named_parameters():
        if name not in others or not _equal(parameter, others[name]):
            raise NoReferenceError(
                f"the reference was loaded from {policy.config._name_or_path!r}, but its weight "
                f"{name} is not that of the policy, so it is not the starting policy: save the "
                "model that the trainer is given and load it from there"
            )


# --- weights that may be split over processes ----------------------------------------------------


@contextmanager
def _whole(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Within it, parameters that ZeRO-3 splits over processes are whole on each of them."""
    split = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    if not split:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(split):
        yield


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two weights are equal in the coarser of their precisions."""
    import torch

    with _whole([a, b]):
        a, b = a.detach(), b.detach()
        dtype = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
        return a.shape == b.shape and torch.equal(a.to(dtype), b.to(a.device, dtype))
