"""Make a Llama that recites one text for ever, its characters cut into tokens in the middle.

Run by the vLLM environment's own Python: `make_reciter.py DIRECTORY`. Nothing is random: the
layers add nothing, the embeddings are unit vectors, and the output matrix maps each token to the
one that follows it in the text. So what was cut off goes on right only from the right token.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT_TOKENS = 2048
WIDTH = 512
END, PAD, ASSISTANT = "<|end|>", "<|pad|>", "<|assistant|>"
# Each piece is one token, and none comes twice: "é" of two bytes, "日" and "本" of three, "🙂" of
# four, and an astronaut whose eleven bytes are three code points.
PIECES = [
    b"The caf", b"\xc3", b"\xa9", b" says ", b"\xf0\x9f", b"\x99\x82", b" to ", b"\xe6\x97",
    b"\xa5", b"\xe6", b"\x9c\xac", b", na", b"\xc3\xaf", b"ve ", b"\xf0", b"\x9f\x91",
    b"\xa9\xe2\x80", b"\x8d\xf0\x9f\x9a", b"\x80", b" goes", b" up.\n",
]  # fmt: skip
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{ message.role }}: {{ message.content }}<|end|>{%- endfor -%}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif -%}"
)


def letters() -> list[str]:
    """The letter by which a byte-level vocabulary writes each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    written = {byte: chr(byte) for byte in shown}
    written |= {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return [written[byte] for byte in range(256)]


def tokenizer() -> PreTrainedTokenizerFast:
    """All bytes, the pieces, and what marks turns; a prompt is read byte by byte."""
    written = letters()
    words = [*written, *("".join(written[b] for b in piece) for piece in PIECES if len(piece) > 1)]
    bpe = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([END, PAD, ASSISTANT])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT_TOKENS,
        chat_template=CHAT_TEMPLATE,
    )


def followers(words: PreTrainedTokenizerFast) -> list[int]:
    """What each token is followed by: the next piece, the first one after anything else."""
    written = letters()
    ids = [words.convert_tokens_to_ids("".join(written[b] for b in piece)) for piece in PIECES]
    after = [ids[0]] * len(words)
    for one, following in pairwise(ids):
        after[one] = following
    return after


def llama(words: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """One layer that adds nothing between embeddings and the matrix of followers."""
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(len(words), WIDTH))
        model.lm_head.weight.zero_()
        for one, following in enumerate(followers(words)):
            model.lm_head.weight[following, one] = 1
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    words = tokenizer()
    words.save_pretrained(options.directory)
    llama(words).save_pretrained(options.directory)
    stop = GenerationConfig(eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id)
    stop.save_pretrained(options.directory)


if __name__ == "__main__":
    main()
