// nybble._ime: what SpacemiT's matrix instructions compute, for tests and tools on any machine.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "ime/semantics.hpp"

namespace nb = nanobind;
using namespace nybble::ime;

namespace {

using Registers = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Profile profile_named(const std::string& name) {
    if (name == "A60") return Profile::a60;
    if (name == "A100") return Profile::a100;
    throw nb::value_error("a profile is A60 or A100");
}

std::vector<std::string> instructions() {
    std::vector<std::string> names;
    for (int i = 0; i < kInstructions; ++i) names.emplace_back(name_of(i));
    return names;
}

std::optional<std::string> name(uint32_t word) {
    const auto in = decode(word);
    return in ? std::optional<std::string>(name_of(in->index)) : std::nullopt;
}

std::optional<std::string> assembly(uint32_t word) {
    const auto in = decode(word);
    if (!in) return std::nullopt;
    char text[64];
    disassemble(*in, text, sizeof text);
    return text;
}

std::optional<std::string> run(const std::string& profile_name, uint32_t word, uint64_t vtype, bool bf16,
                               const Registers& registers) {
    const Profile profile = profile_named(profile_name);
    const size_t bytes = register_bytes(profile);
    if (registers.shape(0) != 32 || registers.shape(1) != bytes) {
        throw nb::value_error("registers must be 32 rows of VLEN bits");
    }
    const auto in = decode(word);
    if (!in) return "not an IME instruction";
    if (const char* reason = why_illegal(*in, profile, vtype)) return reason;
    uint8_t* const all = registers.data();
    execute(*in, profile, 8u << ((vtype >> 3) & 7), bf16,
            {all + in->vs1 * bytes, all + in->vs2 * bytes, all + in->parameters * bytes, all + in->vd * bytes});
    return std::nullopt;
}

}  // namespace

NB_MODULE(_ime, m) {
    m.def("instructions", &instructions);
    m.def("name", &name);
    m.def("assembly", &assembly);
    m.def("run", &run);
}
