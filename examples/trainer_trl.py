"""TRL's DPOTrainer, watched by one argument: rewards, margins and losses of every step in one run.

    python examples/trainer_trl.py           # a few seconds on one core, nothing is downloaded

SFTTrainer, RewardTrainer and GRPOTrainer are watched in the same way. Needs `pip install 'learnscope[hf]'`.
"""

from __future__ import annotations

import copy
import tempfile

import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback
from trl import DPOConfig, DPOTrainer

from learnscope.integrations.hf import LearnscopeCallback


def character_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *"0123456789+="])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def main() -> None:
    torch.manual_seed(0)
    disable_progress_bars()
    tokenizer = character_tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, pad_token_id=0, **sizes))
    pairs = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": "0"} for a in range(10) for b in range(1, 11)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = DPOTrainer(
            model=model, ref_model=copy.deepcopy(model), processing_class=tokenizer,
            train_dataset=Dataset.from_list(pairs[10:]), eval_dataset=Dataset.from_list(pairs[:10]),
            args=DPOConfig(
                output_dir=folder, max_steps=20, per_device_train_batch_size=8, learning_rate=3e-3, logging_steps=1,
                save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, bf16=False,
            ),
            callbacks=[LearnscopeCallback()],  # the one line
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()

        callback = next(each for each in trainer.callback_handler.callbacks if isinstance(each, LearnscopeCallback))
        run = callback.run
        print(run)
        for name in ("loss", "rewards/margins", "rewards/accuracies"):
            values = run.frame("Loss", name).value
            print(f"{name}: {values.iloc[0]:.3f} → {values.iloc[-1]:.3f}")
        print(run.frame("Holdout", "holdout_accuracy")[["step", "value"]].to_string(index=False))


if __name__ == "__main__":
    main()
