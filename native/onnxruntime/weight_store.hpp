// Packed weights of this process, so that sessions whose models have equal weights share one copy.
#pragma once

#include <memory>

#include "onnxruntime/matmul_nbits.hpp"
#include "packing/packed_matrix.hpp"

namespace nybble::onnxruntime {

// The weights of a node that is not refused, packed unless a living session has equal ones. Throws std::bad_alloc.
std::shared_ptr<const PackedMatrix> packed_weights(const MatMulNBits& node);

}  // namespace nybble::onnxruntime
