// Threads that stay on one CPU, and what they find there.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cpu/ime_probe.hpp"
#include "cpu/isa.hpp"

namespace nybble {

// Where a thread is to run for all its life.
struct Place {
    int cpu;
    // A core that only threads which wrote to `gate` may run on: the A100 cores of a K3.
    bool is_gated = false;
    // Made by SpacemiT: its words may be tried out.
    bool may_have_matrix_unit = false;
    std::string gate = "/proc/set_ai_thread";
};

// What a thread found in its place. With a `problem` it is not there, and the rest is empty.
struct Arrival {
    int cpu = -1;
    size_t vector_bits = 0;
    MatrixUnit matrix_unit = MatrixUnit::none;
    std::vector<Isa> isas;  // best first
    std::string problem;
};

// Moves the calling thread for good. To be called before it runs any vector code: cores differ in VLEN.
Arrival arrive(const Place& place);

// What there is where the scheduler put the calling thread.
Arrival arrive_anywhere();

}  // namespace nybble
