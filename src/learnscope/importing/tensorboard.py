"""TensorBoard: the scalars of event files, and the hyper-parameters and texts that describe the training.

One folder is one training. Files in it are read in the order of their names, which begin with the time at which they
were opened; folders inside that belong to it (`add_scalars` makes one for each curve, Keras `train` and `validation`)
give their names to what they hold.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learnscope.importing.event_file import EXTRA, WHAT, events_of
from learnscope.importing.foreign import ORDER, Foreign, Gathered, Progress
from learnscope.importing.packages import needed, with_version
from learnscope.store.errors import RunError

PATTERN = "*tfevents*"
_TEXT_END = "/text_summary"
"""What torch adds to the tag of a text."""
_SECONDS, _NUMBER = re.compile(r"tfevents\.(\d+)"), re.compile(r"\.(\d+)(?:\.v2)?$")
_OF_HPARAMS = re.compile(r"\d{9,}\.\d+")
"""The name of a folder that `add_hparams` makes: the time."""


def event_files(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob(PATTERN) if path.is_file()), key=_opened)


def _opened(file: Path) -> tuple[int, int, str]:
    """What a file's name says of when it was opened: the second, and its number among those of one process."""
    seconds, number = _SECONDS.search(file.name), _NUMBER.search(file.name)
    return int(seconds[1]) if seconds else 0, int(number[1]) if number else 0, file.name


def is_part(folder: str, files: Sequence[Path]) -> bool:
    """Whether a folder inside a training's is one that `add_hparams` or `add_scalars` made, by its name and tag."""
    if _OF_HPARAMS.fullmatch(folder):
        return True
    for event in events_of(files[0], [], lambda *_: None, 0, 1):
        for value in event.summary.value:
            return folder.startswith(value.tag.replace("/", "_") + "_")
    return False


def part_name(inside: str) -> str:
    """What a folder inside a training's adds to the names; nothing if its name is only a time."""
    return "" if _OF_HPARAMS.fullmatch(inside) else inside


@dataclass
class _Reading:
    """What the events of one training have told so far."""

    gathered: Gathered
    plugins: dict[str, str] = field(default_factory=dict)
    """By tag; only the first value of a tag says it."""
    config: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Counter[str]] = field(default_factory=dict)
    first: float = math.inf
    last: float = -math.inf

    def take(self, event: Any, prefix: str) -> None:
        if event.HasField("session_log") and event.session_log.status == event.session_log.START and event.step > 0:
            self.gathered.restart(int(event.step) - 1)  # what was written from this step on is to be left out
        if not event.HasField("summary"):
            return
        self.first, self.last = min(self.first, event.wall_time), max(self.last, event.wall_time)
        for value in event.summary.value:
            name = joined(prefix, value.tag)
            kind = value.WhichOneof("value")
            if kind == "simple_value":
                self.gathered.add(name, int(event.step), float(value.simple_value), event.wall_time)
            else:
                self._other(name, value, kind, event)

    def _other(self, name: str, value: Any, kind: str | None, event: Any) -> None:
        said = value.metadata.plugin_data
        plugin = self.plugins.setdefault(name, said.plugin_name) or self.plugins[name]
        if plugin == "scalars" and kind == "tensor":
            numbers = needed("tensorboard.util.tensor_util", WHAT, EXTRA).make_ndarray(value.tensor)
            if numbers.size == 1:
                self.gathered.add(name, int(event.step), float(numbers.reshape(-1)[0]), event.wall_time)
                return
        if plugin == "hparams":
            self.config |= _hyper_parameters(said.content)
        elif plugin == "text" and _text_into(self.config, name, value):
            return
        else:
            what = plugin or {"histo": "histograms"}.get(kind or "", kind or "nothing")
            self.other.setdefault(name, Counter())[what] += 1


def read(
    parts: Sequence[tuple[str, Sequence[Path]]],
    *,
    name: str,
    step: str | None = None,
    progress: Progress = lambda *_: None,
) -> Foreign:
    """One training from the event files of its folder, by the name that the folder adds ("" for its own)."""
    if step not in (None, ORDER):
        raise RunError(f"step={step!r}: the steps of event files are their own; there is only step={ORDER!r}")
    inside = sorted(((prefix, file) for prefix, files in parts for file in files), key=lambda each: _opened(each[1]))
    files = [file for _, file in inside]
    total, before, problems = sum(file.stat().st_size for file in files), 0, list[str]()
    reading = _Reading(Gathered(in_order=step == ORDER))
    for prefix, file in inside:
        for event in events_of(file, problems, progress, before, total):
            reading.take(event, prefix)
        before += file.stat().st_size
    curves, starts = reading.gathered.finished()
    if not curves:
        more = f" ({problems[0]})" if problems else ""
        raise RunError(f"there are no scalars in {files[0]}{more}: what it holds is {_listed(reading) or 'no event'}")
    left_out = {tag: _said(kinds) for tag, kinds in reading.other.items()}
    return Foreign(
        format="tensorboard", name=name, files=files, curves=curves, starts=starts, config=reading.config,
        step="the order of writing" if step == ORDER else "the steps of the events",
        read_with=with_version("tensorboard"), started=reading.first, ended=reading.last, left_out=left_out,
        problems=problems, notes=replaced_notes(reading.gathered),
    )  # fmt: skip


def joined(prefix: str, tag: str) -> str:
    """The name of a tag in a folder inside a run's; `add_scalars("loss", {"val": …})` writes `loss` into `loss_val`.

    >>> joined("", "loss"), joined("validation", "epoch_loss"), joined("loss_val", "loss"), joined("a_b_train", "a/b")
    ('loss', 'validation/epoch_loss', 'loss/val', 'a/b/train')
    """
    if not prefix:
        return tag
    main = tag.replace("/", "_") + "_"
    return f"{tag}/{prefix.removeprefix(main)}" if prefix.startswith(main) else f"{prefix}/{tag}"


def replaced_notes(gathered: Gathered) -> list[str]:
    """For each name that had a step twice: what became of the first value."""
    return [
        f"{count:,} value{'s' * (count > 1)} of {name} {'were' if count > 1 else 'was'} written again for the same "
        "step: the last counts"
        for name, count in gathered.replaced.items()
    ]  # fmt: skip


def _hyper_parameters(content: bytes) -> dict[str, Any]:
    """Of the start of a session; other data of the plugin describe what an experiment consists of."""
    data = needed("tensorboard.plugins.hparams.plugin_data_pb2", WHAT, EXTRA).HParamsPluginData.FromString(content)
    if data.WhichOneof("data") != "session_start_info":
        return {}
    values = data.session_start_info.hparams
    return {name: getattr(value, value.WhichOneof("kind") or "", None) for name, value in values.items()}


def _text_into(config: dict[str, Any], name: str, value: Any) -> bool:
    """A text that is a JSON object is configuration: the Trainer writes its arguments and the model's so."""
    try:
        body = json.loads(b"".join(value.tensor.string_val))
    except (ValueError, RecursionError):
        return False
    if isinstance(body, dict):
        config[name.removesuffix(_TEXT_END)] = body
    return isinstance(body, dict)


def _said(kinds: Counter[str]) -> str:
    return ", ".join(f"{count:,} × {kind}" for kind, count in kinds.items())


def _listed(reading: _Reading) -> str:
    return "; ".join(f"{name}: {_said(kinds)}" for name, kinds in reading.other.items())
