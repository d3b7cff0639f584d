"""Who could do what a measurement of robustness does, in words that report and page share."""

from __future__ import annotations

THREATS = {
    "embeddings": "An attack on embeddings changes what the model computes from its tokens. Nobody who can only send "
    "text can do that: it shows how curved the loss is around the embeddings, and is no verdict on the model.",
    "inputs": "An attack on inputs changes every input by up to epsilon, with full knowledge of the weights. Somebody "
    "could do that who has the model and sends it inputs of their own.",
}
"""Who could make the attacks, by what they change."""
PROMPTS = (
    "Changed prompts are what anybody sends who types in haste or pastes: typing errors, casing, spaces, word order, "
    "other text before the question. What is compared is predicted after them, and is the same."
)
MASKING = {
    "square_no_better": "an attack without gradients is no better", "unbounded_breaks": "without bounds all are broken",
    "more_steps_no_weaker": "more steps are no weaker", "falls_with_epsilon": "accuracy falls as epsilon grows",
}  # fmt: skip
"""Flags of AutoAttack: what holds where gradients are not masked."""
