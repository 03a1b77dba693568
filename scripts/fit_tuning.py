"""Fits the tuning matrices that move requests towards the texts that should be found for them, for each encoder.

    .venv/bin/python scripts/fit_tuning.py build/requests.jsonl src/holdfast/retrieval/tunings

Sentence encoders are trained to match texts with the same meaning, but a request and the tool that serves it rarely
mean the same. For each encoder two matrices are fitted to the data of `scripts/collect_requests.py`, one for requests
and one for documents, so that a request is closer to the purpose of its own package than to that of any other. A tenth
of the packages is held out to measure the gain. The same file gives the same matrices, except for rounding.
"""

import argparse
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.retrieval.encoders import granite, minilm, universal
from holdfast.retrieval.encoders.tuning import read_tuning, write_tuning
from holdfast.retrieval.vectors import Encoder, Vectors, normalize_rows

ENCODERS = {"minilm": minilm, "granite": granite, "universal": universal}
COPIES_MAX = 3
LEFT_OUT = 10
"""One package of so many."""


class FitSettings(msgspec.Struct, frozen=True):
    """The hyperparameters. A purpose that was closer than the right one by `margin` before counts as right too and is
    not pushed away, because many packages do the same. `requests` is the number per package and round, so that no
    package counts for more."""

    rounds: int = 16
    step: float = 1e-3
    sharpness: float = 20.0
    margin: float = 0.1
    requests: int = 4
    seed: int = 0


class Package(msgspec.Struct, frozen=True):
    name: str
    purposes: tuple[str, ...]
    requests: tuple[str, ...]


class Texts(msgspec.Struct, frozen=True):
    """Unit vectors, package by package, with the number of the package of each."""

    requests: Vectors
    askers: NDArray[np.intp]
    purposes: Vectors
    servers: NDArray[np.intp]


class Fit:
    """One matrix, optimised by Adam; it starts at zero, so that it adds nothing to a vector."""

    def __init__(self, dimensions: int) -> None:
        self.added: Vectors = np.zeros((dimensions, dimensions), np.float32)
        self._mean, self._square = np.zeros_like(self.added), np.zeros_like(self.added)
        self._steps = 0

    def move(self, slopes: Vectors, step: float) -> None:
        self._steps += 1
        self._mean += 0.1 * (slopes - self._mean)
        self._square += 0.001 * (slopes * slopes - self._square)
        mean, square = self._mean / (1 - 0.9**self._steps), self._square / (1 - 0.999**self._steps)
        self.added -= step * mean / (np.sqrt(square) + 1e-8)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fit the matrices that turn requests towards what serves them.")
    parser.add_argument("requests", type=Path, help="what scripts/collect_requests.py wrote")
    parser.add_argument("into", type=Path, help="the folder of the matrices")
    parser.add_argument("--only", choices=sorted(ENCODERS), action="append", help="this encoder; all without it")
    arguments = parser.parse_args()
    try:
        packages = read(arguments.requests)
    except (OSError, ValueError) as error:
        print(f"{arguments.requests} was not written by collect_requests.py: {error}", file=sys.stderr)
        return 1
    kept = [package for package in packages if not _is_left_out(package)]
    left_out = [package for package in packages if _is_left_out(package)]
    if not kept or not left_out:
        print(f"{arguments.requests} has too few packages", file=sys.stderr)
        return 1
    arguments.into.mkdir(parents=True, exist_ok=True)
    print(f"{len(kept)} packages with {sum(len(one.requests) for one in kept)} requests, {len(left_out)} left out")
    for name in arguments.only or sorted(ENCODERS):
        encoder = ENCODERS[name].encoder()
        asked, found = fit_matrices(_encoded(kept, encoder), FitSettings())
        path = write_tuning(arguments.into / f"{name}.npy", asked.added, found.added)
        tuning = read_tuning(path)
        apart, nothing = _encoded(left_out, encoder), np.zeros_like(tuning.query_matrix)
        before, after = hits(apart, nothing, nothing), hits(apart, tuning.query_matrix, tuning.document_matrix)
        print(f"{name}, of packages left out, hit@1 hit@3: {before} before, {after} after; {path}", flush=True)
    return 0


def read(path: Path) -> list[Package]:
    """The packages by name. A request that several packages list belongs to the first, because the others are copies;
    one that more than COPIES_MAX list is dropped, because it says nothing about any of them."""
    packages = [msgspec.convert(json.loads(line), Package) for line in path.read_text().splitlines()]
    counts = Counter(request.lower() for package in packages for request in package.requests)
    known = {request for request, count in counts.items() if count > COPIES_MAX}
    kept = []
    for package in sorted(packages, key=lambda package: package.name):
        own = tuple(request for request in package.requests if request.lower() not in known)
        known.update(request.lower() for request in own)
        if own and package.purposes:
            kept.append(msgspec.structs.replace(package, requests=own))
    return kept


def fit_matrices(texts: Texts, settings: FitSettings) -> tuple[Fit, Fit]:
    """The matrix for requests and the matrix for purposes."""
    asked, found = Fit(texts.requests.shape[1]), Fit(texts.purposes.shape[1])
    chance = random.Random(settings.seed)
    requests_of, purposes_of = _by_package(texts.askers), _by_package(texts.servers)
    for _ in range(settings.rounds):
        some = [one for own in requests_of for one in chance.sample(own, min(settings.requests, len(own)))]
        requests, owners = texts.requests[some], texts.askers[some]
        purposes = texts.purposes[[chance.choice(own) for own in purposes_of]]
        asked_rows, asked_lengths = apply_matrix(requests, asked.added)
        found_rows, found_lengths = apply_matrix(purposes, found.added)
        slopes = slopes_of(settings, asked_rows @ found_rows.T, requests @ purposes.T, owners)
        asked_slopes = requests.T @ before_length(slopes @ found_rows, asked_rows, asked_lengths)
        found_slopes = purposes.T @ before_length(slopes.T @ asked_rows, found_rows, found_lengths)
        asked.move(asked_slopes, settings.step)
        found.move(found_slopes, settings.step)
    return asked, found


def hits(texts: Texts, asked: Vectors, found: Vectors) -> str:
    """How often a request finds its own package first, and among the first three."""
    purposes = texts.purposes[[own[0] for own in _by_package(texts.servers)]]
    near = apply_matrix(texts.requests, asked)[0] @ apply_matrix(purposes, found)[0].T
    first = np.argsort(-near, axis=1, kind="stable")[:, :3] == texts.askers[:, None]
    return f"{first[:, 0].mean():.3f} {first.any(axis=1).mean():.3f}"


def apply_matrix(rows: Vectors, added: Vectors) -> tuple[Vectors, Vectors]:
    """The moved rows, scaled to length 1, and their lengths before that."""
    moved = rows + rows @ added
    lengths = np.sqrt((moved * moved).sum(axis=1, keepdims=True))
    return moved / lengths, lengths


def _by_package(owners: NDArray[np.intp]) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in range(int(owners.max()) + 1)]
    for text, owner in enumerate(owners.tolist()):
        texts[owner].append(text)
    return texts


def slopes_of(settings: FitSettings, near: Vectors, near_before: Vectors, owners: NDArray[np.intp]) -> Vectors:
    """The gradient of the mean loss by each similarity; the loss is -log of the right purpose's softmax share."""
    rows = np.arange(len(owners))
    logits = settings.sharpness * near
    logits[near_before > near_before[rows, owners][:, None] + settings.margin] = -np.inf
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[rows, owners] -= 1
    # Each package counts once, however many of its requests there are.
    weights = 1 / np.bincount(owners)[owners]
    slopes: Vectors = (settings.sharpness * shares * (weights / weights.sum())[:, None]).astype(np.float32)
    return slopes


def before_length(slopes: Vectors, rows: Vectors, lengths: Vectors) -> Vectors:
    """The gradient by the rows before they were scaled to length 1."""
    along: Vectors = (slopes - (slopes * rows).sum(axis=1, keepdims=True) * rows) / lengths
    return along


def _encoded(packages: Sequence[Package], encoder: Encoder) -> Texts:
    requests = [(at, text) for at, one in enumerate(packages) for text in one.requests]
    purposes = [(at, text) for at, one in enumerate(packages) for text in one.purposes]
    return Texts(*_rows(requests, encoder), *_rows(purposes, encoder))


def _rows(texts: Sequence[tuple[int, str]], encoder: Encoder) -> tuple[Vectors, NDArray[np.intp]]:
    rows = normalize_rows(encoder.encode([text for _, text in texts])).astype(np.float32)
    return rows, np.array([owner for owner, _ in texts], np.intp)


def _is_left_out(package: Package) -> bool:
    return int.from_bytes(hashlib.sha256(package.name.encode()).digest()[:4], "big") % LEFT_OUT == 0


if __name__ == "__main__":
    sys.exit(main())
