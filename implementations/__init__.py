"""Interchangeable implementations of attention.

>>> import torch, implementations
>>> q = k = v = torch.randn(1, 8, 128, 64)                 # (batch, heads, sequence, head_dim)
>>> implementations.load("online").attend(q, k, v, causal=True).shape
torch.Size([1, 8, 128, 64])

Each file in this folder without a leading underscore is one backend; `_contract.py` says what they all promise.
"The article" is "Transformer架构详解(3)：自注意力机制深入理解"; 2.4 and the like are its sections.
Neither Triton nor a GPU is needed until a backend that uses it is loaded.
"""

from implementations._contract import Attend, Facts
from implementations._layer import SelfAttention
from implementations._loading import Backend, built_in, device, load, names, survey

__all__ = ["Attend", "Backend", "Facts", "SelfAttention", "built_in", "device", "load", "names", "survey"]
