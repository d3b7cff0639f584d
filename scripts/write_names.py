"""Write what is derived from the declared probes and names: `src/learnscope/__init__.pyi`, `docs/probes.md` and
`docs/numbers.md`; and the number of the kernels' sources, by which a build of other ones is told.

`--check` writes nothing and fails if one of them is out of date.
"""

import re
import sys
import zlib
from pathlib import Path

import learnscope
from learnscope.probes import all_probes, probe_modules
from learnscope.probes.catalogue import page

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "src" / "learnscope" / "native"
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from numbers_page import numbers_page  # noqa: E402  (found by the line above)


def stub() -> str:
    """The public names with their homes, for type checkers and editors."""
    homes = {name: f"learnscope.{home}" for name, home in learnscope._HOME_OF.items()} | probe_modules()
    lines = [f"from {home} import {name} as {name}" for name, home in homes.items()]
    return "# made by `make names`\n" + "\n".join(sorted(lines)) + "\n\n__version__: str\n__all__: list[str]\n"


def numbered(path: Path) -> str:
    """A file with the number of the sources in C, of which comments and spaces do not count."""
    text = "".join(source.read_text(encoding="utf-8") for source in sorted(NATIVE.glob("*.[ch]")))
    code = re.sub(r"/\*.*?\*/|#define SOURCES [^\n]*", "", text, flags=re.DOTALL)
    number = zlib.crc32(" ".join(code.split()).encode()) & 0x7FFFFFFF
    return re.sub(r"(?<=\bSOURCES )(= )?0x\w+", rf"\g<1>0x{number:08X}", path.read_text(encoding="utf-8"))


def main() -> int:
    packaged = [probe for probe in all_probes() if probe.__module__.startswith("learnscope.")]
    made = {
        ROOT / "src" / "learnscope" / "__init__.pyi": stub(),
        ROOT / "docs" / "probes.md": page(packaged),
        ROOT / "docs" / "numbers.md": numbers_page(),
        **{path: numbered(path) for path in (NATIVE / "__init__.py", NATIVE / "kernels.h")},
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
