// nybble._native: kernels, packing, programs and ceilings as Python sees them.

#include "bindings/arrays.hpp"

NB_MODULE(_native, m) {
    nybble::bind_kernels(m);
    nybble::bind_weights(m);
    nybble::bind_programs(m);
    nybble::bind_measure(m);
}
