// What this machine can do at best: bytes read and products summed per second, by all threads of a pool together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/isa.hpp"
#include "threads/thread_pool.hpp"

namespace nybble {

struct Extent {
    const uint8_t* data;
    size_t bytes;
};

// Passes over all of `extents` for about that many seconds, with the widest loads each thread's CPU has, and after
// every thread has read twice `cache_bytes` of other memory: nothing comes from a cache. Bytes per second of the
// fastest pass; 0 if there is nothing to read.
double read_bandwidth(ThreadPool& threads, const std::vector<Extent>& extents, size_t cache_bytes, double seconds);

// int8 multiply-adds per second of the linears' inner loops, each thread's on its own of `isas`, operands in the L1
// cache; the fastest pass.
double int8_peak(ThreadPool& threads, const std::vector<Isa>& isas, double seconds);

// fp32 fused multiply-adds per second.
double fp32_peak(ThreadPool& threads, const std::vector<Isa>& isas, double seconds);

}  // namespace nybble
