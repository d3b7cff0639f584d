"""`learnscope audit MODEL --weights_only`: a checkpoint judged weight by weight."""

from __future__ import annotations

import argparse
from pathlib import Path

from learnscope.cli.commands import fail
from learnscope.cli.flags import in_flags

NOT_FOR = ("data", "data_split", "examples", "export", "max_mb", "max_kl", "max_increase", "activation_bits",
           "method", "thorough", "quick")  # fmt: skip
"""Options of what runs the model, or searches by its outputs."""


def run(args: argparse.Namespace) -> int:
    from learnscope.posttrain.errors import PosttrainError
    from learnscope.posttrain.weights_only import BITS, judge_weights
    from learnscope.progress import progress_bar
    from learnscope.report.markdown import escape
    from learnscope.sources.hushed import quiet
    from learnscope.store.files import write_json, write_text
    from learnscope.tensor.bits.quantize import Scheme

    def say(line: str) -> None:
        if not args.quiet:
            print(line, flush=True)

    models = [*args.models, *args.model_path]
    try:
        if len(models) != 1:
            raise PosttrainError(f"--weights_only is for one model, and {len(models)} are named")
        given = [name for name in NOT_FOR if getattr(args, name)] + (["task"] if args.tasks else [])
        if given:
            raise PosttrainError(f"--weights_only runs no model: leave out --{', --'.join(given)}")
        grouped = args.granularity == "group" or args.group_size is not None
        scheme = Scheme(args.symmetric, "group" if grouped else args.granularity or "channel", args.group_size or 64)
        widths = sorted(set(args.bits or BITS), reverse=True)
        with quiet(say, about="audit"), progress_bar("weights in fewer bits", show=not args.quiet) as show:
            judged = judge_weights(
                Path(models[0]), args.config_path, bits=widths, scheme=scheme, embeddings=args.embeddings is not False,
                show=show,
            )  # fmt: skip
    except (PosttrainError, ValueError) as error:
        return fail("learnscope audit", ValueError(in_flags(str(error))))
    args.output_dir.mkdir(parents=True, exist_ok=True)
    write_json(args.output_dir / "weights.json", judged.to_json())
    text = f"# Weights of {escape(Path(models[0]).name)}\n\n{judged.in_words()}"
    write_text(args.output_dir / "weights.md", text)
    say(text.partition("\n\n## ")[0].partition("\n\n")[2])
    print(args.output_dir / "weights.md")
    return 0
