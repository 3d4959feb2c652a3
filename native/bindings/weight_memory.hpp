// The memory of packed weights as Python holds it.
#pragma once

#include <memory>
#include <utility>

#include "base/memory.hpp"

namespace nybble {

// Shared, because packed matrices that lie in it keep it alive.
struct WeightMemory {
    explicit WeightMemory(size_t bytes) : memory(std::make_shared<Memory>(bytes, Pages::huge)) {}
    explicit WeightMemory(std::shared_ptr<Memory> shared) : memory(std::move(shared)) {}
    std::shared_ptr<Memory> memory;
};

}  // namespace nybble
