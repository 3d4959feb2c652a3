// SpacemiT's matrix instructions (IME) on the core a thread runs on.
#pragma once

#include <cstddef>

namespace nybble {

enum class MatrixUnit { none, ime1, ime2 };

inline const char* name_of(MatrixUnit unit) {
    return unit == MatrixUnit::ime1 ? "ime1" : unit == MatrixUnit::ime2 ? "ime2" : "none";
}

// What the core under this thread executes, and executes right: ime1 is int8 at VLEN 256, ime2 adds int4 and fp16
// scales at VLEN 1024. Nothing tells without trying: on a K1 four of eight cores have it, and all eight describe
// themselves alike. So the instructions run once, SIGILL is caught, and the results are compared with scalar
// arithmetic. To be asked on a thread that stays on its core, and not on the processors of others, where the words may
// mean anything. `vector_bits` is the VLEN there.
MatrixUnit probe_matrix_unit(size_t vector_bits);

// What the emulator (docs/ime-emulator.md) lends to every core; none where it is not loaded.
MatrixUnit emulated_matrix_unit(size_t vector_bits);

}  // namespace nybble
