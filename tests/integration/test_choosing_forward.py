"""How forward passes run is chosen once, when a model is loaded: by what is asked for, what there is, and what fits.

The worker serves every model without native kernels, too: then everything is computed with torch.
"""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.fakes.tiny_tokenizer import tiny_tokenizer_json
from tests.integration.flat_batches import generate_flat, generate_plain
from tests.integration.test_model_loading import save
from tests.integration.tiny_models import tiny, tiny_model
from tests.native_kernels import RUNNABLE, require_kernels
from tests.tools import require_tool
from tests.unit.worker.native.conftest import source
from worker.attention.cascade_backend import CascadeBackend
from worker.attention.native_backend import NativeBackend
from worker.attention.torch_backend import TorchBackend
from worker.config import ModelConfig
from worker.errors import UnsupportedModelError, WorkerStartError
from worker.model.choosing import forward_model
from worker.model.executor import ForwardModel
from worker.model.loading import LoadedModel, load_model
from worker.model.native_forward import NativeModel
from worker.model.probe import probe
from worker.model.progress import SilentProgress
from worker.model.transformers_forward import TransformersModel
from worker.native import build, library

torch.set_num_threads(1)
VOCAB_SIZE = Tokenizer.from_buffer(tiny_tokenizer_json()).get_vocab_size()
PROMPT = [5, 9, 33, 70, 4]
FELL_BACK = "forward passes don't run in native code"
NATIVE = "forward passes run in native code"
with_kernels = pytest.mark.skipif(not RUNNABLE, reason="there are no kernels for this processor")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: save(root / family, tiny_model(family, vocab_size=VOCAB_SIZE)) for family in ("llama", "gemma2")}


@pytest.fixture
def kernels() -> None:
    require_kernels()


@pytest.fixture
def no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installation on a machine without a compiler."""
    monkeypatch.setattr(build, "LIBRARIES", tmp_path / "nothing")
    library.kernels.cache_clear()
    yield
    library.kernels.cache_clear()


@pytest.fixture
def no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A processor without products of bfloat16, as far as native kernels are concerned."""
    plain = tuple(variant for variant in RUNNABLE if variant.name != "avx512-bf16")
    if not plain:
        pytest.skip("there are no other kernels for this processor")
    require_kernels(plain[0])
    monkeypatch.setattr(library, "variants", lambda: plain)
    library.kernels.cache_clear()
    yield
    library.kernels.cache_clear()


def load(folder: Path, **settings: object) -> LoadedModel:
    return load_model(
        ModelConfig(model=str(folder), threads=1, device="cpu", **{"dtype": "fp32", **settings}),  # type: ignore[arg-type]
        SilentProgress(),
    )


def backend(model: ForwardModel) -> object:
    assert isinstance(model, TransformersModel)
    return model.backend


def answers(loaded: LoadedModel) -> list[int]:
    [output] = generate_flat(loaded.executor(loaded.pool(64)), [PROMPT], 8, chunk_tokens=3, num_slots=64)
    return output


def plain_answers(folder: Path) -> list[int]:
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    plain.generation_config.eos_token_id = None
    return generate_plain(plain, PROMPT, 8)


@with_kernels
@pytest.mark.parametrize("forward", ["auto", "native"])
def test_a_plain_decoder_runs_in_native_code(kernels: None, folders: dict[str, Path], forward: str) -> None:
    with capture_logs() as logs:
        loaded = load(folders["llama"], forward=forward)
    assert isinstance(loaded.model, NativeModel)
    assert answers(loaded) == plain_answers(folders["llama"])
    assert NATIVE in [each["event"] for each in logs]
    assert FELL_BACK not in [each["event"] for each in logs]


@with_kernels
def test_another_family_runs_as_transformers_defines_it_with_native_attention(
    kernels: None, folders: dict[str, Path]
) -> None:
    with capture_logs() as logs:
        loaded = load(folders["gemma2"])
    assert isinstance(backend(loaded.model), NativeBackend)
    assert answers(loaded) == plain_answers(folders["gemma2"])
    [said] = [each for each in logs if each["event"] == FELL_BACK]
    assert said["reason"].startswith("gemma2 is none of granite, llama")


@with_kernels
def test_native_code_that_is_demanded_for_another_family_is_refused_by_name(
    kernels: None, folders: dict[str, Path]
) -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"^worker.model.forward: native code cannot run it: gemma2 is none"
    ):
        load(folders["gemma2"], forward="native")


@pytest.mark.parametrize(
    ("attention", "expected"), [("torch", TorchBackend), ("cascade", CascadeBackend)], ids=["torch", "cascade"]
)
def test_a_backend_that_is_named_computes_attention(
    folders: dict[str, Path], attention: str, expected: type[object]
) -> None:
    loaded = load(folders["llama"], attention=attention)
    assert type(backend(loaded.model)) is expected
    assert answers(loaded) == plain_answers(folders["llama"])
    with pytest.raises(ValueError, match=rf"attends in native code, not by attention '{attention}'$"):
        load(folders["llama"], attention=attention, forward="native")


@with_kernels
def test_transformers_that_is_demanded_is_taken_with_native_attention(kernels: None, folders: dict[str, Path]) -> None:
    loaded = load(folders["llama"], forward="transformers")
    assert isinstance(backend(loaded.model), NativeBackend)
    assert answers(loaded) == plain_answers(folders["llama"])


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_without_kernels_everything_is_computed_with_torch(
    no_kernels: None, folders: dict[str, Path], family: str
) -> None:
    with capture_logs() as logs:
        loaded = load(folders[family])
    assert isinstance(backend(loaded.model), CascadeBackend)
    assert answers(loaded) == plain_answers(folders[family])
    assert [each["reason"] for each in logs if each["event"] == FELL_BACK]


@with_kernels
def test_without_kernels_what_demands_them_is_refused_with_what_to_do(
    no_kernels: None, folders: dict[str, Path]
) -> None:
    what_to_do = "not compiled from these sources: with a C\\+\\+ compiler, python -m worker.native.build does"
    with pytest.raises(UnsupportedModelError, match=f"^worker.model.forward: .*: {what_to_do}"):
        load(folders["llama"], forward="native")
    there_is_not = f"^worker.model.attention: attention backend 'native' is not available: {what_to_do}"
    with pytest.raises(WorkerStartError, match=there_is_not):
        load(folders["llama"], attention="native")


@with_kernels
def test_bfloat16_is_computed_in_native_code_where_the_processor_has_it(folders: dict[str, Path]) -> None:
    if RUNNABLE[0].name != "avx512-bf16":
        pytest.skip("this processor has no bfloat16 arithmetic")
    require_kernels(RUNNABLE[0])
    assert isinstance(load(folders["llama"], dtype="bf16").model, NativeModel)


@with_kernels
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_bfloat16_is_computed_with_torch_where_native_code_has_none(
    no_bfloat16: None, folders: dict[str, Path], family: str
) -> None:
    with capture_logs() as logs:
        loaded = load(folders[family], dtype="bf16")
    assert isinstance(backend(loaded.model), CascadeBackend)
    assert len(answers(loaded)) == 8
    [said] = [each for each in logs if each["event"] == "attention runs in torch"]
    assert "don't compute in torch.bfloat16" in said["reason"]
    with pytest.raises(UnsupportedModelError, match=r"^worker.model.attention: .* don't compute in torch.bfloat16$"):
        load(folders[family], dtype="bf16", attention="native")
    assert isinstance(backend(load(folders["gemma2"]).model), NativeBackend), "float32 they have"


def louder_gates(model: Any) -> None:
    """A layer that does something which its modules don't show."""

    def louder(module: nn.Module, arguments: object, out: Tensor) -> Tensor:
        return out * 1.5

    model.model.layers[1].mlp.register_forward_hook(louder)


def own_rotation(model: Any) -> None:
    """Frequencies that the definition takes from somewhere else than native code."""
    rotary = model.model.rotary_emb
    true = rotary.forward
    rotary.forward = lambda x, position_ids: true(x, 2 * position_ids)


@with_kernels
@pytest.mark.parametrize("change", [louder_gates, own_rotation])
def test_a_decoder_that_computes_something_else_is_noticed_and_not_used(
    kernels: None, change: Callable[[PreTrainedModel], None]
) -> None:
    model = tiny("llama")
    change(model)
    with capture_logs() as logs:
        chosen = forward_model(model, probe(model), ModelConfig())
    assert isinstance(chosen, TransformersModel)
    [said] = [each for each in logs if each["event"] == FELL_BACK]
    assert "logits differ from a plain forward pass" in said["reason"]

    model = tiny("llama")
    change(model)
    with pytest.raises(
        UnsupportedModelError, match=r"native code cannot run it: llama: .* differ from a plain forward"
    ):
        forward_model(model, probe(model), ModelConfig(forward="native"))


@with_kernels
def test_what_transformers_built_is_gone_when_a_model_is_loaded(kernels: None, folders: dict[str, Path]) -> None:
    def models() -> set[int]:
        gc.collect()
        return {id(each) for each in gc.get_objects() if issubclass(type(each), PreTrainedModel)}

    before = models()
    loaded = load(folders["llama"])
    assert models() <= before
    assert isinstance(loaded.model, NativeModel)
    loaded = load(folders["llama"], forward="transformers")
    assert models() - before, "this one needs it"


@with_kernels
def test_weights_that_native_code_finds_no_memory_for_are_computed_with_by_torch(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiles = require_tool("g++", "install it, for example with `apt-get install g++`")
    monkeypatch.setenv("CXX", compiles)
    says = {"int rg_has_format(int)": "1", "int rg_panel()": "32", "void* rg_attention_create()": "(void*)1"}
    others = [name for name, _, _ in library._SIGNATURES if not any(name in said for said in says)]
    sources = tmp_path / "src"
    sources.mkdir()
    rest = "".join(f'extern "C" {name} {{ return {what}; }}\n' for name, what in says.items())
    (sources / "api.cpp").write_text(source(functions=others, more=rest))
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "LIBRARIES", tmp_path / "lib")
    library.kernels.cache_clear()
    try:
        build.build_all()
        with capture_logs() as logs:
            loaded = load(folders["llama"])
        with pytest.raises(UnsupportedModelError, match="native code cannot run it: no memory for weights"):
            load(folders["llama"], forward="native")
    finally:
        library.kernels.cache_clear()
    assert isinstance(loaded.model, TransformersModel)
    [said] = [each for each in logs if each["event"] == FELL_BACK]
    assert said["reason"].startswith("no memory for weights")
