"""What is timed: shapes, lengths and the arithmetic they cost. Data only, so that everything may read it.

GPT-2 and Llama-3-8B are the shapes people run (12 heads of 64; 32 heads of 128 that share 8 key-value heads),
and the article's two widths are the shapes people read about. All but one are causal, as in a decoder;
`article-4096`, which is not, shows beside `llama-2-7b`, the same shape, whether a backend skips the half that
the causal mask removes.
The headline is `article-512` at 4096 keys: its matrix of weights is 64 times the size of Q, and fits in the memory
of any machine. It stands first, since the first workload gets its time before the others.
"""

from dataclasses import dataclass

STAGES = ("forward", "backward", "layer")

# By doubling. A CPU stops where one dense call still fits in the memory of a laptop.
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
LONGEST = {"cpu": 8192, "cuda": 32768}

TIMED_DTYPE = {"cpu": "float32", "cuda": "bfloat16"}


@dataclass(frozen=True)
class Workload:
    """The attention of one model; heads // kv_heads query heads share a key-value head."""

    name: str
    model: str
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    batch: int = 1

    @property
    def d_model(self) -> int:
        return self.heads * self.head_dim


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("article-512", "the article's d_model 512", 8, 8, 64, causal=True),
        Workload("article-4096", "the article's d_model 4096", 32, 32, 128, causal=False),
        Workload("gpt2", "GPT-2", 12, 12, 64, causal=True),
        Workload("llama-3-8b", "Llama 3 8B", 32, 8, 128, causal=True),
        Workload("llama-2-7b", "Llama 2 7B", 32, 32, 128, causal=True),
    )
}


@dataclass(frozen=True)
class Case:
    """One row of a sweep, whoever answers it.

    dtype is torch's name of one. stage is what is timed: "forward" is attend, "backward" the backward pass of attend
    alone, "layer" the forward pass of SelfAttention from x.
    """

    workload: Workload
    seq_len: int
    stage: str
    dtype: str = "float32"

    @property
    def flops(self) -> int:
        return flops(self.workload, self.stage, self.seq_len)

    def __str__(self) -> str:
        return f"{self.workload.name} {self.seq_len} {self.stage}"


def lengths(device_type: str, longest: int | None = None) -> list[int]:
    """The lengths that are timed on "cpu" or "cuda", none of them longer than `longest`."""
    limit = LONGEST[device_type] if longest is None else min(longest, LONGEST[device_type])
    return [length for length in LENGTHS if length <= limit]


def unmasked_pairs(seq_len: int, causal: bool) -> int:
    """How many (query, key) pairs of a head are not masked.

    Most publications take half of the square instead, which is smaller by one part in `seq_len`, 0.8 % at 128.
    """
    return seq_len * (seq_len + 1) // 2 if causal else seq_len * seq_len


def flops(workload: Workload, stage: str, seq_len: int) -> int:
    """Floating-point operations of one call; a multiply and an add are two.

    Forward: Q K^T and P V, 2 dim each for every unmasked pair of every query head. Backward: 2.5 times that, the
    five products of a pass that recomputes the weights. Layer: forward and the GEMMs with W_Q, W_K, W_V and
    W_O. What a backend computes besides (softmax, a second pass, the masked half) does not count.

    Source of the convention: Dao 2023, arXiv 2307.08691, section 4.1.
    """
    w = workload
    forward = 4 * w.batch * w.heads * w.head_dim * unmasked_pairs(seq_len, w.causal)
    if stage == "forward":
        return forward
    if stage == "backward":
        return forward * 5 // 2
    if stage == "layer":
        columns = (w.heads + 2 * w.kv_heads) * w.head_dim + w.d_model
        return forward + 2 * w.batch * seq_len * w.d_model * columns
    raise ValueError(f"stage is {stage!r}; wanted one of {', '.join(STAGES)}")
