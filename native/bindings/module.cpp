// nybble._native: kernels, packing, programs, ceilings and byte pairs as Python sees them.

#include "bindings/arrays.hpp"

NB_MODULE(_native, m) {
    // A program may end with a model in its hands; nanobind would complain on standard error.
    nanobind::set_leak_warnings(false);
    nybble::bind_kernels(m);
    nybble::bind_weights(m);
    nybble::bind_weight_files(m);
    nybble::bind_programs(m);
    nybble::bind_measure(m);
    nybble::bind_text(m);
}
