#include "ime/instruction.hpp"

#include <cstdio>
#include <cstring>

namespace nybble::ime {

namespace {

constexpr uint32_t kCustom1 = 0x2b;
constexpr const char* kNames[kInstructions] = {
    "smt.vmadotu i8",    "smt.vmadotus i8",    "smt.vmadotsu i8",    "smt.vmadot i8",     //
    "smt.vmadotu i4",    "smt.vmadotus i4",    "smt.vmadotsu i4",    "smt.vmadot i4",     //
    "smt.vmadot1u i8",   "smt.vmadot1us i8",   "smt.vmadot1su i8",   "smt.vmadot1 i8",    //
    "smt.vmadot2u i8",   "smt.vmadot2us i8",   "smt.vmadot2su i8",   "smt.vmadot2 i8",    //
    "smt.vmadot3u i8",   "smt.vmadot3us i8",   "smt.vmadot3su i8",   "smt.vmadot3 i8",    //
    "smt.vmadotu.sp i8", "smt.vmadotus.sp i8", "smt.vmadotsu.sp i8", "smt.vmadot.sp i8",  //
    "smt.vmadotu.sp i4", "smt.vmadotus.sp i4", "smt.vmadotsu.sp i4", "smt.vmadot.sp i4",  //
    "smt.vmadotu.hp i8", "smt.vmadotus.hp i8", "smt.vmadotsu.hp i8", "smt.vmadot.hp i8",  //
    "smt.vmadotu.hp i4", "smt.vmadotus.hp i4", "smt.vmadotsu.hp i4", "smt.vmadot.hp i4",  //
    "smt.vfwmadot",      "smt.vfwmadot1",      "smt.vfwmadot2",      "smt.vfwmadot3",     //
    "smt.vpack.vv",      "smt.vupack.vv",      "smt.vnpack.vv",      "smt.vnspack.vv",    //
    "smt.vnpack4.vv",    "smt.vnspack4.vv",
};
// Where each group starts in kNames. Within one, variants follow the encoding of signs: u, us, su, (both signed).
constexpr int kMatrix = 0, kSlide = 8, kSparse = 20, kScaled = 28, kFloats = 36, kPack = 40, kNarrow = 42;

void set_signs(Instruction& in, unsigned code) {
    in.a_signed = (code & 2) != 0;
    in.b_signed = (code & 1) != 0;
}

// Bit 31 set: matrices of integers. Bits 30:29 are the type, 28:26 the class.
std::optional<Instruction> decode_integers(Instruction in, uint32_t word) {
    const unsigned type = (word >> 29) & 3, group = (word >> 26) & 7, funct3 = (word >> 12) & 7;
    if (type < 2) return std::nullopt;
    in.bits = type == 2 ? 4 : 8;
    const int narrow = in.bits == 4 ? 4 : 0;
    const bool bit25 = (word >> 25) & 1;
    in.vd_registers = 2;
    switch (group) {
        case 0:  // vmadot
            if (!bit25 || funct3 > 3) return std::nullopt;
            in.operation = Operation::matrix;
            set_signs(in, funct3);
            in.index = kMatrix + narrow + static_cast<int>(funct3);
            return in;
        case 1: {  // vmadot1, 2, 3: vs1 is even, so its lowest bit is the upper one of the slide
            const unsigned slide = ((in.vs1 & 1u) << 1) | (funct3 >> 2);
            if (!bit25 || in.bits != 8 || slide == 3) return std::nullopt;
            in.operation = Operation::matrix;
            in.slide = static_cast<uint8_t>(slide + 1);
            in.vs1 &= 30;
            in.vs1_registers = 2;
            set_signs(in, funct3 & 3);
            in.index = kSlide + static_cast<int>(slide * 4 + (funct3 & 3));
            return in;
        }
        case 2: {  // .sp: the lowest bits of vs1 and vd are imm2
            const unsigned segment = ((in.vs1 & 1u) << 1) | (in.vd & 1u);
            if (funct3 > 3 || (in.bits == 4 && segment > 1)) return std::nullopt;
            in.operation = Operation::sparse;
            in.immediate = static_cast<uint8_t>(segment);
            in.parameters = bit25;
            in.vs1 &= 30;
            in.vd &= 30;
            in.vs1_registers = 2;
            set_signs(in, funct3);
            in.index = kSparse + narrow + static_cast<int>(funct3);
            return in;
        }
        case 3:
        case 4:
        case 5:
        case 6: {  // .hp: the class is the signs
            constexpr unsigned kSigns[] = {0, 3, 2, 1};
            const unsigned signs = kSigns[group - 3];
            in.operation = Operation::scaled;
            in.immediate = static_cast<uint8_t>(funct3);
            in.parameters = bit25;
            in.vd_registers = 1;
            set_signs(in, signs);
            in.index = kScaled + narrow + static_cast<int>(signs);
            return in;
        }
        default: return std::nullopt;
    }
}

bool overlap(unsigned a, unsigned a_count, unsigned b, unsigned b_count) { return a < b + b_count && b < a + a_count; }

}  // namespace

std::optional<Instruction> decode(uint32_t word) {
    if ((word & 0x7f) != kCustom1) return std::nullopt;
    Instruction in{};
    in.vd = (word >> 7) & 31;
    in.vs1 = (word >> 15) & 31;
    in.vs2 = (word >> 20) & 31;
    in.vd_registers = in.vs1_registers = 1;
    const unsigned funct3 = (word >> 12) & 7, funct7 = word >> 25;
    switch (funct7) {
        case 0x4f:  // vfwmadot, 1, 2, 3
            if (funct3 < 4) return std::nullopt;
            in.operation = Operation::floats;
            in.slide = static_cast<uint8_t>(funct3 - 4);
            in.vd_registers = 2;
            in.vs1_registers = in.slide ? 2 : 1;
            in.index = kFloats + in.slide;
            return in;
        case 0x33:
            in.operation = funct3 < 4 ? Operation::pack : Operation::unpack;
            in.immediate = funct3 & 3;
            in.vd_registers = 2;
            in.index = kPack + (funct3 >> 2);
            return in;
        case 0x31:
        case 0x21:
            in.operation = funct7 == 0x31 ? Operation::narrow : Operation::narrow_to_nibbles;
            in.immediate = funct3 & 3;
            in.saturating = funct3 > 3;
            in.index = kNarrow + (funct7 == 0x31 ? 0 : 2) + (funct3 >> 2);
            return in;
        default: return word >> 31 ? decode_integers(in, word) : std::nullopt;
    }
}

const char* why_illegal(const Instruction& in, Profile profile, uint64_t vtype) {
    if (profile == Profile::a60 && (in.operation != Operation::matrix || in.bits != 8)) {
        return "the A60 core has 8-bit vmadot and its slides only";
    }
    if (vtype >> 63) return "vtype is not set (vill)";
    if ((vtype & 7) != 0) return "LMUL must be 1";
    if (in.vd_registers == 2 && in.vd % 2) return "vd must be even";
    if (in.vs1_registers == 2 && in.vs1 % 2) return "vs1 must be even";
    switch (in.operation) {
        case Operation::pack:
        case Operation::unpack:
        case Operation::narrow_to_nibbles: return nullptr;
        case Operation::narrow: {
            const unsigned source_bits = 16u << ((vtype >> 3) & 7);
            return source_bits > 64 || source_bits > 32u << in.immediate
                       ? "elements of twice SEW must fit in 64 bits and in the unit of packing"
                       : nullptr;
        }
        case Operation::sparse:
            if (overlap(in.vd, 2, in.parameters, 1)) return "vd must not overlap the register of masks";
            break;
        default: break;
    }
    if (overlap(in.vd, in.vd_registers, in.vs1, in.vs1_registers)) return "vd must not overlap vs1";
    if (overlap(in.vd, in.vd_registers, in.vs2, 1)) return "vd must not overlap vs2";
    return nullptr;
}

const char* name_of(int index) { return kNames[index]; }

void disassemble(const Instruction& in, char* text, size_t size) {
    const char* name = kNames[in.index];
    const int length = static_cast<int>(std::strcspn(name, " "));
    char operands[24] = "";
    switch (in.operation) {
        case Operation::matrix: std::snprintf(operands, sizeof operands, ", i%u", in.bits); break;
        case Operation::sparse:
        case Operation::scaled:
            std::snprintf(operands, sizeof operands, ", v%u, %u, i%u", in.parameters, in.immediate, in.bits);
            break;
        case Operation::floats: break;
        default: std::snprintf(operands, sizeof operands, ", %u", in.immediate); break;
    }
    std::snprintf(text, size, "%.*s v%u, v%u, v%u%s", length, name, in.vd, in.vs1, in.vs2, operands);
}

}  // namespace nybble::ime
