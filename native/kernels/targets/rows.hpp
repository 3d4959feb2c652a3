// Compiles for one instruction set what exists once for each: row kernels, and the loops that measure its peaks. As
// target.hpp, which includes it where the instruction set has linear kernels for all weights.

#include "kernels/generic/quantise.hpp"
#include "kernels/generic/rows.hpp"
#include "kernels/generic/append.hpp"
#include "kernels/generic/attention.hpp"
#include "kernels/generic/logits.hpp"
#include "kernels/generic/peaks.hpp"

namespace nybble::NYBBLE_ISA {

extern const RowKernels row_kernels;
extern const PeakKernels peak_kernels;

const RowKernels row_kernels = {quantise,
                                rms_norm,
                                rotate,
                                append,
                                swiglu,
                                attention,
                                attend_to_chunk,
                                merge_chunks,
                                attention_scratch_bytes,
                                attention_state_floats,
                                highest_logit};

const PeakKernels peak_kernels = {read_bytes, multiply_integers, multiply_floats,
                                  size_t{kTileRows * kTileVectors * kPeakGroups} * 4 * kLaneCount,
                                  size_t{kFloatRows * kTileVectors * kPeakGroups} * kLaneCount};

}  // namespace nybble::NYBBLE_ISA
