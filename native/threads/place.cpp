#include "threads/place.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <string_view>
#include <sys/syscall.h>
#include <unistd.h>

namespace nybble {
namespace {

// 0, or the error.
int write_to(const std::string& path, std::string_view text) {
    const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) return errno;
    const ssize_t written = write(file, text.data(), text.size());
    const int error = written == static_cast<ssize_t>(text.size()) ? 0 : written < 0 ? errno : EIO;
    close(file);
    return error;
}

int pin_to(int cpu) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return EINVAL;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    return sched_setaffinity(0, sizeof only, &only) == 0 ? 0 : errno;
}

std::string because(const std::string& what, int error) { return what + ": " + std::strerror(error); }

std::string move_to(const Place& place) {
    const std::string cannot_move = "CPU " + std::to_string(place.cpu) + " does not take a thread";
    if (!place.is_gated) {
        const int error = pin_to(place.cpu);
        return error == 0 ? "" : because(cannot_move, error);
    }
    // Which thread is meant: some write 0 for the one that writes, some its id.
    int error = EINVAL;
    for (const std::string& thread : {std::string("0"), std::to_string(syscall(SYS_gettid))}) {
        if (const int refused = write_to(place.gate, thread)) return because(place.gate, refused);
        error = pin_to(place.cpu);
        if (error == 0) return "";
    }
    return because(cannot_move + " that wrote to " + place.gate, error);
}

}  // namespace

Arrival arrive(const Place& place) {
    Arrival arrival;
    arrival.problem = move_to(place);
    if (!arrival.problem.empty()) return arrival;
    const int here = sched_getcpu();
    if (here != place.cpu) {
        arrival.problem = "a thread for CPU " + std::to_string(place.cpu) + " runs on CPU " + std::to_string(here);
        return arrival;
    }
    arrival.cpu = here;
    arrival.vector_bits = vector_bits();
    if (place.may_have_matrix_unit) arrival.matrix_unit = probe_matrix_unit(arrival.vector_bits);
    arrival.isas = isas_here(arrival.matrix_unit);
    return arrival;
}

Arrival arrive_anywhere() {
    Arrival arrival;
    arrival.vector_bits = vector_bits();
    arrival.matrix_unit = emulated_matrix_unit(arrival.vector_bits);
    arrival.isas = isas_here(arrival.matrix_unit);
    return arrival;
}

}  // namespace nybble
