"""BM25 inside the process, from an index that is built once and memory-mapped.

Scores are Lucene's (Robertson & Zaragoza 2009, without the constant factor k1 + 1):
`ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 * (1 - b + b * length / mean_length))`,
with Anserini's k1 = 0.9 and b = 0.4, which the BM25 baseline of Search-R1 uses too.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forage.agent.retrieval.library import bm25s
from forage.agent.retrieval.passages import PassageStore, write_passages
from forage.agent.retrieval.words import query_words, word_keys, words_of
from forage.agent.types import Passage
from forage.errors import UserError

FORMAT = 1
"""Of the files and of the words in them: an index of another format is built anew."""
_FACTS = "index.json"


def build_index(
    corpus: Sequence[Passage], folder: str | Path, *, k1: float = 0.9, b: float = 0.4
) -> Path:
    """The index of `corpus` below `folder`, built unless it is there already.

    Its own folder is named by a hash of the content, and appears whole or not at all, so that
    any number of processes may build or use it at once.

    Returns:
        The folder of the index, for `BM25Index.open`.

    Raises:
        UserError: if the corpus is empty, or holds no word at all.
    """
    if not corpus:
        raise UserError("the corpus is empty: there is nothing to search; give one with passages")
    root = Path(folder)
    target = root / f"bm25-{_content_hash(corpus, k1, b)}"
    if not target.exists():
        root.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{target.name}-", suffix=".tmp", dir=root))
        try:
            _write(draft, corpus, k1, b)
            _publish(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return target


def _content_hash(corpus: Sequence[Passage], k1: float, b: float) -> str:
    digest = blake2b(f"{FORMAT} {k1} {b}".encode(), digest_size=10)
    for passage in corpus:
        for text in (passage.title, passage.text):
            encoded = text.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def _publish(draft: Path, target: Path) -> None:
    draft.chmod(0o755)
    try:
        draft.rename(target)
    except OSError:
        # Somebody else built the same index first.
        if not target.exists():
            raise


def _write(folder: Path, corpus: Sequence[Passage], k1: float, b: float) -> None:
    vocabulary: dict[str, int] = {}
    documents = [
        [vocabulary.setdefault(word, len(vocabulary)) for word in words_of(f"{p.title} {p.text}")]
        for p in corpus
    ]
    if not vocabulary:
        raise UserError(f"none of the {len(corpus)} passages of the corpus holds a word")
    scorer = bm25s.BM25(method="lucene", k1=k1, b=b)
    scorer.index((documents, vocabulary), create_empty_token=False, show_progress=False)
    scorer.vocab_dict = {}  # Its place is taken by `keys` and `columns`, which can be mapped.
    scorer.save(folder, show_progress=False)
    keys = word_keys(list(vocabulary))
    order = np.argsort(keys, kind="stable")
    np.save(folder / "keys.npy", keys[order])
    np.save(folder / "columns.npy", order.astype(np.int32))
    write_passages(folder, corpus)
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    facts = {"format": FORMAT, "passages": len(corpus), "words": len(keys), "sizes": sizes}
    (folder / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


class BM25Index:
    """An open index. Searching reads mapped pages only: cheap to open, shared, thread-safe."""

    in_process = True

    def __init__(
        self,
        scorer: Any,
        keys: NDArray[np.uint64],
        columns: NDArray[np.int32],
        passages: PassageStore,
    ) -> None:
        """Use `open`."""
        self._scorer = scorer
        self._keys = keys
        self._columns = columns
        self._passages = passages

    @classmethod
    def open(cls, folder: str | Path) -> BM25Index:
        """Map the index that `build_index` made.

        Raises:
            UserError: if `folder` holds no index, a damaged one, or one of another format.
        """
        folder = Path(folder)
        _check_facts(folder)
        scorer = bm25s.BM25.load(folder, mmap=True, load_vocab=False, show_progress=False)
        return cls(scorer, _map(folder, "keys"), _map(folder, "columns"), PassageStore(folder))

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._passages)

    def scores(self, query: str) -> NDArray[np.float32]:
        """The score of every passage, float32 [passages]; 0 where no word is shared."""
        keys = word_keys(query_words(query))
        at = np.searchsorted(self._keys, keys)
        known = at < len(self._keys)
        known[known] = self._keys[at[known]] == keys[known]
        scores: NDArray[np.float32] = self._scorer.get_scores_from_ids(self._columns[at[known]])
        return scores

    def search(self, query: str, k: int) -> list[Passage]:
        """At most `k` passages that share a word with the query, best first.

        Equal scores keep the order of the corpus.
        """
        scores = self.scores(query)
        matches = np.flatnonzero(scores)
        if len(matches) > k > 0:
            cutoff = np.partition(scores[matches], -k)[-k]
            matches = matches[scores[matches] >= cutoff]
        best = matches[np.argsort(-scores[matches], kind="stable")][:k]
        return [self._passages[int(position)] for position in best]


def _map(folder: Path, name: str) -> NDArray[Any]:
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))


def _check_facts(folder: Path) -> None:
    try:
        facts: dict[str, Any] = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        sizes = {name: os.path.getsize(folder / name) for name in facts["sizes"]}
    except FileNotFoundError as error:
        raise UserError(f"no BM25 index in {str(folder)!r} ({error.filename} is missing)") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"can't read the BM25 index in {str(folder)!r}: {error}") from None
    if facts["format"] != FORMAT:
        raise UserError(
            f"the BM25 index in {str(folder)!r} has format {facts['format']}, this version reads "
            f"{FORMAT}; delete the folder to build it again"
        )
    if sizes != facts["sizes"]:
        raise UserError(f"the BM25 index in {str(folder)!r} is damaged; delete the folder")
