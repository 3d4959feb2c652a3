// memcpy and memset for the emulator alone, which compilers call unasked. Those of a C library may use vectors, and
// these hold the interrupted program's values.

#include <cstddef>
#include <cstdint>

// Makes of a loop what it is written as, and not a call of these functions.
#define NYBBLE_KEEP_LOOP __asm__ volatile("" ::: "memory")

extern "C" void* memcpy(void* to, const void* from, size_t bytes) {
    auto* target = static_cast<uint8_t*>(to);
    const auto* source = static_cast<const uint8_t*>(from);
    for (; bytes != 0; --bytes) {
        *target++ = *source++;
        NYBBLE_KEEP_LOOP;
    }
    return to;
}

extern "C" void* memset(void* to, int value, size_t bytes) {
    for (auto* target = static_cast<uint8_t*>(to); bytes != 0; --bytes) {
        *target++ = static_cast<uint8_t>(value);
        NYBBLE_KEEP_LOOP;
    }
    return to;
}
