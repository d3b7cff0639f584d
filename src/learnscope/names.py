"""From a parameter's name to its layer, its component and its adapter part.

Nothing but the name is read: the result is the same for a live model, for a checkpoint and for a run folder.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal

ROOT = "(root)"
"""The layer of a parameter that the model itself owns."""

BASE = "(base)"
"""The group of the parameters without an adapter."""

# Names that wrappers add to the path.
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
# PEFT keeps the original module under these names; the adapted module is the one above.
_PEFT_INNER = frozenset({"base_layer", "original_module"})

# The parts that PEFT's methods add to a module. Listed, not guessed: a model may well have its own `road_alpha`.
# Only the lora family is matched by pattern, since hand-written adapters use those names too.
_ADAPTERS = re.compile(
    r"ia3_l|p?vera_lambda_[bd]|ranknum|adamss_[AB]|beft_bias|boft_[Rs]|c3a_kernel|deft_[PR]|delora_(?:A|B|lambda)"
    r"|fourierft_spectrum|frod_lambda_(?:l|s_values)|glora_[A-E]|gralora_[AB](?:_general)?|hada_(?:t[12]|w[12]_[ab])"
    r"|hira_(?:embedding_)?[AB]|hra_u|lily_(?:A|B|router)|ln_tuning_layers|lokr_(?:t2|w[12](?:_[ab])?)|miss_block"
    r"|oft_(?:embedding_)?R|osf_svd_params|peanut_(?:A|B|decoders|encoders)|poly_router|psoft_R"
    r"|randlora_(?:gamma|lambda)|road_(?:alpha|theta)|shadow_(?:down|up|dropout|update_gate|update_transform)"
    r"|shira_weight|supertuning_values|tinylora_v|trainable_tokens_delta|unilora_theta_d"
    r"|vblora_(?:logits_[AB]|vector_bank)|waveft_spectrum|adaption_(?:prompt|gate)|prompt_encoder"
    r"|(?:\w+_)?lora_\w+"
)

_STACK = re.compile(r"h|layer\d*|block|resnets|\w*blocks|(?:\w+_)?layers")  # ResNet: layer1.0
_NUMBERED_BLOCK = re.compile(r"(?:encoder_layer_|decoder_layer_|denselayer)(\d+)")  # torchvision's ViT, DenseNet
# Resampling between stages and lists of norms are not blocks, though they are numbered.
_NOT_A_STACK = re.compile(r"(?:down|up|norm|dropout|patch)\w*")
# Modules whose name alone does not tell their role: GPT-2 has two `c_proj` in a block, BERT three `dense`.
_REUSED = frozenset({"c_proj", "dense", "LayerNorm", "proj", "convolution", "normalization"})
# nn.LSTM, nn.GRU and nn.RNN hold the parameters of all their layers, those of the backward direction too.
_RECURRENT = re.compile(r"(?:weight|bias)_(?:ih|hh|hr)_(l\d+)(?:_reverse)?")


@dataclass(frozen=True, slots=True)
class ParameterName:
    """What a parameter's name tells.

    name: as `named_parameters()` gives it.
    clean: without the parts that wrappers add: `module.`, `_orig_mod.`, FSDP, activation checkpointing, PEFT's
        `base_model.model.`, `base_layer`, `original_module`, `modules_to_save.<adapter>`, and
        `parametrizations.weight.original0` as `weight`.
    layer: path of the block (`transformer.h.0`), or of the owning module outside of blocks (`lm_head`). Outside of
        blocks, each layer of a recurrent module is one of its own: `lstm.l0`, `lstm.l1`, both directions in one.
    index: number of the block; None outside a known stack.
    component: the module that owns the parameter within the layer (`q_proj`), for an adapter the module it
        adapts. Names that occur several times in a block keep their path in it (`attn.c_proj`, `mlp.c_proj`);
        experts lose their number (`w1`). Another module's may be the same: see `components`.
    adapter: the part of the adapter (`lora_A`), `modules_to_save` for PEFT's trained copy; None otherwise.
    recognised: whether `layer` is a block of a known stack. If not, `layer` is the owning module, or part of it.
    adapter_name: which of several adapters (`default`); None if the name does not tell.
    module: path of the module that has the layer: `lstm` for `lstm.l0`, otherwise the same as `layer`.

    PEFT's prompt methods put the model under `base_model.` only, which the name alone cannot tell from LoRA's
    `base_model.model.`: with them, a Llama's `model.layers.0` becomes `layers.0`.
    """

    name: str
    clean: str
    layer: str
    index: int | None
    component: str
    adapter: str | None
    recognised: bool
    adapter_name: str | None = None
    module: str = ""


@dataclass(frozen=True, slots=True)
class Grouping:
    """The model's parameters, as indices, by optimizer group in the optimizer's order, and those in no group."""

    groups: dict[str, list[int]]
    unassigned: list[int]


@lru_cache(maxsize=1 << 17)
def resolve(name: str) -> ParameterName:
    """Layer, component and adapter part of the parameter called `name`.

    >>> resolved = resolve("base_model.model.model.layers.3.self_attn.q_proj.lora_A.default.weight")
    >>> resolved.layer, resolved.index, resolved.component, resolved.adapter
    ('model.layers.3', 3, 'q_proj', 'lora_A')
    """
    if not name:
        raise ValueError("a parameter's name is empty")
    parts, saved_as = _unwrap(name.split("."))
    parts, owner, leaf = _owner(parts)
    at = next((i for i, part in enumerate(parts) if _is_adapter(part)), None)
    adapter = adapter_name = None
    if at is not None:
        adapter = leaf = parts[at]
        adapter_name = parts[at + 1] if at + 1 < len(parts) and parts[at + 1] not in ("weight", "bias") else None
        owner = parts[:at] or ([adapter] if adapter == "prompt_encoder" else [])
    elif saved_as is not None:
        adapter, adapter_name = "modules_to_save", saved_as
    end = _block(owner)
    module = layer = ".".join(owner[:end]) or ROOT
    if end is None and (recurrent := _RECURRENT.fullmatch(leaf)):
        layer = ".".join([*owner, recurrent.group(1)])
    digits = None if end is None else re.search(r"\d+$", owner[end - 1])
    index = int(digits.group()) if digits else None
    component = _component(owner, end, leaf)
    clean, recognised = ".".join(parts), end is not None
    return ParameterName(name, clean, layer, index, component, adapter, recognised, adapter_name, module)


def _is_adapter(part: str) -> bool:
    return _ADAPTERS.fullmatch(part) is not None


def _unwrap(parts: list[str]) -> tuple[list[str], str | None]:
    """The path without wrappers, and the adapter if it names a trained copy (`modules_to_save`)."""
    path: list[str] = []
    saved_as: str | None = None
    rest = iter(parts[:-1])
    for part in rest:
        if part == "modules_to_save":
            saved_as = next(rest, None)
        elif part not in _WRAPPERS and part not in _PEFT_INNER:
            path.append(part)
    if path and path[-1] == "token_adapter":  # PEFT's trainable tokens, around an embedding's base layer
        path.pop()
    elif "token_adapter" in path and "trainable_tokens_delta" in path:
        path.remove("token_adapter")
    while path[:1] == ["module"]:
        del path[0]
    if path[:2] == ["base_model", "model"]:
        del path[:2]
    return [*path, parts[-1]], saved_as


def _owner(parts: list[str]) -> tuple[list[str], list[str], str]:
    """The path with parametrizations folded back, the owning module's path, and the parameter's own name."""
    if "parametrizations" not in parts[:-1]:
        return parts, parts[:-1], parts[-1]
    at = parts.index("parametrizations")
    owner, tensor, inner = parts[:at], parts[at + 1], parts[at + 2 :]
    if len(inner) == 1 and re.fullmatch(r"original\d*", inner[0]):
        return [*owner, tensor], owner, tensor
    return parts, owner, tensor  # a parameter of the parametrization itself


def _block(owner: list[str]) -> int | None:
    """Where the block's path ends within the owning module's path; None outside of known stacks."""
    end: int | None = None
    for i, part in enumerate(owner):
        if _NUMBERED_BLOCK.fullmatch(part):
            return i + 1
        above = owner[i - 1] if i else ""
        if not part.isdigit() or not _STACK.fullmatch(above) or _NOT_A_STACK.fullmatch(above):
            continue
        if end is None and i > 1 and owner[i - 2].isdigit() and owner[i - 1] in ("layer", "block"):
            return i - 1  # features.1.0.block.2: the sequence inside a numbered block
        # A list of stages holds lists of blocks (Swin's layers.0.blocks.1); sublayers are in the singular.
        inner = end is not None and i == end + 1 and owner[i - 1].endswith("s")
        if end is None or (inner and owner[end - 2] != owner[i - 1]):
            end = i + 1
    if end is None:
        return None
    if owner[end - 2] == "layers" and owner[end : end + 1] in (["downsample"], ["upsample"]):
        return None  # between two of Swin's stages, in none of the blocks
    # blocks.0.1.conv: stages as plain sequences of blocks. blocks.0.1 alone is a sequence of operations.
    if len(owner) > end + 1 and owner[end].isdigit() and not owner[end + 1].isdigit():
        return end + 1
    return end


def _component(owner: list[str], end: int | None, leaf: str) -> str:
    if not owner:
        return leaf
    path = owner[end or 0 :]
    named = leaf not in ("weight", "bias") and not _is_adapter(leaf)
    if not path:  # the block itself owns it
        return leaf if named else next((p for p in reversed(owner) if not p.isdigit()), owner[-1])
    if "experts" in path:
        below = [part for part in path[path.index("experts") + 1 :] if not part.isdigit()]
        return below[-1] if below else leaf if named else "experts"  # named: all experts in one parameter
    if path[-1].isdigit():
        start = len(path)
        while start > 1 and path[start - 1].isdigit():
            start -= 1
        return ".".join(path[start - 1 :])
    return ".".join(path) if end is not None and path[-1] in _REUSED else path[-1]


def group_parameters(names: Sequence[str], by: Literal["layer", "component", "adapter"]) -> dict[str, list[int]]:
    """Indices into `names` by layer, component or adapter part, groups in order of first appearance.

    That is the order in which the model registers its modules, for most models that of the forward pass.
    When grouping by adapter, parameters of no adapter are under `BASE`.

    A component is the same part of many blocks. Modules outside of blocks that would share its name, such as those of
    two networks, keep their paths:

    >>> group_parameters(["generator.main.0.weight", "critic.main.0.weight", "critic.head.weight"], "component")
    {'generator.main.0': [0], 'critic.main.0': [1], 'head': [2]}
    """
    if by not in ("layer", "component", "adapter"):
        raise ValueError(f"by must be 'layer', 'component' or 'adapter', not {by!r}")
    keys = components(names) if by == "component" else [getattr(resolve(name), by) or BASE for name in names]
    groups: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    return groups


def components(names: Iterable[str]) -> list[str]:
    """The component of every parameter; where several modules share one, those outside of blocks have their path."""
    found = [resolve(name) for name in names]
    owners: dict[str, set[str]] = {}
    for one in found:
        # all blocks are one owner: a component of theirs is meant to be that of all
        owners.setdefault(one.component, set()).add("" if one.recognised else one.module)
    shared = {component for component, modules in owners.items() if len(modules) > 1}
    return [
        one.module if one.component in shared and not one.recognised and one.module != ROOT else one.component
        for one in found
    ]


def optimizer_groups(
    optimizer_param_groups: Iterable[Mapping[str, Any]], named_parameters: Iterable[tuple[str, Any]]
) -> Grouping:
    """Which of the model's parameters each group of the optimizer holds, matched by identity.

    A group without a `name` is `group_0`, `group_1`, … by position; duplicate names get their position appended.
    A parameter that the model lists twice counts under its first name, one of another model not at all.
    """
    index_of: dict[int, int] = {}
    for i, (_, parameter) in enumerate(named_parameters):
        index_of.setdefault(id(parameter), i)
    groups: dict[str, list[int]] = {}
    for position, group in enumerate(optimizer_param_groups):
        key = str(group.get("name") or f"group_{position}")
        while key in groups:
            key = f"{key}_{position}"
        groups[key] = [index_of[id(parameter)] for parameter in group["params"] if id(parameter) in index_of]
    assigned = {index for members in groups.values() for index in members}
    return Grouping(groups, [index for index in index_of.values() if index not in assigned])


def match_parameters(names: Sequence[str], patterns: str | Sequence[str]) -> list[int]:
    """Indices of the names that one of the patterns matches.

    A pattern is a module's name or a dotted path of modules, anywhere in the parameter's path (without wrappers). With
    `*`, `?` or `[` in it, it is matched against the whole path, like a file name.

    >>> match_parameters(["net.backbone.0.weight", "net.head.weight", "net.head_norm.bias"], "head")
    [1]
    >>> match_parameters(["net.backbone.0.weight", "net.head.weight", "net.head_norm.bias"], ["*.head*", "net"])
    [0, 1, 2]
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return [i for i, name in enumerate(names) if any(_matches(resolve(name).clean, pattern) for pattern in patterns)]


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) if any(sign in pattern for sign in "*?[") else in_path(pattern, path)


def clean_path(path: str) -> str:
    """A module's path without the parts that wrappers add; empty for the model itself.

    >>> clean_path("module._orig_mod.encoder"), clean_path("_orig_mod")
    ('encoder', '')
    """
    return resolve(f"{path}.weight").clean.removesuffix("weight").removesuffix(".") if path else ""


def natural_key(text: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key by which `h.2` comes before `h.10`.

    >>> sorted(["h.10", "h.2", "ln_f"], key=natural_key)
    ['h.2', 'h.10', 'ln_f']
    """
    return tuple((0, int(piece)) if piece.isdigit() else (1, piece) for piece in re.split(r"(\d+)", text) if piece)


def in_path(name: str, path: str) -> bool:
    """Whether `path` contains `name`, a module or several modules in a row.

    >>> in_path("head", "net.head.0"), in_path("head", "net.head_norm")
    (True, False)
    """
    return f".{name}." in f".{path}."
