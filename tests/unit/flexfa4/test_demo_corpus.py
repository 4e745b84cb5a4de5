"""Documents are packed without loss, and no target crosses from one document to the next."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexfa4.demo import corpus
from flexfa4.errors import ArgumentError

documents = st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=8)


@given(documents, st.integers(1, 4))
def test_packing_keeps_every_byte_its_document_and_what_follows_in_it(
    texts: list[bytes], length: int
) -> None:
    stream = b"".join(texts)
    owner = [i for i, text in enumerate(texts) for _ in text]
    count = (len(stream) - 1) // length
    packed = corpus.pack(iter(texts), count, length)
    used = count * length
    assert packed.tokens.shape == (count, length)
    assert packed.tokens.flatten().tolist() == list(stream[:used])
    assert packed.documents.flatten().tolist() == owner[:used]
    expected = [
        stream[i + 1] if owner[i + 1] == owner[i] else corpus.NO_TARGET for i in range(used)
    ]
    assert packed.targets.flatten().tolist() == expected


def test_too_little_text_is_refused_with_what_there_is() -> None:
    with pytest.raises(ArgumentError, match="at most the 5 bytes"):
        corpus.pack([b"abc", b"de"], 1, 5)


def test_only_as_many_documents_as_needed_are_read() -> None:
    texts = iter([b"abc", b"def", b"never read"])
    corpus.pack(texts, 1, 5)
    assert next(texts) == b"never read"


def test_test_folders_empty_and_large_files_are_left_out_and_the_order_is_fixed(
    tmp_path: Path,
) -> None:
    sizes = {"b.py": 5, "a/x.py": 5, "test/t.py": 5, "a/tests/t.py": 5, "empty.py": 0, "c.txt": 5}
    sizes["large.py"] = corpus.LARGEST_FILE + 1
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    found = [path.relative_to(tmp_path).as_posix() for path in corpus.source_files(tmp_path)]
    assert found == ["b.py", "a/x.py"]
    assert tmp_path / "large.py" in set(corpus.source_files(tmp_path, largest=None))


def test_the_standard_library_gives_the_same_sequences_each_time() -> None:
    first, second = corpus.load(40, 500), corpus.load(40, 500)
    assert torch.equal(first.tokens, second.tokens)
    assert b"import" in bytes(first.tokens.flatten().tolist())
    assert first.documents.max() > 0  # documents meet within the first sequences
