"""Write what is derived from the declared probes and names: `src/learnscope/__init__.pyi`, `docs/probes.md` and
`docs/numbers.md`.

`--check` writes nothing and fails if one of them is out of date.
"""

import sys
from pathlib import Path

import learnscope
from learnscope.probes import all_probes, probe_modules
from learnscope.probes.catalogue import page

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from numbers_page import numbers_page  # noqa: E402  (found by the line above)


def stub() -> str:
    """The public names with their homes, for type checkers and editors."""
    homes = {name: f"learnscope.{home}" for name, home in learnscope._HOME_OF.items()} | probe_modules()
    lines = [f"from {home} import {name} as {name}" for name, home in homes.items()]
    return "# made by `make names`\n" + "\n".join(sorted(lines)) + "\n\n__version__: str\n__all__: list[str]\n"


def main() -> int:
    packaged = [probe for probe in all_probes() if probe.__module__.startswith("learnscope.")]
    made = {
        ROOT / "src" / "learnscope" / "__init__.pyi": stub(),
        ROOT / "docs" / "probes.md": page(packaged),
        ROOT / "docs" / "numbers.md": numbers_page(),
    }
    stale = [path for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run `make names`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(made[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
