"""A model of the architecture that a configuration names, without weights; none of its code comes from a file."""

from __future__ import annotations

import importlib.util
from typing import Any

from torch import nn

from learnscope.model.guard import preserve_rng
from learnscope.options import nearest
from learnscope.posttrain.configuration import Configuration
from learnscope.posttrain.errors import PosttrainError
from learnscope.sources.errors import first_line
from learnscope.sources.hushed import hushed

HEADS = ("LMHeadModel", "ForCausalLM", "ForSequenceClassification", "ForImageClassification")
_CURE = "load it with the package that knows it and pass the model itself"


def build(configuration: Configuration) -> nn.Module:
    """The model with weights that were never set: all of them have to be loaded."""
    if importlib.util.find_spec("transformers") is None:
        raise PosttrainError(
            "models from files need the package transformers, which is not installed: pip install 'learnscope[hf]'; "
            "or pass the model itself"
        )
    from transformers.initialization import no_init_weights  # transformers sets its own level when it is imported

    with hushed():
        config = _config(configuration)
        make = _model_class(config, configuration)
        try:
            with no_init_weights(), preserve_rng():
                model: Any = make(config)
            model.tie_weights()
        except Exception as error:  # noqa: BLE001  (fields that contradict each other fail anywhere in the model)
            raise PosttrainError(
                f"{configuration.where} describes no {make.__name__} that can be made: {first_line(error)}"
            ) from None
    found: nn.Module = model.eval()
    return found


def _config(configuration: Configuration) -> Any:
    from transformers import CONFIG_MAPPING, __version__

    fields, where = configuration.fields, configuration.where
    kind = fields["model_type"]
    known = list(CONFIG_MAPPING.keys())
    if kind not in known:
        near = nearest(kind, known)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise PosttrainError(
            f"{where}: transformers {__version__} has no model type {kind!r}{hint}, and code that comes with a model "
            f"is never run: {_CURE}"
        )
    if fields.get("quantization_config"):
        raise PosttrainError(
            f"{where} says that the weights are quantised already (quantization_config): {_CURE}, or save it without"
        )
    try:
        return CONFIG_MAPPING[kind].from_dict(fields)
    except Exception as error:  # noqa: BLE001  (each configuration checks its fields in its own way)
        raise PosttrainError(f"{where} is no configuration of a {kind}: {first_line(error)}") from None


def _model_class(config: Any, configuration: Configuration) -> Any:
    """The class that `architectures` names; where it names none or a body without a head, the causal language model."""
    import transformers

    listed = configuration.fields.get("architectures") or ()
    named = next(iter([listed] if isinstance(listed, str) else listed), None)
    if named is not None and not isinstance(named, str):
        raise PosttrainError(
            f"{configuration.where}: architectures names {named!r}, where the name of a class is needed"
        )
    if named is None or (named.endswith("Model") and not named.endswith(HEADS)):
        found = transformers.AutoModelForCausalLM._model_mapping.get(type(config), None)
    else:
        found = getattr(transformers, named, None) if named.endswith(HEADS) else None
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        what = named or f"model type {config.model_type!r}"
        raise PosttrainError(
            f"{configuration.where}: {what} is none of the models that are loaded from files (causal language models, "
            f"sequence and image classifiers of transformers): {_CURE}"
        )
    return found
