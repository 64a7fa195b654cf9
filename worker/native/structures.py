"""The values that cross into native code, field by field as in `src/plan.h`, `src/attention.h` and `src/decoder.h`."""

from ctypes import Structure, c_float, c_int, c_void_p


class Step(Structure):
    """A batch in CSR form and the ranges that its sequences share; borrowed arrays of int32."""

    _fields_ = (
        ("num_sequences", c_int),
        ("positions", c_void_p),
        ("qo_indptr", c_void_p),
        ("kv_indptr", c_void_p),
        ("kv_indices", c_void_p),
        ("num_ranges", c_int),
        ("range_indptr", c_void_p),
        ("range_sequences", c_void_p),
        ("range_first", c_void_p),
        ("range_end", c_void_p),
    )


class AttentionShape(Structure):
    _fields_ = (
        ("query_heads", c_int),
        ("kv_heads", c_int),
        ("key_dim", c_int),
        ("value_dim", c_int),
        ("scaling", c_float),
        ("window", c_int),  # 0: none
        ("softcap", c_float),  # 0: none
    )


class DecoderShape(Structure):
    _fields_ = (
        ("hidden", c_int),
        ("intermediate", c_int),
        ("vocabulary", c_int),
        ("activation", c_int),
        ("epsilon", c_float),
        ("embedding_scale", c_float),
        ("residual_scale", c_float),
        ("logit_scale", c_float),
    )


class LayerParts(Structure):
    """Borrowed pointers; null where a layer has no such thing."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("qkv", c_void_p),
        ("qkv_bias", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("frequencies", c_void_p),
        ("rotated", c_int),
        ("rotation_scale", c_float),
        ("out", c_void_p),
        ("out_bias", c_void_p),
        ("second_norm", c_void_p),
        ("gate_up", c_void_p),
        ("gate_up_bias", c_void_p),
        ("down", c_void_p),
        ("down_bias", c_void_p),
        ("attention", AttentionShape),
    )


class DecoderStep(Structure):
    _fields_ = (
        ("token_ids", c_void_p),
        ("out_slots", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("num_samples", c_int),
        ("sample_rows", c_void_p),
        ("logits", c_void_p),
        ("row_adapters", c_void_p),  # int32 of each row; null: nobody has one
        ("adapters", c_void_p),
    )
