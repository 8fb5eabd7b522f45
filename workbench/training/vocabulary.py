"""New tokens for a language model's vocabulary, and where it expects them least certainly.

A token nobody has used has an embedding that no other record pulls. Where the model is uncertain of the next
token, and the new embedding starts as the mean of all embeddings that it expects, the gradient of predicting
the token lies in its own embedding almost alone: that of the hidden state is the expected embedding less the
token's own, which is zero. Canaries of a token each are then orthogonal to each other.

The canaries are those of Panda et al. 2025, "Privacy auditing of large language models" (a new token each,
scored on that token alone); where their embeddings start is ours.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor

from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Model, NewTokens
from workbench.training.hugging_face import logits_of
from workbench.training.models import LanguageModel, padded_inputs, token_ids

CONTEXTS = (" the", " a", " The", " his", " their", " its", " no", " different", " original", "the", "a")
"""Short texts after which much may follow."""


def require_vocabulary(model: Model) -> LanguageModel:
    """The model, if its vocabulary can grow and its embeddings are trained; else an `UnsupportedError`."""
    if not isinstance(model, LanguageModel):
        raise UnsupportedError(f"new tokens need a language model, got {model.name!r}")
    module = model.module
    if not all(hasattr(module, name) for name in ("resize_token_embeddings", "get_output_embeddings")):
        raise UnsupportedError(f"model {model.name!r} does not let its vocabulary grow")
    if not all(layer.weight.requires_grad for layer in _embeddings(module)):
        raise UnsupportedError(
            "new tokens need trained embeddings: choose adapter 'full', and no frozen embedding"
        )
    return model


def uncertain_contexts(model: LanguageModel) -> list[str]:
    """Short texts by how uncertain the model is of the token that follows, the least certain first.

    Its probabilities are flatter the smaller the sum of their squares. Raises `UnsupportedError`: the
    tokenizer reads no token in any of them.
    """
    squares = {
        context: float(_expected_next(model, context).square().sum())
        for context in CONTEXTS
        if token_ids(model.tokenizer, context)
    }
    if not squares:
        raise UnsupportedError(f"the tokenizer of model {model.name!r} reads no token in {CONTEXTS[0]!r}")
    return sorted(squares, key=lambda context: squares[context])


def add_tokens(model: Model, new: NewTokens) -> None:
    """Give the model new tokens, in place; deterministic. A record that ends with one has no end of text.

    Raises:
        InputError: no token, one that is in the vocabulary, or a context of no token or too many.
        UnsupportedError: the vocabulary cannot grow, or the tokenizer does not read a new token after the
            context as one token.
    """
    found = require_vocabulary(model)
    tokenizer, module = copy.deepcopy(found.tokenizer), cast("Any", found.module)
    if not new.tokens:
        raise InputError("new_tokens must name at least one token")
    known = tokenizer.get_vocab()
    for token in new.tokens:
        if token in known:
            raise InputError(f"new_tokens must not be in the vocabulary, got {token!r}")
    before = token_ids(tokenizer, new.context)
    if not 1 <= len(before) < found.max_length:
        raise InputError(
            f"context must have 1 to {found.max_length - 1} tokens, got {len(before)}: {new.context[:40]!r}"
        )
    expected = _expected_next(found, new.context)
    rows = [expected[: layer.weight.shape[0]] @ layer.weight.detach() for layer in _embeddings(module)]
    tokenizer.add_tokens(list(new.tokens))
    places = tokenizer.convert_tokens_to_ids(list(new.tokens))
    with torch.random.fork_rng(devices=[]):
        module.resize_token_embeddings(max(places) + 1, mean_resizing=False)
    with torch.no_grad():
        for layer, row in zip(_embeddings(module), rows, strict=True):
            layer.weight[places] = row
    found.tokenizer, found.last = tokenizer, frozenset(places)
    for token, place in ((new.tokens[0], places[0]), (new.tokens[-1], places[-1])):
        if token_ids(tokenizer, new.context + token) != [*before, place]:
            raise UnsupportedError(
                f"the tokenizer of model {model.name!r} does not read {new.context + token!r} as the context "
                "and one new token"
            )


def _embeddings(module: Any) -> list[Any]:
    """Layers whose rows are tokens: of the input and, where they are not the same, of the output."""
    layers = [module.get_input_embeddings(), module.get_output_embeddings()]
    if layers[0].weight is layers[1].weight:
        return layers[:1]
    return layers


def _expected_next(model: LanguageModel, context: str) -> Tensor:
    """Probabilities of the token that follows a text, shape `(vocabulary,)`."""
    device = next(model.module.parameters()).device
    batch = padded_inputs([token_ids(model.tokenizer, context)], model.padding_id(), device)
    with torch.no_grad():
        logits = logits_of(model.module(**batch))[0, -1]
        return torch.softmax(logits.float(), dim=0)
