"""Training an adapter (PEFT) on a language model with SFT or GRPO (TRL), tracked on request: `learnscope train`."""

from learnscope.training.settings.config import Config

__all__ = ["Config"]
