#pragma once

#include <string>
#include <utility>

#include "program/program.hpp"

namespace nybble {

// Values that one thread has read and written before another could have joined in.
inline constexpr size_t kBriefValues = 2048;

// Of an op whose tasks are rows.
inline bool are_brief(size_t rows, size_t width) { return rows <= 1 || rows * width <= kBriefValues; }

// An op that writes one buffer.
class WritingOp : public Op {
  public:
    WritingOp(std::string label, View output) : Op(std::move(label)), output_(output) {}
    const View* written() const override { return &output_; }

  protected:
    View output_;
};

}  // namespace nybble
