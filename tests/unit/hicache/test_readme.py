import re
from pathlib import Path

README = Path(__file__).parents[3] / "hicache" / "README.md"


def test_the_examples_in_the_readme_run_one_after_the_other() -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(examples) == 2
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, str(README), "exec"), names)


def test_the_readme_names_every_module() -> None:
    folder = README.parent
    modules = {path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py") if path.stem != "__init__"}
    table = "".join(line for line in README.read_text().splitlines() if line.startswith("|"))
    named = set(re.findall(r"`([\w.]+)`", table))
    whole = {"tiers", "radix.policy"}  # packages whose modules have no line of their own
    dotted = {".".join(module.parts) for module in modules} - {"errors"}
    assert {name for name in dotted if name not in named and name.rpartition(".")[0] not in whole} == set()
    assert whole <= named
