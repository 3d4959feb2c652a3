// Waiting for another thread: spin briefly, then sleep, so that an idle engine uses no CPU and a neighbour process that
// takes a core away costs its share and not a collapse.
#pragma once

#include <atomic>
#include <cstdint>

namespace nybble {

// Return once `value` is no longer `old`; whoever changes it calls notify_all() on it.
void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old);

}  // namespace nybble
