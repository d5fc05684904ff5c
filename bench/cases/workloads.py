"""The trainable tensors of well-known models, shapes only, and synthetic sets of tensors.

An optimizer step depends on a model only through its shapes. Each workload is one short function;
`tests/test_bench/cases/test_workloads.py` compares the totals with the published ones. Sources of the shapes: resnet50:
torchvision `resnet.py`; bert-base: google-research/bert README; gpt2: openai/gpt-2 `src/model.py`; vit-b16:
google-research/vision_transformer `vit_jax/configs/models.py`; transformer-big: Vaswani et al. (2017), table 3, tied
vocabulary of 32768; dlrm-small: mlcommons/algorithmic-efficiency `criteo1tb/workload.py`; llama-7b: meta-llama/llama
`llama/model.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod

from bench.errors import UnknownNameError

SPREAD = 0.1
"""Default scale of initial values."""


@dataclass(frozen=True)
class Tensor:
    """One float32 parameter.

    Attributes:
      name: unique within the workload.
      shape: sizes of its dims.
      model_dim: the dim that Megatron-style tensor parallelism splits over the axis `model` (the outputs of a
        column-parallel kernel, the inputs of a row-parallel one, the rows of an embedding); None if every device holds
        the whole tensor (norms, row-parallel biases).
      table: whether a batch looks up only single rows of it, so that its gradient may be sparse. A table that is tied
        to the output layer has a dense gradient.
      spread: initial values are uniform within half of it on both sides of 0.
    """

    name: str
    shape: tuple[int, ...]
    model_dim: int | None = None
    table: bool = False
    spread: float = SPREAD

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Architecture:
    """A transformer, as far as its activations depend on it.

    Attributes: layers; hidden: width of the residual stream; heads; sequence: tokens that it was trained with;
      vocabulary; batch: examples of a step it was trained with, None if unknown.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    batch: int | None = None


@dataclass(frozen=True)
class Workload:
    """Attributes: name; summary; tensors; architecture, if it is a transformer."""

    name: str
    summary: str
    tensors: tuple[Tensor, ...]
    architecture: Architecture | None = None

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)


def _dense(name: str, inputs: int, outputs: int, split: str) -> Iterator[Tensor]:
    """Return a kernel (inputs, outputs) with bias; `split` is "column" (outputs), "row" (inputs) or "whole"."""
    dims: dict[str, tuple[int | None, int | None]] = {
        "column": (1, 0),
        "row": (0, None),
        "whole": (None, None),
    }
    kernel, bias = dims[split]
    yield Tensor(f"{name}/kernel", (inputs, outputs), kernel)
    yield Tensor(f"{name}/bias", (outputs,), bias)


def _norm(name: str, width: int) -> Iterator[Tensor]:
    yield Tensor(f"{name}/scale", (width,))
    yield Tensor(f"{name}/bias", (width,))


def _gpt_block(name: str, width: int) -> Iterator[Tensor]:
    """Return a pre-norm block with fused query, key and value: 12 tensors."""
    yield from _norm(f"{name}/ln_1", width)
    yield from _dense(f"{name}/attention/qkv", width, 3 * width, "column")
    yield from _dense(f"{name}/attention/out", width, width, "row")
    yield from _norm(f"{name}/ln_2", width)
    yield from _dense(f"{name}/mlp/in", width, 4 * width, "column")
    yield from _dense(f"{name}/mlp/out", 4 * width, width, "row")


def _gpt2() -> Iterator[Tensor]:
    yield Tensor("wte", (50257, 768), 0)
    yield Tensor("wpe", (1024, 768))
    for i in range(12):
        yield from _gpt_block(f"h{i}", 768)
    yield from _norm("ln_f", 768)


def _gpt2_layer() -> Iterator[Tensor]:
    yield from _gpt_block("h0", 768)


def _bert_block(name: str, width: int) -> Iterator[Tensor]:
    for part in ("query", "key", "value"):
        yield from _dense(f"{name}/attention/{part}", width, width, "column")
    yield from _dense(f"{name}/attention/out", width, width, "row")
    yield from _norm(f"{name}/attention/norm", width)
    yield from _dense(f"{name}/mlp/in", width, 4 * width, "column")
    yield from _dense(f"{name}/mlp/out", 4 * width, width, "row")
    yield from _norm(f"{name}/mlp/norm", width)


def _bert_base() -> Iterator[Tensor]:
    yield Tensor("embeddings/word", (30522, 768), 0, table=True)
    yield Tensor("embeddings/position", (512, 768))
    yield Tensor("embeddings/segment", (2, 768))
    yield from _norm("embeddings/norm", 768)
    for i in range(12):
        yield from _bert_block(f"layer{i}", 768)
    yield from _dense("pooler", 768, 768, "whole")


def _vit_b16() -> Iterator[Tensor]:
    yield Tensor("patches/kernel", (16, 16, 3, 768), 3)
    yield Tensor("patches/bias", (768,), 0)
    yield Tensor("cls", (1, 1, 768))
    yield Tensor("position", (1, 197, 768))
    for i in range(12):
        yield from _gpt_block(f"block{i}", 768)
    yield from _norm("norm", 768)
    yield from _dense("head", 768, 1000, "column")


def _conv(name: str, size: int, inputs: int, outputs: int) -> Iterator[Tensor]:
    """Return a convolution without bias and the batch normalization of its outputs."""
    yield Tensor(f"{name}/kernel", (size, size, inputs, outputs), 3)
    yield Tensor(f"{name}/norm/scale", (outputs,), 0)
    yield Tensor(f"{name}/norm/bias", (outputs,), 0)


def _resnet50() -> Iterator[Tensor]:
    yield from _conv("stem", 7, 3, 64)
    inputs = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            name = f"stage{stage}/block{block}"
            yield from _conv(f"{name}/conv1", 1, inputs, width)
            yield from _conv(f"{name}/conv2", 3, width, width)
            yield from _conv(f"{name}/conv3", 1, width, 4 * width)
            if block == 0:
                yield from _conv(f"{name}/shortcut", 1, inputs, 4 * width)
            inputs = 4 * width
    yield from _dense("fc", 2048, 1000, "column")


def _attention(name: str, width: int) -> Iterator[Tensor]:
    for part in ("query", "key", "value"):
        yield Tensor(f"{name}/{part}", (width, width), 1)
    yield Tensor(f"{name}/out", (width, width), 0)


def _transformer_big() -> Iterator[Tensor]:
    width = 1024
    yield Tensor("embedding", (32768, width), 0)
    for side, attentions in (("encoder", 1), ("decoder", 2)):
        for i in range(6):
            for a in range(attentions):
                yield from _attention(f"{side}{i}/attention{a}", width)
                yield from _norm(f"{side}{i}/norm{a}", width)
            yield from _dense(f"{side}{i}/mlp/in", width, 4096, "column")
            yield from _dense(f"{side}{i}/mlp/out", 4096, width, "row")
            yield from _norm(f"{side}{i}/mlp/norm", width)
        yield from _norm(f"{side}/norm", width)


def _dlrm_small() -> Iterator[Tensor]:
    yield Tensor("table", (4194304, 128), 0, table=True)
    for tower, widths in (("bottom", (13, 512, 256, 128)), ("top", (506, 1024, 1024, 512, 256, 1))):
        for i, (inputs, outputs) in enumerate(pairwise(widths)):
            yield from _dense(f"{tower}{i}", inputs, outputs, "whole")


def _llama_layer(name: str = "layer0") -> Iterator[Tensor]:
    yield from _attention(f"{name}/attention", 4096)
    yield Tensor(f"{name}/mlp/gate", (4096, 11008), 1)
    yield Tensor(f"{name}/mlp/up", (4096, 11008), 1)
    yield Tensor(f"{name}/mlp/down", (11008, 4096), 0)
    yield Tensor(f"{name}/attention_norm", (4096,))
    yield Tensor(f"{name}/mlp_norm", (4096,))


def _llama_7b() -> Iterator[Tensor]:
    yield Tensor("embedding", (32000, 4096), 0, table=True)
    for i in range(32):
        yield from _llama_layer(f"layer{i}")
    yield Tensor("norm", (4096,))
    yield Tensor("output", (4096, 32000), 1)


def _one16m() -> Iterator[Tensor]:
    yield Tensor("w", (4096, 4096), 1)


def _many_small() -> Iterator[Tensor]:
    for i in range(1000):
        yield Tensor(f"w{i}", (64,), 0)


def _embedding() -> Iterator[Tensor]:
    yield Tensor("table", (131072, 64), 0, table=True)
    yield from _dense("tower0", 64, 256, "column")
    yield from _dense("tower1", 256, 1, "row")


def _embedding_1m() -> Iterator[Tensor]:
    yield Tensor("table", (1_000_000, 64), 0, table=True)


def _ragged() -> Iterator[Tensor]:
    for i, (rows, columns) in enumerate(pairwise((997, 1009, 1013, 1019, 1021, 1031))):
        yield Tensor(f"w{i}", (rows, columns), 1)
        yield Tensor(f"b{i}", (columns,), 0)


def _huge_and_tiny() -> Iterator[Tensor]:
    yield Tensor("huge", (4096, 4096), 1)
    for i in range(1000):
        yield Tensor(f"tiny{i}", (64,), 0)


_TABLE: tuple[tuple[str, str, Callable[[], Iterator[Tensor]]], ...] = (
    ("gpt2", "GPT-2 small, tied head", _gpt2),
    ("gpt2:layer", "one of the 12 blocks of GPT-2 small", _gpt2_layer),
    ("resnet50", "ResNet-50, convolutions without bias", _resnet50),
    ("bert-base", "BERT base, uncased, with pooler", _bert_base),
    ("vit-b16", "ViT-B/16, 1000 classes", _vit_b16),
    ("transformer-big", "Transformer (big), tied vocabulary of 32768", _transformer_big),
    ("dlrm-small", "DLRM small of AlgoPerf, one large table", _dlrm_small),
    ("llama-7b", "LLaMA 7B", _llama_7b),
    ("llama-7b:layer", "one of the 32 layers of LLaMA 7B", _llama_layer),
    ("one16m", "synthetic: one tensor of 16M elements, measures bandwidth", _one16m),
    ("many-small", "synthetic: 1,000 tensors of 64 elements, measures dispatch", _many_small),
    ("huge-and-tiny", "synthetic: one16m and many-small together", _huge_and_tiny),
    ("ragged", "synthetic: sizes that are primes, which no mesh divides", _ragged),
    ("embedding", "synthetic: a table of 131,072 rows and a small tower, for sparse gradients", _embedding),
    ("embedding:1m", "synthetic: a table of 1,000,000 rows alone, for sparse gradients", _embedding_1m),
)

ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": Architecture(12, 768, 12, 1024, 50257, 512),
    "gpt2:layer": Architecture(1, 768, 12, 1024, 0, 512),
    "bert-base": Architecture(12, 768, 12, 512, 30522, 256),
    "vit-b16": Architecture(12, 768, 12, 197, 1000, 4096),
    "transformer-big": Architecture(12, 1024, 16, 256, 32768),
    "llama-7b": Architecture(32, 4096, 32, 2048, 32000, 2048),
    "llama-7b:layer": Architecture(1, 4096, 32, 2048, 0, 2048),
}
"""Batches: Radford et al. 2019 (section 2.3), Devlin et al. 2018 (A.2), Dosovitskiy et al. 2020 (4.1), Touvron et al.
2023 (table 2: 4 million tokens).
"""

NAMES: tuple[str, ...] = tuple(name for name, _, _ in _TABLE)


@cache
def workload(name: str) -> Workload:
    """Return the workload of that name. Raises: UnknownNameError."""
    for known, summary, tensors in _TABLE:
        if known == name:
            return Workload(known, summary, tuple(tensors()), ARCHITECTURES.get(known))
    raise UnknownNameError(f"no workload is called {name!r}; there are: {', '.join(NAMES)}")


def summary(name: str) -> str:
    """Describe a workload in a line; empty for a user's model."""
    return workload(name).summary if name in NAMES else ""
