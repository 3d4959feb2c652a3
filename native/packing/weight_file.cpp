#include "packing/weight_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace nybble {
namespace {

constexpr size_t kLanes = 4;  // enough to hide the latency of a multiplication
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

uint64_t mixed(uint64_t state, uint64_t word) {
    // Each step can be undone, so a different word gives a different state.
    state = (state ^ word) * kOdd;
    return state ^ (state >> 29);
}

size_t chunks_of(size_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

bool read_exactly(int descriptor, uint8_t* to, size_t bytes, size_t offset) {
    while (bytes > 0) {
        const ssize_t count = pread(descriptor, to, bytes, static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        to += count;
        offset += static_cast<size_t>(count);
        bytes -= static_cast<size_t>(count);
    }
    return true;
}

}  // namespace

uint64_t checksum(const uint8_t* data, size_t bytes) {
    uint64_t lanes[kLanes] = {1, 2, 3, 4};
    size_t done = 0;
    for (; done + sizeof lanes <= bytes; done += sizeof lanes) {
        uint64_t words[kLanes];
        std::memcpy(words, data + done, sizeof words);
        for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = mixed(lanes[lane], words[lane]);
    }
    uint64_t result = mixed(0, bytes);
    for (; done < bytes; done += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, data + done, std::min(sizeof word, bytes - done));
        result = mixed(result, word);
    }
    for (const uint64_t lane : lanes) result = mixed(result, lane);
    return result;
}

std::vector<uint64_t> chunk_checksums(const uint8_t* data, size_t bytes) {
    std::vector<uint64_t> sums(chunks_of(bytes));
    for (size_t chunk = 0; chunk < sums.size(); ++chunk) {
        const size_t begin = chunk * kChunkBytes;
        sums[chunk] = checksum(data + begin, std::min(kChunkBytes, bytes - begin));
    }
    return sums;
}

int write_all(int descriptor, const uint8_t* data, size_t bytes) {
    while (bytes > 0) {
        const ssize_t count = write(descriptor, data, std::min(bytes, kChunkBytes));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return errno;
        data += count;
        bytes -= static_cast<size_t>(count);
    }
    return 0;
}

WeightReader::WeightReader(int descriptor, size_t offset, size_t bytes, std::vector<uint64_t> checksums, size_t threads)
    : memory_(std::make_shared<Memory>(bytes, Pages::huge)),
      descriptor_(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)),
      offset_(offset),
      bytes_(bytes),
      checksums_(std::move(checksums)) {
    if (descriptor_ < 0 || checksums_.size() != chunks_of(bytes)) {
        failed_ = true;
        return;
    }
    for (size_t i = 0; i < std::min(threads, checksums_.size()); ++i) {
        try {
            threads_.emplace_back([this] {
                while (read_chunk()) {
                }
            });
        } catch (const std::system_error&) {
            break;  // no more threads to be had: finish() does what is left
        }
    }
}

WeightReader::~WeightReader() {
    failed_ = true;  // what nobody waits for need not be read
    for (std::thread& thread : threads_) thread.join();
    if (descriptor_ >= 0) close(descriptor_);
}

bool WeightReader::read_chunk() {
    const size_t chunk = next_++;
    if (chunk >= checksums_.size() || failed_) return false;
    const size_t begin = chunk * kChunkBytes, size = std::min(kChunkBytes, bytes_ - begin);
    uint8_t* to = memory_->data() + begin;
    if (!read_exactly(descriptor_, to, size, offset_ + begin) || checksum(to, size) != checksums_[chunk]) {
        failed_ = true;
    }
    return true;
}

bool WeightReader::finish(const std::function<bool()>& interrupted) {
    while (read_chunk()) {
        if (interrupted()) failed_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return !failed_;
}

}  // namespace nybble
