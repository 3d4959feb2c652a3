// Tightly coupled memory (TCM): SRAM beside SpacemiT's A100 cores, a block for each, which the vendor's library hands
// out to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace nybble {

class TightlyCoupledMemory {
  public:
    // Loads `library`, which dlopen() finds. Throws std::runtime_error: there is none, or only ordinary memory in place
    // of it.
    explicit TightlyCoupledMemory(const std::string& library);
    ~TightlyCoupledMemory();
    TightlyCoupledMemory(const TightlyCoupledMemory&) = delete;

    size_t blocks() const { return blocks_; }
    size_t block_bytes() const { return block_bytes_; }

    // A block for the calling thread alone, until release(). One that a thread left taken which is gone, as after a
    // kill, is taken back. Throws std::runtime_error: somebody has it.
    uint8_t* acquire(size_t block);
    void release(size_t block);

  private:
    struct Functions;

    uint8_t* request(size_t block);

    std::unique_ptr<Functions> call_;
    size_t blocks_ = 0, block_bytes_ = 0;
};

}  // namespace nybble
