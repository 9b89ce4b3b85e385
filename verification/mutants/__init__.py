"""The judge judged: backends with one fault each, and the property that must reject it.

Each models a fault that was reported of a public implementation of attention. Beside them stand correct variants,
which no property may reject.
"""

from verification.mutants import backward, correct, forward, layer, masks, precision, reach, size, state, triton_source
from verification.mutants.mutant import Mutant, load, subject_of

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "forward": forward.MUTANTS,
    "masks": masks.MUTANTS,
    "state": state.MUTANTS,
    "precision": precision.MUTANTS,
    "backward": backward.MUTANTS,
    "layer": layer.MUTANTS,
    "size": size.MUTANTS,
    "reach": reach.MUTANTS,
    "triton source": triton_source.MUTANTS,
}
CORRECT: tuple[Mutant, ...] = correct.VARIANTS

__all__ = ["CORRECT", "MUTANTS", "Mutant", "load", "subject_of"]
