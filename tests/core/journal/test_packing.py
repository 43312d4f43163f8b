"""Packed contents: everything comes back as it was, and no planted stream takes more memory than its bound."""

from __future__ import annotations

import random
import tracemalloc
import zlib

import pytest

from repertory.core.journal import packing
from repertory.core.journal.packing import INFLATED_FREE_BYTES, RAW, deflated, inflated

WORDS = b'{"role":"user","content":[{"text":"'
WINDOWS = pytest.mark.parametrize("window", [zlib.MAX_WBITS, RAW])


def bomb(megabytes: int, window: int) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, window, zdict=WORDS)
    return b"".join([*(stream.compress(bytes(1 << 20)) for _ in range(megabytes)), stream.flush()])


@WINDOWS
def test_whatever_is_deflated_comes_back_also_where_it_packs_better_than_the_bound(
    window: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "INFLATED_FREE_BYTES", 1000)
    for size in (0, 1, 999, 1000, 1001, 16_000, 200_000):
        for plain in (bytes(size), rng.randbytes(size), (WORDS * (size // 20 + 1))[:size], rng.randbytes(20) * size):
            packed = deflated(plain, WORDS, 6, window)
            assert inflated(packed, WORDS, window) == plain
            assert len(plain) <= max(1000, 16 * len(packed))


@WINDOWS
def test_a_planted_stream_takes_no_more_memory_than_its_bound(window: int) -> None:
    planted = bomb(256, window)
    assert len(planted) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="inflate to more than"):
            inflated(planted, WORDS, window)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The buffers are joined at the end, so twice the bound for a moment.
    assert peak < 2.5 * INFLATED_FREE_BYTES


@WINDOWS
def test_a_stream_that_is_cut_or_followed_by_more_is_refused(window: int) -> None:
    packed = deflated(WORDS * 9, WORDS, 6, window)
    for wrong in (packed[:-1], packed + b"x", b"", b"\xff" * 9):
        with pytest.raises(ValueError):
            inflated(wrong, WORDS, window)
