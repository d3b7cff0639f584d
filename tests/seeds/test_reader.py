"""The reader of the documents: fences, mapped imports, filled holes."""

from __future__ import annotations

import pytest

from seeds.reader import after_line, blocks_of, with_filled_holes, with_mapped_imports


def test_fences_of_every_kind() -> None:
    text = """\
before
```python title="x"
a = 1
```
````text
```python
shown, not code
```
````
1. a list
   ```bash
   ls \\
       -l
   ```
~~~
``` not closed by the other kind
~~~
```

```
a line with ```code``` in it
"""
    found = [(block.line, block.language, block.text) for block in blocks_of("d", text)]
    assert found == [
        (2, "python", "a = 1\n"),
        (5, "text", "```python\nshown, not code\n```\n"),
        (11, "bash", "ls \\\n    -l\n"),
        (15, "", "``` not closed by the other kind\n"),
        (18, "", "\n"),
    ]


def test_a_block_that_is_never_closed() -> None:
    with pytest.raises(ValueError, match=r"d:2: .* never closed"):
        blocks_of("d", "text\n```python\na = 1\n")


def test_one_changed_character_changes_the_digest() -> None:
    one, other = (blocks_of("d", f"```\n{text}\n```")[0] for text in ("a = 1", "a = 2"))
    assert one.digest != other.digest


def test_imports_are_mapped_and_nothing_else() -> None:
    code = "from old.home import A\nimport old.home.b\nfrom old.homely import C\nx = 'old.home'\n    import old.home\n"
    assert with_mapped_imports(code, {"old.home": "new"}) == (
        "from new import A\nimport new.b\nfrom old.homely import C\nx = 'old.home'\n    import new\n"
    )


def test_holes_are_filled_in_order() -> None:
    code = "é = f(..., key=[...])  # ... as it goes on\ntext = '...'\nd = {'é': ...}\n"
    assert with_filled_holes(code, ["1, b=2", "3", "[4]"]) == (
        "é = f(1, b=2, key=[3])  # ... as it goes on\ntext = '...'\nd = {'é': [4]}\n"
    )


def test_a_hole_too_many() -> None:
    with pytest.raises(ValueError, match=r"2 times '\.\.\.', but 1 fillings"):
        with_filled_holes("f(..., g(...))", ["1"])


def test_the_part_after_a_line_keeps_its_line_numbers() -> None:
    assert after_line("# Old\nx\n# New\ny = 1\n", "# New") == "\n\n\ny = 1\n"
    with pytest.raises(ValueError, match="no line '# New'"):
        after_line("x\n", "# New")
