// The body of run.cpp, compiled once for each instruction set: S is what is computed in.
// clang-format off: each needs those before it
#include "../simd/math.h"
#include "functions.h"
#include "operations.h"
#include "columns.h"
#include "philox.h"
// clang-format on

namespace reformer::REFORMER_ISA {

using epilogue::Cut;
using epilogue::kRoom;
using epilogue::Partials;
using epilogue::Step;
using epilogue::Steps;

// A program's values that don't change from element to element, for each channel.
template <class S>
class Table {
 public:
  Table(const EpilogueCall& call, const Steps& steps)
      : pitch_((call.shape.channels + kLanes<S> - 1) / kLanes<S> * kLanes<S>),
        values_(size_t(pitch_) * call.program.nodes.size()) {
    for (size_t i = 0; i < call.program.nodes.size(); ++i)
      if (steps.varies[i] != Varies::elements) compute(call, int32_t(i));
  }
  const S* of(int32_t node) const { return values_.data() + node * pitch_; }

 private:
  void compute(const EpilogueCall& call, int32_t i) {
    const EpilogueNode& node = call.program.nodes[size_t(i)];
    S* const to = values_.data() + i * pitch_;
    const auto fill = [&](S with) { std::fill(to, to + pitch_, with); };
    switch (node.op) {
      case EpilogueOp::channel: return read(to, call.inputs[size_t(node.input)], 0, call.shape.channels);
      case EpilogueOp::constant: return fill(S(node.value));
      case EpilogueOp::rows: return fill(S(call.shape.rows()));
      case EpilogueOp::columns: return fill(S(call.shape.channels));
      case EpilogueOp::scalar: {
        S one;
        read(&one, call.inputs[size_t(node.input)], 0, 1);
        return fill(one);
      }
      default: {
        const S* from[3] = {};
        for (int j = 0; j < operands(node.op); ++j) from[j] = of(node.operands[j]);
        operate(node.op, to, from[0], from[1], from[2], pitch_);
      }
    }
  }

  int64_t pitch_;
  std::vector<S> values_;
};

template <class S>
class Unit {
 public:
  Unit(const EpilogueCall& call, const Cut& cut, const Steps& steps, const Table<S>& table,
       std::vector<Partials>& partials, S* buffers, Columns<S>* columns)
      : call_(call),
        cut_(cut),
        steps_(steps),
        table_(table),
        partials_(partials),
        buffers_(buffers),
        columns_(columns),
        where_(call.program.nodes.size()) {}

  void run(int64_t unit) {
    const int64_t range = unit % cut_.ranges, piece = unit / cut_.ranges % cut_.pieces;
    picture_ = unit / cut_.ranges / cut_.pieces;
    column_ = piece * cut_.piece;
    width_ = std::min(cut_.piece, cut_.width - column_);
    const int64_t end = std::min(cut_.lines, (range + 1) * cut_.range);
    for (size_t r = 0; r < partials_.size(); ++r)
      if (partials_[r].side == Partials::Side::across) columns_[r].begin(partials_[r].kind);
    for (line_ = range * cut_.range; line_ < end; line_ += cut_.block_lines) {
      lines_ = std::min(cut_.block_lines, end - line_);
      compute(line_ == range * cut_.range);
      keep(unit, piece);
    }
    for (size_t r = 0; r < partials_.size(); ++r)
      if (partials_[r].side == Partials::Side::across)
        columns_[r].finish(partials_[r].kind, width_, end - range * cut_.range,
                           partials_[r].of_column(cut_, picture_, range, column_));
  }

 private:
  int64_t count() const { return lines_ * width_; }
  // Of whole vectors; buffers have room for them.
  int64_t padded() const { return (count() + kLanes<S> - 1) / kLanes<S> * kLanes<S>; }
  S* buffer(int32_t node) const { return buffers_ + steps_.buffer[size_t(node)] * kRoom; }
  const S* value(int32_t node) const { return where_[size_t(node)]; }
  // Of the block's first element, in the result.
  int64_t offset() const { return (picture_ * cut_.lines + line_) * cut_.width + column_; }
  const EpilogueOperand& input(const EpilogueNode& node) const { return call_.inputs[size_t(node.input)]; }

  // first: of the unit's blocks.
  void compute(bool first) {
    for (size_t i = 0; i < steps_.varies.size(); ++i) {
      if (steps_.varies[i] == Varies::elements || steps_.buffer[i] < 0) continue;
      where_[i] = buffer(int32_t(i));
      if (first || (steps_.varies[i] == Varies::channels && !cut_.channels_along))
        take(buffer(int32_t(i)), table_.of(int32_t(i)));
    }
    for (const Step& step : steps_.steps) {
      const EpilogueNode& node = call_.program.nodes[size_t(step.node)];
      if (!operands(node.op)) {
        where_[size_t(step.node)] = leaf(node, buffer(step.node));
        continue;
      }
      const S* from[3] = {};
      for (int j = 0; j < 3; ++j)
        if (step.operands[j] >= 0) from[j] = value(step.operands[j]);
      S* const to = result(step.node);
      where_[size_t(step.node)] = to;
      if (step.several == Several::one)
        operate(node.op, to, from[0], from[1], from[2], padded());
      else
        operate(step.several, to, from[0], from[1], from[2], padded());
    }
  }

  // Where a step writes: to the tensor that it is stored in, if whole vectors end where the block does.
  S* result(int32_t node) const {
    if (padded() == count())
      for (size_t i = 0; i < call_.program.outputs.size(); ++i) {
        const EpilogueOutput& output = call_.program.outputs[i];
        if (output.node == node && output.is_by_element() && is_computed_in(stored_type(output)))
          return static_cast<S*>(call_.outputs[i]) + offset();
      }
    return buffer(node);
  }
  Stored stored_type(const EpilogueOutput& output) const {
    return output.type == Stored::result ? call_.type : output.type;
  }
  static bool is_computed_in(Stored type) { return type == (std::is_same_v<S, float> ? Stored::fp32 : Stored::fp64); }
  // A tensor's elements where they are, if nothing is written there and whole vectors can be read, or a copy.
  const S* in_place_or(const EpilogueOperand& from, S* copy) const {
    const bool inside = offset() + padded() <= call_.shape.numel();
    if (inside && is_computed_in(from.type) &&
        std::find(call_.outputs.begin(), call_.outputs.end(), from.data) == call_.outputs.end())
      return static_cast<const S*>(from.data) + offset();
    read(copy, from, offset(), count());
    return copy;
  }

  // A value of the table, for the lines of a block. Those of NHWC are the same in all of a unit's.
  void take(S* to, const S* of_channel) const {
    for (int64_t line = 0; line < (cut_.channels_along ? cut_.block_lines : lines_); ++line) {
      S* const there = to + line * width_;
      if (cut_.channels_along)
        std::copy(of_channel + column_, of_channel + column_ + width_, there);
      else
        std::fill(there, there + width_, of_channel[line_ + line]);
    }
  }

  const S* leaf(const EpilogueNode& node, S* to) const {
    switch (node.op) {
      case EpilogueOp::acc: return in_place_or({call_.acc, call_.type}, to);
      case EpilogueOp::full: return in_place_or(input(node), to);
      case EpilogueOp::random: draw_all(to, *static_cast<const uint64_t*>(input(node).data)); return to;
      default: break;  // row
    }
    for (int64_t line = 0; line < lines_; ++line) {
      S* const there = to + line * width_;
      if (cut_.channels_along) {
        S one;
        read(&one, input(node), line_ + line, 1);
        std::fill(there, there + width_, one);
      } else {
        read(there, input(node), picture_ * cut_.width + column_, width_);
      }
    }
    return to;
  }

  void draw_all(S* to, uint64_t key) const {
    const int64_t channels = call_.shape.channels;
    if (cut_.channels_along && width_ == channels) return draw(to, key, line_ * channels, count());
    for (int64_t line = 0; line < lines_; ++line) {
      S* const there = to + line * width_;
      if (cut_.channels_along)
        draw(there, key, (line_ + line) * channels + column_, width_);
      else
        draw(there, key, (picture_ * cut_.width + column_) * channels + line_ + line, width_, channels);
    }
  }

  // Reductions first: what is stored may take acc's place.
  void keep(int64_t unit, int64_t piece) {
    for (size_t r = 0; r < partials_.size(); ++r) {
      Partials& partials = partials_[r];
      const S* const from = value(partials.node);
      if (partials.side == Partials::Side::across) {
        columns_[r].add(partials.kind, from, lines_, width_);
        continue;
      }
      for (int64_t line = 0; line < lines_; ++line) {
        Partial* const to = partials.side == Partials::Side::all
                                ? &partials.values[size_t(unit)]
                                : partials.of_line(cut_, picture_, piece, line_ + line);
        to->add(partials.kind, along(partials.kind, from + line * width_));
      }
    }
    for (size_t i = 0; i < call_.program.outputs.size(); ++i) {
      const EpilogueOutput& output = call_.program.outputs[i];
      if (!output.is_by_element()) continue;
      const void* const there = static_cast<const S*>(call_.outputs[i]) + offset();
      if (is_computed_in(stored_type(output)) && there == value(output.node)) continue;
      write(call_.outputs[i], stored_type(output), offset(), value(output.node), count());
    }
  }

  // Of a line of the block.
  Partial along(Reduction kind, const S* from) const {
    Partial result = Partial::none(kind);
    if (kind == Reduction::max) {
      for (int64_t i = 0; i < width_; ++i) result.add(kind, {1, double(from[i]), 0});
      return result;
    }
    // Moments of the differences from the first element.
    const S origin = kind == Reduction::moments ? from[0] : S(0);
    constexpr int kSums = 8;
    constexpr int64_t kAtOnce = kSums * kLanes<S>;
    Vec<S> sums[kSums] = {}, squares[kSums] = {};
    const auto add = [&](int sum, int64_t i) {
      const Vec<S> difference = load<S>(from + i) - origin;
      sums[sum] += difference;
      if (kind == Reduction::moments) squares[sum] = fma<S>(difference, difference, squares[sum]);
    };
    int64_t i = 0;
    for (; i + kAtOnce <= width_; i += kAtOnce)
#pragma GCC unroll 8
      for (int j = 0; j < kSums; ++j) add(j, i + j * kLanes<S>);
    for (int j = 0; i + kLanes<S> <= width_; i += kLanes<S>, ++j) add(j, i);
    double sum = total(sums), square = kind == Reduction::moments ? total(squares) : 0;
    for (; i < width_; ++i) {
      const double difference = double(from[i]) - double(origin);
      sum += difference;
      square += difference * difference;
    }
    if (kind == Reduction::sum) return {0, sum, 0};
    return moments(double(width_), double(origin), sum, square);
  }

  template <int kCount>
  static double total(const Vec<S> (&sums)[kCount]) {
    double all = 0;
    for (int j = 0; j < kCount; j += 4) {  // few enough that fp32 rounds as little as above
      const Vec<S> four = (sums[j] + sums[j + 1]) + (sums[j + 2] + sums[j + 3]);
      for (int i = 0; i < kLanes<S>; ++i) all += double(four[i]);
    }
    return all;
  }

  const EpilogueCall& call_;
  const Cut& cut_;
  const Steps& steps_;
  const Table<S>& table_;
  std::vector<Partials>& partials_;
  S* const buffers_;
  Columns<S>* const columns_;    // of each reduction
  std::vector<const S*> where_;  // the block's value of each node
  int64_t picture_ = 0, line_ = 0, lines_ = 0, column_ = 0, width_ = 0;
};

// The outputs, but for the reductions' last sums, and the factors of these.
template <class S>
std::vector<std::vector<S>> run_units(const EpilogueCall& call, const Cut& cut, const Steps& steps,
                                      std::vector<Partials>& partials, int64_t grain) {
  const Table<S> table(call, steps);
  parallel_for(cut.units(), grain, [&](int64_t begin, int64_t end) {
    const int64_t buffers = steps.buffers * kRoom * int64_t(sizeof(S));
    char* const scratch = static_cast<char*>(thread_scratch(buffers + int64_t(partials.size() * sizeof(Columns<S>))));
    S* const values = reinterpret_cast<S*>(scratch);
    std::fill(values, values + steps.buffers * kRoom, S(0));
    Unit<S> unit(call, cut, steps, table, partials, values, reinterpret_cast<Columns<S>*>(scratch + buffers));
    for (int64_t i = begin; i < end; ++i) unit.run(i);
  });
  for (size_t i = 0; i < call.program.outputs.size(); ++i)
    if (const EpilogueOutput& output = call.program.outputs[i]; output.is_by_channel())
      write(call.outputs[i], output.type == Stored::result ? call.type : output.type, 0, table.of(output.node),
            call.shape.channels);
  std::vector<std::vector<S>> factors;
  for (const EpilogueOutput& output : call.program.outputs)
    factors.emplace_back(table.of(std::max(output.factor, 0)),
                         table.of(std::max(output.factor, 0)) + (output.factor < 0 ? 0 : call.shape.channels));
  return factors;
}

}  // namespace reformer::REFORMER_ISA
