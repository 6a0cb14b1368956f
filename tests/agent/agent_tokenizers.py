"""Two small real tokenizers of the kinds that policies have."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def bpe_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with ChatML, as Qwen and SmolLM have; `<tool_call>` added, not special."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    core.train_from_iterator(["who answers the question in the search of information"] * 4, trainer)
    core.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHATML,
    )


@cache
def word_tokenizer() -> PreTrainedTokenizerFast:
    """Whole words and tags, split at spaces: a special token is a word of the vocabulary too."""
    words = ["[UNK]", "[BOS]", "[EOS]", "<information>", "</information>", "<answer>", "</answer>"]
    words += ["Question:", "Brno", "Oslo", "is", "a", "city", "Who", "x"]
    core = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 1)])
    core.add_tokens([AddedToken(word, special=False) for word in words[3:7]])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="[UNK]", bos_token="[BOS]", eos_token="[EOS]"
    )
