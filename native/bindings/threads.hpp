// Instruction sets by name, of the CPUs that a pool's threads are on.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "bindings/arrays.hpp"
#include "threads/thread_pool.hpp"

namespace nybble {

inline bool runs(const Arrival& arrival, Isa isa) {
    return std::find(arrival.isas.begin(), arrival.isas.end(), isa) != arrival.isas.end();
}

// One for each thread, which the CPU under it has.
inline std::vector<Isa> isas_of(const ThreadPool& threads, const std::vector<std::string>& names) {
    require(names.size() == threads.size(), "expected an instruction set for each thread");
    std::vector<Isa> isas;
    for (const std::string& name : names) {
        const Arrival& arrival = threads.arrivals()[isas.size()];
        const auto found =
            std::find_if(arrival.isas.begin(), arrival.isas.end(), [&](Isa isa) { return name == name_of(isa); });
        require(found != arrival.isas.end(), "a thread's CPU does not have that instruction set");
        isas.push_back(*found);
    }
    return isas;
}

}  // namespace nybble
