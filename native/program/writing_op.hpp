#pragma once

#include <string>
#include <utility>

#include "program/program.hpp"

namespace nybble {

// An op that writes one buffer.
class WritingOp : public Op {
  public:
    WritingOp(std::string label, View output) : Op(std::move(label)), output_(output) {}
    const View* written() const override { return &output_; }

  protected:
    View output_;
};

}  // namespace nybble
