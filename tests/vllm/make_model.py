"""Make a Llama of half a megabyte with random weights, for tests against a real vLLM server.

Run by the vLLM environment's own Python: `make_model.py DIRECTORY [--seed N]`. The same seed gives
the same weights, so the same prompt gives the same text at temperature 0. Every token is printable
ASCII, a newline or a special token: what the model babbles never breaks UTF-8 in two.
"""

import argparse
import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT_TOKENS = 2048
VOCABULARY_TOKENS = 256
END, PAD, UNKNOWN = "<|end|>", "<|pad|>", "<|unknown|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]

# Enough English and JSON for merges that look like words; the model itself learns nothing.
CORPUS = (
    "The basin above the mill takes the flood, and the wheel below it sees a steady head of water.",
    "Who is served next? The one whose tag is smallest; nobody waits for ever behind a larger one.",
    "Please write a short answer to this question and then stop, because others are waiting too.",
    'system user assistant tool {"name": "value", "list": [1, 2, 3], "open": true, "next": null}',
)

# Content may be absent (an assistant's tool calls) or a list of parts, as in OpenAI's API.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|{{ message.role }}|>
{%- if message.content is string -%}
{{ message.content }}
{%- elif message.content -%}
{%- for part in message.content %}{{ part.text }}{% endfor -%}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{ call.function.name }}({{ call.function.arguments | tojson }})
{%- endfor -%}
{%- if not loop.last or add_generation_prompt %}<|end|>{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif -%}
"""


def tokenizer() -> PreTrainedTokenizerFast:
    """BPE whose alphabet is ASCII; what a prompt has beyond it becomes the unknown token."""
    visible = string.digits + string.ascii_letters + string.punctuation
    # The byte-level pre-tokenizer writes space and newline as these two letters.
    alphabet = [*visible, "\u0120", "\u010a"]
    bpe = Tokenizer(models.BPE(unk_token=UNKNOWN))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=[END, PAD, UNKNOWN, *ROLES],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        model_max_length=CONTEXT_TOKENS,
        chat_template=CHAT_TEMPLATE,
    )


def llama(words: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Two layers of two heads; vLLM's CPU attention wants a head of 32 or more."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        # Large weights: answers differ by prompt, and most end by themselves within 300 tokens.
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    return LlamaForCausalLM(config).to(torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    words = tokenizer()
    words.save_pretrained(options.directory)
    llama(words, options.seed).save_pretrained(options.directory)
    stop = GenerationConfig(eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id)
    stop.save_pretrained(options.directory)


if __name__ == "__main__":
    main()
