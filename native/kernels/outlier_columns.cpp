#include "kernels/outlier_columns.hpp"

#include <algorithm>
#include <cstring>

#include "base/memory.hpp"

namespace nybble {
namespace {

size_t most_outliers(size_t features, size_t rows) {
    return round_up(features, kActivationGroup) / kActivationGroup * kGroupOutliers * rows;
}

}  // namespace

size_t outlier_columns_bytes(size_t features, size_t rows) {
    const size_t most = most_outliers(features, rows), width = round_up(features, kActivationGroup);
    return most * sizeof(OutlierColumn::Entry) + std::min(most, width) * sizeof(OutlierColumn) +
           width * sizeof(uint32_t);
}

OutlierColumns sort_outliers(const QuantisedRows& rows, size_t begin, size_t end, uint8_t* memory) {
    const size_t width = rows.groups * kActivationGroup, most = most_outliers(width, end - begin);
    auto* entries = reinterpret_cast<OutlierColumn::Entry*>(memory);
    auto* columns = reinterpret_cast<OutlierColumn*>(entries + most);
    auto* places = reinterpret_cast<uint32_t*>(columns + std::min(most, width));
    const auto for_each = [&](const auto& function) {
        for (size_t row = begin; row < end; ++row) {
            const Outlier* outlier = rows.outliers_of(row);
            for (const Outlier* last = outlier + rows.outlier_counts[row]; outlier != last; ++outlier) {
                function(places[outlier->block * rows.block + outlier->place], row, outlier->value);
            }
        }
    };
    // How many outliers a feature has; then where the next of them goes.
    std::memset(places, 0, width * sizeof(uint32_t));
    for_each([](uint32_t& count, size_t, float) { ++count; });
    size_t count = 0;
    const OutlierColumn::Entry* at = entries;
    for (size_t feature = 0; feature < width; ++feature) {
        if (places[feature] == 0) continue;
        const OutlierColumn::Entry* next = at + places[feature];
        columns[count++] = {static_cast<uint32_t>(feature / rows.block), static_cast<uint32_t>(feature % rows.block),
                            at, next};
        places[feature] = static_cast<uint32_t>(at - entries);
        at = next;
    }
    for_each([&](uint32_t& place, size_t row, float value) {
        entries[place++] = {static_cast<uint32_t>(row - begin), value};
    });
    return {columns, count};
}

}  // namespace nybble
