"""Mutants of the library that are proved, and rightly: they are the same rules in truth."""

EQUIVALENT = (
    (
        ".*",
        r"(REAL|EXTENDED) condition dropped: (is_float|is_integer|is_in)\(dtype",
        "a proof over the reals licenses floats alone, and does not count digits: the condition keeps those",
    ),
    (
        "quantize_.*without_sign|compute_qlinear_.*|eliminate_sign_before_.*|dequantize_integers_.*",
        r".*condition dropped: is_in\(dtype",
        "a proof goes through all element types, one by one: the condition keeps the few that models have",
    ),
    (
        ".*_(before|after|behind|without)_(de)?(quantize|sign)",
        ".*attribute dropped",
        "where one scale is for all, an axis means nothing, and what else there may be is the default",
    ),
    (
        "enlarge_(factors|summands)_of_channels",
        ".*(condition dropped: 0 < size..C|attribute dropped: Resize)",
        "an image of one pixel is the same enlarged in any mode, and one of no channels stays one",
    ),
    ("eliminate_nop_average_pool", ".*condition dropped: pads", "a window of one element has no room for padding"),
    (
        "eliminate_nop_resize.*",
        "EXACT condition dropped: any_of.(where|mode)",
        "a proof covers the modes that the denotation names, which are these",
    ),
    (
        "flatten_layer_normalization",
        "REAL condition dropped: 0 < size",
        "a normalization of nothing is undefined: the condition keeps its Reshape from one",
    ),
    (
        "fuse_microsoft_rotary_embedding_of_batch",
        "REAL condition dropped: size..D",
        "the two parts of a Split are equal and all there is: the condition says it to the rules for empty tensors",
    ),
    (
        "lift_masked_weights",
        "REAL operand dropped: ReduceMax.* - 40.0",
        "weights that are lifted by nothing are the same after division: lifting is what makes it fast",
    ),
    (
        "replace_reduce_mean_with_global_average_pool",
        "REAL condition dropped: 0 < size..N",
        "of no image there is no mean: the condition is for images of open sizes, which do not stay in blocks",
    ),
    (
        "transpose_in_two_passes_.*|compute_(log)?softmax_of_matrices",
        r"\w+ condition dropped: (item|not_.is_sorted)",
        "it is true everywhere: the condition says where it pays",
    ),
    (
        "replace_reduce_(sum|mean)_of_rows_.*|transpose_(part_of_)?dft_to_last_axis",
        r"\w+ condition dropped: (1 < size|any_of.size|is_in.dtype)",
        "it is true everywhere: the condition says where it pays",
    ),
    (
        "replace_matmul(_add)?_across_heads_with_conv",
        "(REAL|EXTENDED) condition dropped: size..[CM]",
        "it is true everywhere: the condition says where it pays",
    ),
    (
        "(replace|transpose)_(part_of_)?dft_.*",
        r"\w+ operand dropped: DFT",
        "the axis that is written is the default, which rules do not ask for",
    ),
    (
        "replace_(part_of_)?dft_with_product",
        r"\w+ attribute dropped: EyeLike dtype",
        "ones are floats already: the attribute says so where no operand does",
    ),
    (
        "(compute|shard)_.*_parts",
        r"\w+ (number changed|operands swapped|another operator): .*size",
        "any cut is right: equal parts, which share a buffer, take the least memory",
    ),
    (
        "(compute|shard)_.*_parts",
        r"\w+ condition dropped: \d \* floordiv",
        "a part may be empty: the condition keeps that from kernels",
    ),
    (
        "shard_split_into_heads_in_.*_parts",
        r"EXACT condition dropped: 0 < item",
        "the condition keeps the matcher from dividing by zero",
    ),
    (
        "(compute|shard)_(add|mul)_.*_parts|compute_rows_of_(add|mul)",
        r"\w+ holes swapped: x and y",
        "sums and products commute",
    ),
    (
        "compute_.*_by_tiles_in_.*",
        r"\w+ condition dropped: 0 < ",
        "a tile may have no rows: the condition keeps that from kernels",
    ),
    (
        "compute_(.*_by_tiles_in|rows_of)_.*",
        r"\w+ operand dropped: Slice.* becomes Slice.*–",
        "a Slice that names no steps goes in steps of one",
    ),
    ("compute_rows_of_conv", r"\w+ attribute dropped: Conv strides=.1, 1.", "strides of one are the default"),
    ("transpose_split_heads_as_matrix", "EXACT number changed: sizes", "a product in another order"),
    (".*", ".*: BatchNormalization momentum", "inference does not read the momentum"),
    (".*_before_conv", ".*: Conv pads=pads becomes absent", "the conditions say that the pads are zero"),
    (
        "push_transpose_above_.*softmax",
        ".*condition dropped: item.perm",
        "where the last axis stays, other axes may move as well: the condition says where it pays",
    ),
    (".*", ".*condition dropped: dtype", "the schema gives both one type, or what has that type is not touched"),
    (
        "fuse_.*_into_(layer|rms)_normalization",
        ".*: (Layer|RMS)Normalization axis=axis becomes absent",
        "the condition says that it is the last axis, which is the default",
    ),
    (
        "fuse_mul_into_rms_normalization|fuse_(mul|add)_into_layer_normalization",
        ".*condition dropped: normalize_indices",
        "before other axes too the weights broadcast; it is the kernels that ask for the last",
    ),
    ("fuse_.*_of_conv_and_input_mul", ".*: Reshape.c, sizes.'C'.. becomes c", "another Reshape follows"),
    (
        "replace_prelu_with_relu",
        ".*operator dropped: Unsqueeze.slope",
        "an axis in front broadcasts alike; it is the kernels of the blocked layout that ask for four",
    ),
    (
        ".*_after_transpose_into_gemm(_transposed)?",
        ".*: Transpose perm",
        "a permutation of two axes is its own inverse",
    ),
    (
        "fuse_transpose_into_gemm.*",
        ".*condition dropped: any_of.trans",
        "to the prover a flag is 0 or 1; the condition stands for runtimes that take other numbers",
    ),
    (
        (
            "(eliminate_(expand|tile)_before|hoist_transposes_over)_(add|mul|max|min|and|or|equal)|eliminate_neg_mul_neg"
            "|fuse_neg_into_sub|fuse_reciprocal_into_div|replace_sum_by_add|fuse_mul_into_rms_.*"
            "|replace_add_before_.*layer_normalization_with_sum"
            "|fuse_consecutive_(adds|muls|max|min)|fuse_quotient_mul|fuse_sub_add|fuse_sum_of_multiples"
            "|fuse_(ceiling|clip|floor)_then_(ceiling|clip|floor)|fuse_consecutive_(expands|tiles)"
        ),
        ".* holes swapped",
        "the two are operands of something that commutes",
    ),
    (
        "fuse_reshape_into_reduction",
        ".*condition dropped: 0 < length.axes.",
        "another condition asks for the first of the axes, which has to be there",
    ),
    (
        "fuse_consecutive_(reduce_.*|squeezes)",
        ".* (holes|operands) swapped: (axes and more|concat)",
        "axes are listed in any order",
    ),
    (
        ".*",
        r".*condition dropped: any_of\((all_of\()?broadcast\(shape\(a\), shape\(b\)\)",
        "the condition only keeps joined constants from growing",
    ),
    (
        ".*(squeeze|reduce).*",
        ".*condition dropped: 0 < length",
        "with an empty list of axes the left side is not defined, or the rule holds as well",
    ),
    (
        ".*cast.*",
        ".*(condition dropped: to != 8|attribute dropped: Cast)",
        "it is about texts and floats of eight bits, of which proofs do not speak",
    ),
    ("replace_reduce_mean_with_.*pool", ".*operator dropped: AveragePool", "it comes first for its rounding alone"),
    (
        "fuse_concat_of_adjoining_slices",
        ".*operand dropped: Slice",
        "the conditions say that the steps are 1, which is the default",
    ),
    (
        "fuse_pad_.*",
        ".*: 2 . (length.axes.|rank.x.) becomes 3",
        "the amounts end there: a part may be asked for beyond the end",
    ),
    (
        (
            "eliminate_depth_to_space_of_space_to_depth|eliminate_nop_resize_.*|replace_einsum_abc_cde_to_abde"
            "|fuse_consecutive_pads|fuse_relu_then_relu"
        ),
        ".*condition dropped: (mod|size.'R'|0 < size.'H'|0 <= more_pads|is_float)",
        "the left side is defined only then, or a family of rules states what some of its members do not need",
    ),
    (
        (
            "fuse_consecutive_(matmuls|gemms).*|fuse_pointwise_conv_(into_conv|before_.*)"
            "|(part|push)_pointwise_conv_.*_(resize|doubling)"
        ),
        ".*condition dropped: size.* <= ",
        "it is true everywhere: the condition says where it pays",
    ),
    (
        "fill_(channels_before|groups_of|depthwise)_conv.*|read_past_slice_of_channels",
        ".*condition dropped: (16 < size|size.* < .*)",
        "it is true everywhere: the condition says where it pays",
    ),
    (
        "push_(rows_below|image_above)_pointwise|push_pointwise_above_._joined_rows",
        ".*condition dropped: (is_noop_reshape|length)",
        "it is true everywhere: the condition says where it pays",
    ),
    ("replace_(resize|doubling)_with_products", ".*number changed: Expand", "EyeLike reads the shape alone"),
    (
        "split_reduce_.*|write_mean_of_squares_with_power|replace_(resize|doubling)_with_products",
        ".*condition dropped: (delete|normalize_indices|not_)",
        "it is true everywhere: the condition says where it pays",
    ),
    (
        "replace_(matmul|gemm).*_of_matrix_with_conv",
        ".*Transpose perm=.0, 2, 3, 1. becomes .2, 0, 3, 1.",
        "the two axes that change places have one place each",
    ),
    (
        "replace_conv_with_winograd_.*|replace_(matmul|gemm).*_of_(matrix|matrices)_with_conv",
        ".*condition dropped: .* <= .*size",
        "it is true everywhere: the condition says where it pays",
    ),
    (
        "replace_(matmul|gemm).*_of_(matrix|matrices)_with_conv|part_pointwise_conv_of_.*",
        ".*condition dropped: 0 < size",
        "the condition on where it pays implies it: it is said so that no proof rests on that one",
    ),
    (
        "fuse_.*_of_conv_and_(input.*|bn)|absorb_add_into_conv",
        ".*attribute dropped: Conv strides",
        "the condition says that the strides are 1",
    ),
    (
        "fuse_.*_of_conv_and_(input.*|bn)|absorb_add_into_conv|push_slice_above_gemm|replace_grouped_conv_.*",
        ".*operand dropped: Slice",
        "the axes are the first ones, as without them",
    ),
    (
        "widen_conv_beside_larger_conv",
        r".*condition dropped: sizes\('\*k'\) ==",
        "any kernel may be wider: that it becomes as large as the other is why it pays",
    ),
    ("absorb_add_into_conv", ".*number changed: sizes", "the first two axes are the same"),
    ("replace_grouped_conv_with_dense_conv", ".*condition dropped: 1 < group", "of one group both sides are the same"),
    (
        "fuse_consecutive_slices_along_some_.*",
        ".*operand dropped: Slice",
        "all axes are listed, in order, as without them",
    ),
    (
        "merge_sum_of_convs_.*|fuse_add_of_(matmul|matmul_add|gemm|gemm_transposed)_and_matmul",
        ".* holes swapped",
        "the two are operands of something that commutes",
    ),
    (
        "flatten_layer_normalization",
        ".*operator dropped: Reshape",
        "rows are normalized alike in any shape: the view is for what stands before",
    ),
    (
        "(flatten|push_slice_above)_layer_normalization",
        "REAL (attribute dropped|number changed): LayerNormalization stash_type",
        "it says in which type is computed, and a proof over the reals does not count digits",
    ),
    (
        "fuse_reshapes_around_transpose_of_matrices_grouped_in_front",
        ".*number changed: sizes",
        "the sizes are multiplied",
    ),
    (
        "drop_(unread|zero|equal)_.*",
        "REAL condition dropped: length.(nonzero_indices|unique_indices).* < size",
        "where nothing is dead or equal, all is kept: the condition keeps the rule from being applied for nothing",
    ),
    (
        "drop_(unread|zero)_(gated_)?features.*",
        "REAL condition dropped: 0 < length.nonzero_indices",
        "products of nothing add up to zero, as do those of zeros: the condition keeps something to multiply",
    ),
    (
        "drop_equal_(gated_)?features.*",
        "REAL condition dropped: 0 < length.unique_indices",
        "of features that are more than the first ones there is a first: the other condition says so already",
    ),
    (
        "replace_conv_with_winograd_in_twos",
        "(REAL|EXTENDED) operand dropped: .* . 1 becomes Split",
        "once a row is that row: the factors are written as a table",
    ),
    (
        "drop_(unread|zero)_.*",
        "REAL number changed: nonzero_indices",
        "of what number a list has a multiple is for kernels: more places than needed are as good",
    ),
    (
        "drop_(unread|zero|equal)_channels_around_depthwise_conv.*",
        "REAL condition dropped: group == size",
        "filters of one channel each are in as many groups as there are channels",
    ),
    (
        "drop_equal_.*",
        "REAL (operand dropped: Slice|operator dropped: Flatten)",
        "a matrix has two axes, which are those that are cut where none is said",
    ),
    (
        "(group_conv_of|split_.*_by|replace_.*_by)_(diagonal|(large_|small_)?blocks|diagonal_with_mul)",
        "REAL (condition dropped: 1 < block_count|number changed: block_count)",
        "one block is all, from either side, and of what numbers sides are multiples is for kernels",
    ),
    (
        "group_conv_of_diagonal",
        "REAL (condition dropped: block_count|operands swapped: (concat|floordiv))",
        "blocks of more than one channel are as true, and of one each there are as many as filters and channels",
    ),
    (
        "replace_.*_by_diagonal_with_mul",
        "REAL (attribute dropped|number changed): ReduceSum",
        "a diagonal is the sums of its rows as of its columns, and what has no rows is spread over them like one row",
    ),
    (
        "fill_channels_.*",
        "REAL (condition dropped: (mod|16 < size|group ==)|number changed: mod)",
        "true of all numbers of channels, each filtered alone: what is filled up to what is said for kernels",
    ),
    (
        "fill_channels_.*",
        "REAL (operands swapped: concat|operand dropped: Pad.[be],)",
        "zeros are as good in front of all channels as behind, and a list has one axis",
    ),
    (
        "(combine_factors|fuse_residual_into_factor).*",
        "(REAL|EXTENDED|EXACT) (condition dropped: .*(broadcast|product)|holes swapped: x and y)",
        "which of the factors is smaller is where it pays: they are multiplied, and broadcast, in any order",
    ),
    (
        "fill_(channels_around_depthwise|groups_of)_conv.*",
        "EXTENDED condition dropped: mod",
        "true of all numbers of channels: what is filled up to what is said for kernels",
    ),
    (
        "fill_(groups_of|depthwise)_conv.*",
        "EXTENDED operand dropped: Pad.[be],",
        "a list has one axis",
    ),
    (
        "split_reduce_.*",
        "(REAL|EXTENDED) condition dropped: any_of",
        "sums along any axes are split; the condition says where that is faster",
    ),
    (
        "replace_reduce_.*_with_matmul.*",
        "(REAL|EXTENDED) condition dropped: 3 < rank",
        "with three axes there are no more than rows, which another rule has without views",
    ),
    (
        "push_transpose_below_gather_of_windows",
        "EXACT condition dropped: item",
        "a Transpose goes below in any order of axes; with channels last it is faster there",
    ),
    (
        "push_transpose_above_matmul",
        "(REAL|EXTENDED) (condition dropped: .*is_sorted|number changed: Transpose)",
        "any Transpose goes above; the conditions say where it is faster, and a swap is its own inverse",
    ),
    (
        "merge_._groups_of_conv",
        "REAL (condition dropped: (1 < size|mod.size|size)|operand dropped: Slice)",
        "groups of any size are merged alike, and the axes are the first ones, as without them",
    ),
    ("part_skip_rms_normalization.*", ".* holes swapped", "the two are operands of something that commutes"),
    (
        "rotate_all_.*",
        "REAL condition dropped: item.* <= .*",
        "it is true everywhere: the condition says where it pays",
    ),
    ("rotate_all_.*", "REAL operand dropped: Pad.sin", "0 is what a Pad puts there where nothing is said"),
    ("rotate_all_.*", "REAL holes swapped: along and swapped", "the conditions say that both are the last axis"),
    ("part_transposed_.*", ".*number changed: Transpose perm", "a permutation of two axes is its own inverse"),
    ("part_fused_residual_conv_relu", ".*condition dropped: sizes", "the operator's definition asks for it"),
    (
        "replace_lrn.*_with_convolution",
        "REAL condition dropped: size",
        "it is true everywhere: the condition says where it pays",
    ),
    (
        "replace_conv3d_of_._frames_with_conv2d",
        "REAL (another operator: (item.pads, 3.|item.*[*] 0 becomes)|number changed: Pad.Slice.w)",
        "a Slice cuts off what is behind the last frame, nothing is as little less as more, and zeros add nothing",
    ),
    (
        "push_matmul_(above_padding|below_cropping)_.*",
        "EXTENDED condition dropped: (item.*== size|any_of.grid ==|concat.length)",
        "the left side asks for it: a Reshape keeps the number of elements, and a Transpose and a Pad name all axes",
    ),
    (
        "push_matmul_below_cropping_.*",
        "EXTENDED operands swapped: concat.item.grid, 0., item.grid, 1.",
        "images and their rows of windows are one axis again behind the Transpose, which leaves them side by side",
    ),
    (
        "drop_.*_(features|gated_features).*",
        r"\w+ condition dropped: any_of.length",
        "it is true everywhere: the condition says where it pays",
    ),
    (
        "replace_gemm_.*_with_strassen|push_line_above_.*|pad_rows_of_.*",
        r"\w+ condition dropped: (all_of|pads ==|0 < size|mod)",
        "it is true everywhere: the condition says where it pays",
    ),
    ("push_line_above_mul", ".*holes swapped: x and y", "a product is the same either way round"),
    ("pad_rows_of_.*", ".*another operator: 2 . rank", "the rank is two"),
    ("pad_rows_of_.*", ".*number changed: Expand", "what zeros are multiplied by may be any number"),
    (
        "fuse_(ascending|descending)_writes_of_.*",
        ".*(attribute dropped|number changed): Reshape",
        "no size is 0 where it holds, so what a 0 means does not matter",
    ),
    (
        "replace_write_of_.*_slice_with_concat",
        ".*condition dropped: first_index.* < item",
        "where nothing is behind the slice, a part without elements is joined",
    ),
)
"""Rules, changes (patterns both), and why such a mutant that is proved is right."""
