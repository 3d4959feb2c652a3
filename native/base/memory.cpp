#include "base/memory.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace nybble {
namespace {

constexpr size_t kSmallPage = 4096;
[[maybe_unused]] constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

#if defined(__SANITIZE_ADDRESS__)

// From the heap instead, whose ends AddressSanitizer watches.
Memory::Memory(size_t bytes, Pages) {
    if (bytes == 0) return;
    void* address = nullptr;
    if (posix_memalign(&address, kSmallPage, bytes) != 0) throw std::bad_alloc();
    std::memset(address, 0, bytes);
    data_ = static_cast<uint8_t*>(address);
    bytes_ = bytes;
}

Memory::~Memory() { std::free(data_); }

#else

Memory::Memory(size_t bytes, Pages pages) {
    if (bytes == 0) return;
    // Over-allocate by one huge page so that the start can be aligned to one: madvise works on whole huge pages only.
    const bool huge = pages == Pages::huge && bytes >= kHugePage;
    const size_t mapped = huge ? round_up(bytes, kHugePage) + kHugePage : round_up(bytes, kSmallPage);
    if (mapped < bytes) throw std::bad_alloc();
    void* address = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    auto* start = static_cast<uint8_t*>(address);
    bytes_ = mapped;
    if (huge) {
        auto* aligned = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(start), kHugePage));
        bytes_ = round_up(bytes, kHugePage);
        if (aligned != start) munmap(start, static_cast<size_t>(aligned - start));
        uint8_t* end = start + mapped;
        if (aligned + bytes_ != end) munmap(aligned + bytes_, static_cast<size_t>(end - aligned - bytes_));
        start = aligned;
        madvise(start, bytes_, MADV_HUGEPAGE);
    }
    data_ = start;
}

Memory::~Memory() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

#endif

size_t checked_multiply(size_t left, size_t right) {
    size_t product = 0;
    if (__builtin_mul_overflow(left, right, &product)) throw std::bad_alloc();
    return product;
}

}  // namespace nybble
