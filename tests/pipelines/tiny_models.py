"""Small models with random weights, saved as `transformers` saves them, with a tokenizer that is made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SENTENCES = ["the quick brown fox", "every proved rewrite keeps its meaning", "a lazy dog"]
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})
VOCABULARY = {token: number for number, token in enumerate((*SPECIAL, *WORDS))}


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(token, VOCABULARY[token]) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **named).save_pretrained(folder)


def save_model(folder: Path, kind: str) -> Path:
    """Write a model of a kind, bert, llama or t5, and its tokenizer."""
    import torch

    torch.manual_seed(0)
    _MODELS[kind]().eval().save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def _bert() -> Any:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return BertModel(BertConfig(vocab_size=len(VOCABULARY), **sizes))


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(VOCABULARY), num_key_value_heads=2, **sizes, **ids))


def _t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    ids = {"decoder_start_token_id": 0, "eos_token_id": 3, "pad_token_id": 0}
    return T5ForConditionalGeneration(T5Config(vocab_size=len(VOCABULARY), **sizes, **ids))


_MODELS = {"bert": _bert, "llama": _llama, "t5": _t5}
