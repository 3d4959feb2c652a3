// Memory for weights, caches and activations: page-backed, zeroed, page-aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace nybble {

inline constexpr size_t kCacheLine = 64;

inline constexpr size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Huge pages let one core read weights a fifth faster; small pages keep sparsely touched memory small.
enum class Pages { small, huge };

// An anonymous mapping. Pages cost nothing until they are touched. Throws std::bad_alloc.
class Memory {
  public:
    Memory() = default;
    Memory(size_t bytes, Pages pages);
    Memory(Memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Memory();

    uint8_t* data() const { return data_; }
    size_t bytes() const { return bytes_; }

    template <typename T>
    T* as(size_t byte_offset = 0) const {
        return reinterpret_cast<T*>(data_ + byte_offset);
    }

  private:
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
};

// Sizes that multiply past size_t throw std::bad_alloc rather than wrap.
size_t checked_multiply(size_t left, size_t right);

}  // namespace nybble
