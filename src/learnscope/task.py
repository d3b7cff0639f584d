"""How a batch becomes logits, targets, losses, example ids and groups.

Probes never look into a batch themselves: they ask a `Task`. The built-in ones know `(x, y)`, Hugging Face
dictionaries, pairs and plain dictionaries; for anything else a user writes a class of two methods.
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORE = -100
"""A target with this value is no target: its position is left out, as everywhere in PyTorch."""

_ID_KEYS = ("id", "idx", "ids", "example_id", "example_ids")
_GROUP_KEYS = ("group", "groups")
_LABEL_KEYS = ("labels", "label", "label_ids")
_MODEL_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values")
_DICT_PAIRS = (("x", "y"), ("inputs", "targets"), ("input", "target"), ("image", "label"), ("data", "target"))


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one forward gives, aligned: N positions that count, padding and ignored ones removed.

    logits: [N, C] for classes, [N] or [N, 1] for a single logit, [N, ...] for regression; the model's dtype.
    targets: [N], or the logits' shape for regression and several labels; None where the batch has none.
    losses: [N] in float32 or better; None where there are no targets.
    example: [N], for each position the index in the batch of the example that it belongs to.
    """

    logits: Tensor
    targets: Tensor | None
    losses: Tensor | None
    example: Tensor


class Task:
    """Override `logits` and `targets`, and what else the defaults do not suit.

    Integer targets are classes (or 0/1 for a model with a single logit); float targets are regression. Logits
    are [B, C] or [B, T, C], or channels second for images ([B, C, H, W]); targets are the same without C.
    Nothing here touches train/eval flags or the grad mode: that is the caller's business.
    """

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        """The model's raw outputs for the batch, examples first."""
        raise NotImplementedError(f"{type(self).__name__} does not define logits(model, batch)")

    def targets(self, batch: Any) -> Tensor | None:  # noqa: ARG002 - the default has nothing to read
        """What the logits should have been; `IGNORE` where a position does not count; None if unknown."""
        return None

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of each of N positions, in float32 or better.

        Cross entropy for integer targets and [N, C] logits; binary cross entropy for integer targets and a
        single logit; squared error, averaged over the dimensions after the first, for float targets.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if targets.is_floating_point():
            error = (logits - _like(targets, logits).to(logits.dtype)).square()
            return error.flatten(1).mean(1) if error.ndim > 1 else error
        if _is_single(logits):
            flat = logits.reshape(-1)
            return F.binary_cross_entropy_with_logits(
                flat, _like(targets, flat).to(flat.dtype), reduction="none"
            )
        return F.cross_entropy(logits, targets.long(), reduction="none")

    def ids(self, batch: Any) -> Tensor | None:
        """Identity of each example in the data set, [B]; None where the batch does not carry it."""
        return _ids(_first(batch, _ID_KEYS))

    def groups(self, batch: Any) -> Tensor | Sequence[Any] | None:
        """Group of each example (a domain, a source), [B]; None where the batch does not carry it."""
        found: Tensor | Sequence[Any] | None = _first(batch, _GROUP_KEYS)
        return found

    def size(self, batch: Any) -> int:
        """Number of examples: the first dimension of the first tensor in the batch."""
        found = _first_tensor(batch)
        if found is None:
            raise TypeError(
                f"no tensor in {describe(batch)}; override size(batch) to say how many examples it has"
            )
        return int(found.shape[0])

    def to(self, batch: Any, device: torch.device | str) -> Any:
        """The batch on another device; containers are rebuilt, the caller's own is left as it is."""
        target = torch.device(device)

        def move(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                # A copy to the host that does not block may be read before it has arrived.
                return leaf.to(target, non_blocking=target.type != "cpu")
            return leaf.to(target) if callable(getattr(leaf, "to", None)) else leaf

        return _map(batch, move)

    def take(self, batch: Any, n: int) -> Any:
        """The first `n` examples of the batch (all, if it has fewer); what is not per example stays whole."""
        if n < 1:
            raise ValueError(f"take at least one example, not {n}")
        size = self.size(batch)

        def cut(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return leaf[:n] if leaf.ndim and leaf.shape[0] == size else leaf
            if isinstance(leaf, (list, tuple)) or getattr(leaf, "shape", None):  # a NumPy array
                return leaf[:n] if len(leaf) == size else leaf
            return leaf

        return _map(batch, cut)

    @final
    def outputs(self, model: nn.Module, batch: Any) -> Outputs:
        """Forward the batch and keep the positions that count. Gradients flow if the grad mode lets them."""
        logits, targets, keep, example = self._positions(model, batch)
        if keep is not None:
            index = keep.nonzero().squeeze(1)
            logits, example = logits[index], example[index]
            targets = None if targets is None else targets[index]
        if targets is None:
            return Outputs(logits, None, None, example)
        if (
            not targets.is_floating_point()
            and _is_single(logits)
            and bool(((targets != 0) & (targets != 1)).any())
        ):
            raise ValueError(
                f"the model gives a single logit (shape {list(logits.shape)}), which is a yes/no answer, but "
                "integer targets other than 0 and 1 were seen; for regression make the targets float"
            )
        return Outputs(logits, targets, self._each_loss(model, logits, targets), example)

    @final
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean of the losses over the positions that count; NaN if none does.

        Shapes do not depend on the data here, so that `torch.func.vmap` and `grad` can go through it.
        """
        logits, targets, keep, _ = self._positions(model, batch)
        if targets is None:
            raise ValueError(
                f"a loss needs targets, and {describe(batch)} has none for {type(self).__name__}"
            )
        if keep is None:
            return self._each_loss(model, logits, targets).mean()
        # Zeroed before the loss, not after it: a NaN at a padded position would survive multiplication by 0.
        logits = torch.where(keep.view(-1, *[1] * (logits.ndim - 1)), logits, 0)
        targets = torch.where(keep.view(-1, *[1] * (targets.ndim - 1)), targets, 0)
        each = self._each_loss(model, logits, targets)
        return torch.where(keep, each, 0).sum() / keep.sum()

    def _positions(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
        if _is_empty(batch):
            raise ValueError(f"the batch is empty: {describe(batch)}")
        return _flatten(*self._aligned(model, batch))

    def _aligned(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Logits, targets of the same positions, and which positions count (None: all)."""
        return self.logits(model, batch), self.targets(batch), None

    def _each_loss(self, model: nn.Module, logits: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        return self.losses(logits, targets)


class TupleTask(Task):
    """`(x, y)`, `[x, y]`, `(x, y, ids)`; `(x,)` or a bare tensor without targets. It calls `model(x)`."""

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return _tensor(model(batch[0] if isinstance(batch, (tuple, list)) else batch))

    def targets(self, batch: Any) -> Tensor | None:
        return batch[1] if isinstance(batch, (tuple, list)) and len(batch) > 1 else None

    def ids(self, batch: Any) -> Tensor | None:
        return _ids(batch[2]) if isinstance(batch, (tuple, list)) and len(batch) > 2 else None


class DictTask(Task):
    """A plain dictionary: `model(batch[inputs])` against `batch[targets]`.

    Several names in `inputs` are several positional arguments.
    """

    def __init__(self, inputs: str | Sequence[str] = "x", targets: str | None = "y") -> None:
        self.input_keys = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        self.target_key = targets

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return _tensor(model(*(batch[key] for key in self.input_keys)))

    def targets(self, batch: Any) -> Tensor | None:
        return None if self.target_key is None else batch.get(self.target_key)

    def size(self, batch: Any) -> int:
        return super().size(batch[self.input_keys[0]])


class PairTask(Task):
    """`img1`, `img2`, `winner`: which of two wins. Logits are always [B, 2].

    The model is called as `model(img1, img2)`. A single logit z per pair is that of winner 1, and becomes
    [0, z]: the two-class cross entropy of that is the binary cross entropy of z.
    """

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        logits = _tensor(model(batch["img1"], batch["img2"]))
        if not _is_single(logits):
            return logits
        single = logits.reshape(-1, 1)
        return torch.cat([torch.zeros_like(single), single], dim=1)

    def targets(self, batch: Any) -> Tensor | None:
        winner = batch.get("winner")
        if winner is None:
            return None
        winner = torch.as_tensor(winner).reshape(-1)
        if winner.is_floating_point() and bool((winner != winner.round()).any()):
            raise ValueError(
                "`winner` must be 0 or 1; for soft preferences write a Task with your own losses"
            )
        return winner.long()

    def size(self, batch: Any) -> int:
        return super().size(batch["img1"])


class HuggingFaceTask(Task):
    """Dictionaries such as `BatchEncoding`, for models whose output has `.logits` (or is a dict or tuple).

    Labels of -100 are ignored and positions that `attention_mask` hides never count, neither as what is
    predicted nor as what it is predicted from. Causal language models, and only those, are shifted by one
    (`logits[:, :-1]` against `labels[:, 1:]`); which they are is read off the class of the model inside its
    wrappers, or said with `shift`. A causal language model's batch without labels is its own target: the
    targets are the input ids, without what `attention_mask` hides (and with all of them if there is none).

    The labels are not given to the model, so that it does not compute a loss of its own; neither are keys
    that its `forward` does not take, nor example ids and groups. Sequence classifiers follow transformers'
    rules: one label is regression, float labels for several are independent yes/no answers.
    """

    def __init__(self, shift: bool | None = None) -> None:
        self.shift = shift

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return _tensor(model(**self._arguments(model, batch)))

    def targets(self, batch: Any) -> Tensor | None:
        found = _first(batch, _LABEL_KEYS)
        return None if found is None else torch.as_tensor(found)

    def size(self, batch: Any) -> int:
        main = _first(batch, _MODEL_INPUTS)
        return super().size(batch if main is None else main)

    def _arguments(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        inner = unwrap(model)
        parameters = inspect.signature(inner.forward).parameters
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        arguments: dict[str, Any] = {}
        for key, value in batch.items():
            if key in _LABEL_KEYS:
                continue
            extra = open_ended and isinstance(value, Tensor) and key not in (*_ID_KEYS, *_GROUP_KEYS)
            if key in parameters or extra:
                arguments[key] = value
        labels = self.targets(batch)
        if labels is None or "labels" not in parameters:
            return arguments
        made = {"decoder_input_ids", "decoder_inputs_embeds"} & arguments.keys()
        if _decodes(inner) and not made and labels.ndim == 2 and not labels.is_floating_point():
            # An encoder-decoder reads its decoder's inputs off the labels. Doing that here saves its loss.
            shifted = getattr(inner, "prepare_decoder_input_ids_from_labels", None)
            shifted = shifted or getattr(inner, "_shift_right", None)
            arguments |= {"decoder_input_ids": shifted(labels)} if shifted else {"labels": labels}
        elif parameters["labels"].default is inspect.Parameter.empty:
            arguments["labels"] = labels
        return arguments

    def _aligned(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        logits, targets = self.logits(model, batch), self.targets(batch)
        inner = unwrap(model)
        if targets is not None and _problem(inner, targets) in ("regression", "multi_label_classification"):
            targets = targets.float()
        by_token = logits.ndim == 3 and (
            targets is None or (targets.ndim == 2 and not targets.is_floating_point())
        )
        if not by_token:
            return logits, targets, None
        mask = batch.get("decoder_attention_mask" if _decodes(inner) else "attention_mask")
        shift = self.shift if self.shift is not None else _is_causal(inner)
        if targets is None and shift:
            targets = batch.get("input_ids")
        shape = (targets if targets is not None else logits[..., 0]).shape
        keep = mask.bool() if isinstance(mask, Tensor) and mask.shape == shape else None
        if not shift or targets is None:
            return logits, targets, keep
        if (virtual := logits.shape[1] - targets.shape[1]) > 0:
            # Prompt tuning puts virtual tokens in front: never predicted, but the first token is from them.
            targets = F.pad(targets, (virtual, 0), value=IGNORE)
            keep = None if keep is None else F.pad(keep, (virtual, 0), value=True)
        return logits[:, :-1], targets[:, 1:], None if keep is None else keep[:, 1:] & keep[:, :-1]

    def _each_loss(self, model: nn.Module, logits: Tensor, targets: Tensor) -> Tensor:
        own = type(self).losses is not Task.losses
        if own or _problem(unwrap(model), targets) != "multi_label_classification":
            return self.losses(logits, targets)
        each = F.binary_cross_entropy_with_logits(logits.float(), targets.float(), reduction="none")
        return each.flatten(1).mean(1)


def task_for(batch: Any, model: nn.Module | None = None) -> Task:
    """The built-in task for a batch of this structure; where none fits, a TypeError says what to write."""
    if isinstance(batch, Mapping):
        if "img1" in batch and "img2" in batch:
            return PairTask()
        if any(key in batch for key in (*_MODEL_INPUTS, "labels")):
            return HuggingFaceTask()
        for inputs, targets in _DICT_PAIRS:
            if inputs in batch and targets in batch:
                return DictTask(inputs, targets)
    elif isinstance(batch, Tensor) or _is_tuple_batch(batch):
        return TupleTask()
    seen = f" for a {type(unwrap(model)).__name__}" if model is not None else ""
    raise TypeError(
        f"no built-in task fits this batch{seen}: {describe(batch)}. Say how to read it:\n\n"
        "    class MyTask(learnscope.Task):\n"
        "        def logits(self, model, batch): return model(batch[...])\n"
        "        def targets(self, batch): return batch[...]\n"
    )


def predictions(logits: Tensor) -> Tensor:
    """The class of each position: the largest logit, or whether a single one is above 0."""
    return (logits.reshape(-1) > 0).long() if _is_single(logits) else logits.argmax(-1)


def correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Whether each position's prediction is its target, as booleans; for classes only."""
    if targets.is_floating_point():
        raise TypeError("float targets are regression: there is no correct or wrong, only an error")
    predicted = predictions(logits)
    return predicted == targets.reshape(predicted.shape)


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile, DDP, FSDP, PEFT and the like, in whatever order they were applied."""
    while True:
        inner = model._modules.get("_orig_mod") or model._modules.get("_fsdp_wrapped_module")
        if inner is None and list(model._modules) == ["module"]:
            inner = model._modules["module"]
        if inner is None and callable(base := getattr(model, "get_base_model", None)):
            inner = base()
        if inner is None or inner is model:
            return model
        model = inner


def describe(batch: Any) -> str:
    """The structure of a batch in a line: types, keys, shapes, dtypes."""
    if isinstance(batch, Tensor):
        return f"Tensor{list(batch.shape)} {str(batch.dtype).removeprefix('torch.')}"
    name = type(batch).__name__
    if isinstance(batch, Mapping):
        return f"{name} {{{', '.join(f'{key!r}: {describe(value)}' for key, value in batch.items())}}}"
    if isinstance(batch, (tuple, list)):
        shown = ", ".join(describe(value) for value in batch[:4])
        return f"{name} of {len(batch)} ({shown}{', …' if len(batch) > 4 else ''})"
    return name


def _flatten(
    logits: Tensor, targets: Tensor | None, keep: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    """Positions in one row, without looking at the data: logits, targets, which count, example of each."""
    logits = logits.reshape(1) if logits.ndim == 0 else logits  # a model that squeezes a batch of one
    if targets is not None and not targets.is_floating_point():
        logits, targets = _match(logits, targets.long())
        counted = targets != IGNORE
        keep = counted if keep is None else keep & counted
    elif targets is not None:
        targets = _like(targets, logits)
    if keep is None:
        return logits, targets, None, torch.arange(logits.shape[0], device=logits.device)
    rows = torch.arange(keep.shape[0], device=logits.device)
    example = rows.view(-1, *[1] * (keep.ndim - 1)).expand(keep.shape).reshape(-1)
    logits = logits.reshape(-1, *logits.shape[keep.ndim :])
    return logits, None if targets is None else targets.reshape(-1), keep.reshape(-1), example


def _match(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits as `targets.shape` or `targets.shape + (C,)`, whichever side has dimensions of one too many."""
    if targets.ndim == logits.ndim > 1 and targets.shape[-1] == 1 != logits.shape[-1]:
        targets = targets.squeeze(-1)
    if logits.ndim == targets.ndim + 1:
        last = logits.shape[:-1] == targets.shape
        second = logits.shape[0] == targets.shape[0] and logits.shape[2:] == targets.shape[1:]
        if second and (logits.ndim > 3 or not last):
            return logits.movedim(1, -1), targets
        if last:
            return logits, targets
    if _trimmed(logits) == _trimmed(targets):
        return logits.reshape(_trimmed(logits)), targets.reshape(_trimmed(targets))
    raise ValueError(_mismatch(logits, targets))


def _like(targets: Tensor, logits: Tensor) -> Tensor:
    """Targets in the logits' shape. [N] against [N, 1] would otherwise broadcast to [N, N] without a word."""
    if _trimmed(targets) != _trimmed(logits):
        raise ValueError(_mismatch(logits, targets))
    return targets.reshape(logits.shape)


def _trimmed(tensor: Tensor) -> tuple[int, ...]:
    shape = list(tensor.shape) or [1]
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return tuple(shape)


def _mismatch(logits: Tensor, targets: Tensor) -> str:
    kind = "float (regression)" if targets.is_floating_point() else "integer (class)"
    return f"{kind} targets of shape {list(targets.shape)} do not fit logits of shape {list(logits.shape)}"


def _is_single(logits: Tensor) -> bool:
    """Whether there is one logit a position: a yes/no answer."""
    return logits.ndim < 2 or logits.shape[-1] == 1


def _tensor(output: Any) -> Tensor:
    """The logits in what a model returned."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if found is None and isinstance(output, Mapping):
        found = output.get("logits")
    if found is None and isinstance(output, (tuple, list)):
        # A scalar in front is the model's own loss.
        found = next((item for item in output if isinstance(item, Tensor) and item.ndim > 0), None)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"no logits in the model's output, {describe(output)}; write a Task whose logits() finds them"
        )
    return found


def _first(batch: Any, keys: Sequence[str]) -> Any:
    if not isinstance(batch, Mapping):
        return None
    return next((batch[key] for key in keys if key in batch and batch[key] is not None), None)


def _ids(value: Any) -> Tensor | None:
    if value is None:
        return None
    if not isinstance(value, Tensor) and not all(isinstance(item, int) for item in value):
        raise TypeError("example ids must be integers; number the examples in the data set")
    found = torch.as_tensor(value)
    if found.is_floating_point():
        raise TypeError(f"example ids must be integers, not {found.dtype}")
    return found if found.ndim == 1 else None  # token ids under the same key are an input, not an identity


def _children(value: Any) -> list[Any] | None:
    """What a container holds; None for a leaf. A list of plain values is a leaf: one value an example."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list)):
        nested = any(isinstance(item, Tensor) or _children(item) is not None for item in value)
        return list(value) if nested else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return None


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch if batch.ndim else None
    found = (_first_tensor(item) for item in _children(batch) or ())
    return next((item for item in found if item is not None), None)


def _is_empty(batch: Any) -> bool:
    found = _first_tensor(batch)
    return found is not None and found.shape[0] == 0


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same containers with every leaf changed; the original is not touched."""
    if isinstance(value, Tensor) or _children(value) is None:
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: _map(item, change) for key, item in value.items()}
        if not isinstance(value, MutableMapping):
            return changed
        rebuilt = copy.copy(value)  # keeps the type: BatchEncoding, OrderedDict, defaultdict
        rebuilt.update(changed)
        return rebuilt
    if isinstance(value, (tuple, list)):
        items = [_map(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    fields = {f.name: _map(getattr(value, f.name), change) for f in dataclasses.fields(value) if f.init}
    return dataclasses.replace(value, **fields)


def _is_tuple_batch(batch: Any) -> bool:
    if not isinstance(batch, (tuple, list)) or not 1 <= len(batch) <= 3 or _first_tensor(batch[0]) is None:
        return False
    first = _first_tensor(batch[0])
    rest = batch[1:]
    return first is not None and all(
        isinstance(item, Tensor) and item.ndim > 0 and item.shape[0] == first.shape[0] for item in rest
    )


def _config(model: nn.Module, name: str) -> Any:
    config = getattr(model, "config", None)
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _decodes(model: nn.Module) -> bool:
    """Whether the labels are those of a decoder, which has tokens, and padding, of its own."""
    decoder = "decoder_input_ids" in inspect.signature(model.forward).parameters
    return decoder and bool(_config(model, "is_encoder_decoder"))


def _is_causal(model: nn.Module) -> bool:
    """Whether position t of the model's logits predicts token t + 1."""
    name = type(model).__name__
    if _config(model, "is_encoder_decoder") or name.endswith(("WithLMHeadModel", "XLNetLMHeadModel")):
        return False
    if name.endswith(("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "ForConditionalGeneration")):
        return True
    if name.endswith(("ForMaskedLM", "ForPreTraining", "Classification", "Segmentation", "Detection")):
        return False
    if _config(model, "is_decoder"):
        return True
    raise TypeError(
        f"cannot tell whether {name} is a causal language model, whose logits predict the next token; "
        "say so with HuggingFaceTask(shift=True) or HuggingFaceTask(shift=False)"
    )


def _problem(model: nn.Module, targets: Tensor) -> str | None:
    """transformers' `problem_type` of a sequence or image classifier, inferred by its rules if not set."""
    if not type(model).__name__.endswith(("ForSequenceClassification", "ForImageClassification")):
        return None
    given = _config(model, "problem_type")
    if given is not None:
        return str(given)
    labels = _config(model, "num_labels")
    if labels == 1:
        return "regression"
    return "multi_label_classification" if targets.is_floating_point() else None
