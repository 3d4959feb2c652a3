// Packed weights on disk: written from memory, read back by threads of their own while the caller does other work.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/memory.hpp"

namespace nybble {

// Bytes that share a checksum and are read at once: they are still in the cache when the checksum is computed.
inline constexpr size_t kChunkBytes = size_t{1} << 20;

// Of any bytes, 64 bits, the same on every machine of little-endian order. A change within one 8-byte word always
// changes it. Guards against damage, not against forgery.
uint64_t checksum(const uint8_t* data, size_t bytes);

// One for each chunk of `data`, the last of which may be short.
std::vector<uint64_t> chunk_checksums(const uint8_t* data, size_t bytes);

// Write all of `data` at the position of `descriptor`. Returns 0 or errno.
int write_all(int descriptor, const uint8_t* data, size_t bytes);

// Reads `bytes` at `offset` of a file into huge pages, from construction on. Takes a descriptor of its own, so the
// caller's may be closed.
class WeightReader {
  public:
    WeightReader(int descriptor, size_t offset, size_t bytes, std::vector<uint64_t> checksums, size_t threads);
    ~WeightReader();
    WeightReader(const WeightReader&) = delete;
    WeightReader& operator=(const WeightReader&) = delete;

    // Where the bytes will be; complete only when finish() has returned true.
    const std::shared_ptr<Memory>& memory() const { return memory_; }
    // Help to read and wait for the end. False: the file could not be read, is too short, is not what the checksums
    // say, or `interrupted`, asked after each chunk, said so.
    bool finish(const std::function<bool()>& interrupted);

  private:
    // False if none is left.
    bool read_chunk();

    std::shared_ptr<Memory> memory_;
    int descriptor_;
    size_t offset_, bytes_;
    std::vector<uint64_t> checksums_;
    std::atomic<size_t> next_{0};
    std::atomic<bool> failed_{false};
    std::vector<std::thread> threads_;
};

}  // namespace nybble
