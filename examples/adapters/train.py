"""Trains the two example adapters on the model that RadixGate serves by default, on the CPU, in a few minutes.

    python examples/adapters/train.py [NAME ...]

Each adapter is made by PEFT from its recipe below and the questions and answers in `data/NAME.jsonl`, with fixed seeds.
Prints the loss after each pass over the data, and answers before and after. Needs what `make install` installs.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from worker.model.gguf import converted
from worker.model.progress import SilentProgress
from worker.model.sources import GgufFile, cache_folder, find_model

FOLDER = Path(__file__).parent
MODEL = "smollm2-135m-instruct"
SEED = 7
BATCH_SIZE = 4


@dataclass(frozen=True)
class Recipe:
    rank: int
    targets: tuple[str, ...]
    epochs: int
    learning_rate: float
    questions: tuple[str, ...]  # to show what has been learned; not in the data


RECIPES = {
    "pirate": Recipe(
        rank=8,
        targets=("q_proj", "v_proj"),
        epochs=6,
        learning_rate=2e-3,
        questions=("What is a bicycle?", "How do I make tea?", "Tell me about cats."),
    ),
    "tagger": Recipe(
        rank=4,
        targets=("q_proj", "v_proj", "o_proj", "down_proj"),
        epochs=4,
        learning_rate=2e-3,
        questions=("The pizza was cold and tasteless.", "When does the plane land?", "I love my new headphones!"),
    ),
}


@dataclass(frozen=True)
class Example:
    token_ids: list[int]
    num_prompt: int  # of them, what the loss does not look at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)}; default: all")
    names = parser.parse_args().names or list(RECIPES)
    folder = model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name in names:
        train(name, RECIPES[name], folder, tokenizer)


def model_folder() -> Path:
    """Return the folder of the model that workers serve by default."""
    source = find_model(MODEL)
    if not isinstance(source, GgufFile):
        raise SystemExit(f"{MODEL} is expected to come as a GGUF file")
    return converted(source, cache_folder(), SilentProgress()).path


def train(name: str, recipe: Recipe, folder: Path, tokenizer: Any) -> None:
    """Train one adapter and write it to its folder here."""
    print(f"== {name}", flush=True)
    torch.manual_seed(SEED)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    before = answers(base, tokenizer, recipe.questions)
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=2 * recipe.rank,
        target_modules=list(recipe.targets),
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, config)
    started = time.monotonic()
    _fit(model, [_example(line, tokenizer) for line in _lines(name)], recipe)
    print(f"trained in {time.monotonic() - started:.0f} s")
    _save(model, FOLDER / name)
    model.eval()
    for question, old, new in zip(recipe.questions, before, answers(model, tokenizer, recipe.questions), strict=True):
        print(f"\n> {question}\n  before: {old}\n  after:  {new}")
    print()


def answers(model: Any, tokenizer: Any, questions: Sequence[str]) -> list[str]:
    """Return the greedy answers of a model."""
    told = []
    for question in questions:
        prompt = torch.tensor([_prompt(question, tokenizer)])
        everything = torch.ones_like(prompt)
        out = model.generate(input_ids=prompt, attention_mask=everything, do_sample=False, max_new_tokens=48)
        told.append(tokenizer.decode(out[0, prompt.shape[1] :], skip_special_tokens=True).strip())
    return told


def _lines(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (FOLDER / "data" / f"{name}.jsonl").read_text().splitlines()]


def _prompt(question: str, tokenizer: Any) -> list[int]:
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    token_ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return token_ids


def _example(line: dict[str, str], tokenizer: Any) -> Example:
    prompt = _prompt(line["user"], tokenizer)
    answer = tokenizer(line["assistant"] + "<|im_end|>", add_special_tokens=False)["input_ids"]
    return Example([*prompt, *answer], len(prompt))


def _fit(model: PeftModel, examples: list[Example], recipe: Recipe) -> None:
    order = random.Random(SEED)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.0)
    steps = recipe.epochs * -(-len(examples) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=steps, pct_start=0.1)
    model.train()
    for epoch in range(recipe.epochs):
        order.shuffle(examples)
        losses = []
        for start in range(0, len(examples), BATCH_SIZE):
            loss = model(**_batch(examples[start : start + BATCH_SIZE])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        print(f"pass {epoch + 1} of {recipe.epochs}: loss {sum(losses) / len(losses):.3f}", flush=True)


def _batch(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    length = max(len(example.token_ids) for example in examples)
    token_ids = torch.zeros(len(examples), length, dtype=torch.long)
    mask = torch.zeros_like(token_ids)
    labels = torch.full_like(token_ids, -100)  # what the loss leaves out
    for row, example in enumerate(examples):
        end = len(example.token_ids)
        token_ids[row, :end] = torch.tensor(example.token_ids)
        mask[row, :end] = 1
        labels[row, example.num_prompt : end] = token_ids[row, example.num_prompt : end]
    return {"input_ids": token_ids, "attention_mask": mask, "labels": labels}


def _save(model: PeftModel, folder: Path) -> None:
    """Write the adapter with its weights in bfloat16: half the bytes, and nobody hears the difference."""
    model.save_pretrained(str(folder))
    (folder / "README.md").unlink(missing_ok=True)  # a template of PEFT's
    config = folder / "adapter_config.json"
    # PEFT puts the folder of this machine there.
    told = json.loads(config.read_text()) | {"base_model_name_or_path": MODEL}
    config.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n")
    file = folder / "adapter_model.safetensors"
    save_file({name: weight.bfloat16() for name, weight in load_file(file).items()}, file, {"format": "pt"})
    print(f"{file.stat().st_size:,} bytes in {file.name}")


if __name__ == "__main__":
    main()
