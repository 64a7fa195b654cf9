import re
from pathlib import Path

README = Path(__file__).parents[3] / "hicache" / "README.md"


def test_the_example_in_the_readme_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    exec(compile(example, str(README), "exec"), {})


def test_the_readme_names_every_module() -> None:
    modules = {path.stem for path in README.parent.glob("*.py")} - {"__init__", "errors"}
    table = "".join(line for line in README.read_text().splitlines() if line.startswith("|"))
    named = set(re.findall(r"`(\w+)`", table))
    assert modules <= named
