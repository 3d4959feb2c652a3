#include "threads/staging.hpp"

#include <algorithm>
#include <stdexcept>

#include "threads/thread_pool.hpp"

namespace nybble {

Staging::Staging(ThreadPool& threads, const std::string& library, const std::vector<size_t>& blocks)
    : memory_(library), blocks_(blocks), addresses_(blocks.size()) {
    for (const size_t block : blocks) {
        if (std::find(blocks.begin(), blocks.end(), block ^ 1) == blocks.end()) {
            throw std::runtime_error("no thread shares a matrix unit with that of block " + std::to_string(block));
        }
    }
    pairs_ = std::make_unique<Pair[]>(*std::max_element(blocks.begin(), blocks.end()) / 2 + 1);
    std::vector<std::string> problems(blocks.size());
    // Each thread its own: the library keeps who has a block.
    threads.run([&](size_t thread) {
        try {
            addresses_[thread] = memory_.acquire(blocks_[thread]);
        } catch (const std::runtime_error& error) {
            problems[thread] = error.what();
        }
    });
    const auto problem = std::find_if(problems.begin(), problems.end(), [](const auto& text) { return !text.empty(); });
    if (problem == problems.end()) return;
    release();
    throw std::runtime_error(*problem);
}

Staging::~Staging() { release(); }

void Staging::release() {
    for (size_t thread = 0; thread < blocks_.size(); ++thread) {
        if (addresses_[thread] != nullptr) memory_.release(blocks_[thread]);
    }
}

}  // namespace nybble
