// Runs kernels between two marks, for count_instructions.py, which counts what is executed between them.
//
// run_kernels [NAME:ROWS:CHANNELS:FEATURES:BLOCK:OFFSETS:STAGED | attention_ISA:ROWS:FEATURES:POSITIONS]...
// BLOCK is 1 for floats, OFFSETS 0 or 1, STAGED 1 where panels are copied before they are read. Attention is that of
// the last ROWS of POSITIONS, in two heads of FEATURES on one of an fp16 KV cache. Without arguments: lists the linear
// kernels of this build, their instruction sets and weights.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/memory.hpp"
#include "kernels/quantised_rows.hpp"
#include "kernels/registry.hpp"

using namespace nybble;

extern "C" {
[[gnu::noinline]] void nybble_counting_begins() { __asm__ volatile("" ::: "memory"); }
[[gnu::noinline]] void nybble_counting_ends() { __asm__ volatile("" ::: "memory"); }
}

namespace {

struct Case {
    const LinearEntry* entry;
    size_t rows, channels, features, block;
    bool has_offsets, is_staged;
};

Case parsed(const char* text) {
    const std::string name(text, std::strcspn(text, ":"));
    Case given{find_linear_kernel(name), 0, 0, 0, 0, false, false};
    int offsets = 0, staged = 0;
    if (given.entry == nullptr || std::sscanf(text + name.size(), ":%zu:%zu:%zu:%zu:%d:%d", &given.rows,
                                              &given.channels, &given.features, &given.block, &offsets, &staged) != 6) {
        std::fprintf(stderr, "run_kernels: no case is %s\n", text);
        std::exit(2);
    }
    given.has_offsets = offsets != 0;
    given.is_staged = staged != 0;
    return given;
}

// On zeros: what is executed does not hang on values, as long as there is no outlier.
void run(const Case& given) {
    const PackedFormat format = {given.entry->weights, given.block, given.has_offsets, false, given.entry->layout};
    const Memory packed(format.matrix_bytes(given.channels, given.features), Pages::small);
    const PackedMatrix weights(format, given.channels, given.features, packed.data(), nullptr);
    std::vector<float> x(given.rows * given.features), output(given.rows * given.channels);
    const size_t block = is_quantised(format.type) ? format.block : 32;
    const Memory memory(quantised_rows_bytes(given.features, block, format.layout, given.rows), Pages::small);
    const QuantisedRows rows = lay_out_quantised_rows(given.features, block, format.layout, given.rows, memory.data());
    const LinearArguments arguments = {
        &weights, rows, {x.data(), given.features}, {output.data(), given.channels}, nullptr, {nullptr, 0}};
    const Memory scratch(given.entry->kernel->scratch_bytes(weights), Pages::small);
    const Memory beside(weights.panel_bytes(), Pages::small);
    const auto every_panel = [&] {
        for (size_t panel = 0; panel < weights.panels(); ++panel) {
            if (given.is_staged) {
                copy_function(given.entry->isa)(weights.panel(panel), beside.data(), weights.panel_bytes());
            }
            given.entry->kernel->run(arguments, panel, 0, given.rows, scratch.data());
        }
    };
    // The emulator of IME replaces what traps the first time.
    every_panel();
    nybble_counting_begins();
    every_panel();
    nybble_counting_ends();
}

void attend(const char* text) {
    char name[16];
    size_t rows, head_dim, positions;
    if (std::sscanf(text, "attention_%15[^:]:%zu:%zu:%zu", name, &rows, &head_dim, &positions) != 4) std::exit(2);
    const Isa isa = *std::find_if(available_isas().begin(), available_isas().end(),
                                  [&](Isa available) { return name_of(available) == name; });
    const KVBlock block = {KVType::fp16, head_dim};
    constexpr size_t group = 2;
    const Memory cache((positions / kBlockPositions + 2) * block.bytes(), Pages::small);
    std::vector<float> query(rows * group * head_dim), output(query.size());
    const AttentionArguments arguments = {
        cache.data(),  block.bytes(),    block, group, positions - rows, rows, query.data(), group * head_dim,
        output.data(), group * head_dim, 1.0f};
    const RowKernels& kernels = row_kernels(isa);
    const Memory scratch(kernels.attention_scratch_bytes(block.padded_head_dim(), rows * group), Pages::small);
    nybble_counting_begins();
    kernels.attention(arguments, scratch.data());
    nybble_counting_ends();
}

}  // namespace

int main(int count, char** arguments) {
    if (count == 1) {
        for (const LinearEntry& entry : linear_kernels()) {
            std::printf("%s %s %s\n", entry.name.c_str(), name_of(entry.isa).data(), name_of(entry.weights));
        }
    }
    for (int i = 1; i < count; ++i) {
        std::strncmp(arguments[i], "attention_", 10) == 0 ? attend(arguments[i]) : run(parsed(arguments[i]));
    }
}
