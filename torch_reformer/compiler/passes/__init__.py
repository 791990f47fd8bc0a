"""Passes that change a graph before its operations are fused into groups. Each takes the graph and changes it."""

from .add_embedding_grads import add_embedding_grads
from .copy_before_casts import copy_before_casts
from .copy_sources_once import copy_sources_once
from .drop_round_trips import drop_round_trips
from .drop_unused import drop_unused
from .fold_biases import fold_biases
from .follow_readers import follow_readers
from .gather_by_programs import gather_by_programs
from .gather_columns import gather_columns
from .join_products import join_products
from .join_sums import join_sums
from .map_operands import map_operands
from .moments_of_parts import moments_of_parts
from .narrow_reductions import narrow_reductions
from .order_concats import order_concats
from .order_sources import order_sources
from .pack_casts import pack_casts
from .pack_counters import pack_counters
from .pack_keys import pack_keys
from .pad_casts import pad_casts
from .read_messages import read_messages
from .read_parts import read_parts
from .read_windows import read_windows
from .reduce_before_terms import reduce_before_terms
from .share_equal import share_equal
from .split_into_terms import split_into_terms
from .stack_selected import stack_selected
from .sums_of_parts import sums_of_parts
from .transpose_products import transpose_products
from .widen_products import widen_products

PASSES = (
    *(drop_round_trips, drop_unused, share_equal, reduce_before_terms, drop_unused, split_into_terms),
    *(narrow_reductions, fold_biases, moments_of_parts, join_products, join_sums, add_embedding_grads, stack_selected),
    *(order_concats, transpose_products, map_operands, read_windows, sums_of_parts, read_parts, follow_readers),
    *(order_sources, drop_unused, copy_sources_once, copy_before_casts, drop_unused, gather_columns),
    *(gather_by_programs, read_messages, pack_counters, widen_products, pack_casts, pad_casts, pack_keys),
)
