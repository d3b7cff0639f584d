"""The twelve families of adapters, and how people spell them."""

from __future__ import annotations

from learnscope.options import nearest
from learnscope.training.errors import TrainError

FAMILIES = (
    "lora", "rslora", "lora+", "lora-fa", "dora", "adalora", "pissa", "milora", "milora+", "vera", "ia3", "layernorm",
)  # fmt: skip
"""Their names here and in the records of the trackers."""

_SPELLINGS = {
    "loraplus": "lora+", "lorafa": "lora-fa", "miloraplus": "milora+", "lntuning": "layernorm", "ln": "layernorm",
    "layernormtuning": "layernorm", "norm": "layernorm", "ia": "ia3", "rankstabilizedlora": "rslora",
}  # fmt: skip

SPLIT_AT_START = frozenset({"pissa", "milora", "milora+"})
"""Families that move a part of the weight into the adapter at the start and leave the rest in the base."""
TWO_RATES = frozenset({"lora+", "milora+"})
"""Families whose B learns faster than their A."""
WITHOUT_RANK = frozenset({"ia3", "layernorm"})


def family_of(written: str) -> str:
    """The family of a spelling; an unknown one is refused, with the nearest one.

    >>> [family_of(name) for name in ("LoRA+", "lora_fa", "MiLoRA-plus", "(IA)3", "ln_tuning")]
    ['lora+', 'lora-fa', 'milora+', 'ia3', 'layernorm']
    """
    plain = "".join(letter for letter in written.lower() if letter.isalnum() or letter == "+").replace("³", "3")
    spellings = {name.replace("-", ""): name for name in FAMILIES} | _SPELLINGS
    if plain in spellings:
        return spellings[plain]
    near = nearest(plain, spellings)
    hint = f" Did you mean {spellings[near[0]]!r}?" if near else ""
    raise TrainError(f"config.peft.type: {written!r} is no family of adapters.{hint} There are: {', '.join(FAMILIES)}.")
