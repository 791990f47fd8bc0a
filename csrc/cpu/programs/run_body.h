// The body of run.cpp, compiled once for each instruction set: S is what is computed in.
// clang-format off: each needs those before it
#include "cpu/simd/math.h"
#include "functions.h"
#include "operations.h"
#include "columns.h"
#include "philox.h"
// clang-format on

namespace reformer::REFORMER_ISA {

using programs::kRoom;
using programs::Partials;
using programs::Partition;
using programs::Step;
using programs::Steps;

// A program's values that don't change from element to element, for each channel.
template <class S>
class Table {
 public:
  Table(const ProgramCall& call, const Steps& steps)
      : pitch_((call.shape.channels + kLanes<S> - 1) / kLanes<S> * kLanes<S>),
        values_(size_t(pitch_) * call.program.nodes.size()) {
    for (size_t i = 0; i < call.program.nodes.size(); ++i)
      if (steps.varies[i] != Varies::elements) compute(call, int32_t(i));
  }
  const S* of(int32_t node) const { return values_.data() + node * pitch_; }

 private:
  void compute(const ProgramCall& call, int32_t i) {
    const ProgramNode& node = call.program.nodes[size_t(i)];
    S* const to = values_.data() + i * pitch_;
    const auto fill = [&](S with) { std::fill(to, to + pitch_, with); };
    switch (node.op) {
      case ProgramOp::channel: return read(to, call.inputs[size_t(node.input)], 0, call.shape.channels);
      case ProgramOp::constant: return fill(S(node.value));
      case ProgramOp::rows: return fill(S(call.shape.rows()));
      case ProgramOp::columns: return fill(S(call.shape.channels));
      case ProgramOp::scalar: {
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
  Unit(const ProgramCall& call, const Partition& partition, const Steps& steps, const Table<S>& table,
       std::vector<Partials>& partials, S* buffers, Columns<S>* columns)
      : call_(call),
        partition_(partition),
        steps_(steps),
        table_(table),
        partials_(partials),
        buffers_(buffers),
        columns_(columns),
        where_(call.program.nodes.size()) {}

  void run(int64_t unit) {
    const int64_t range = unit % partition_.ranges, piece = unit / partition_.ranges % partition_.pieces;
    image_ = unit / partition_.ranges / partition_.pieces;
    column_ = piece * partition_.piece;
    width_ = std::min(partition_.piece, partition_.width - column_);
    const int64_t end = std::min(partition_.lines, (range + 1) * partition_.range);
    for (size_t r = 0; r < partials_.size(); ++r)
      if (partials_[r].side == Partials::Side::across) columns_[r].begin(partials_[r].kind);
    for (line_ = range * partition_.range; line_ < end; line_ += partition_.block_lines) {
      lines_ = std::min(partition_.block_lines, end - line_);
      compute(line_ == range * partition_.range);
      keep(unit, piece);
    }
    for (size_t r = 0; r < partials_.size(); ++r)
      if (partials_[r].side == Partials::Side::across)
        columns_[r].finish(partials_[r].kind, width_, end - range * partition_.range,
                           partials_[r].of_column(partition_, image_, range, column_));
  }

 private:
  int64_t count() const { return lines_ * width_; }
  // The count rounded up to whole vectors; buffers have room for them.
  int64_t padded() const { return (count() + kLanes<S> - 1) / kLanes<S> * kLanes<S>; }
  S* buffer(int32_t node) const { return buffers_ + steps_.buffer[size_t(node)] * kRoom; }
  const S* value(int32_t node) const { return where_[size_t(node)]; }
  // The place of the block's first element in the result.
  int64_t offset() const { return (image_ * partition_.lines + line_) * partition_.width + column_; }
  const ProgramOperand& input(const ProgramNode& node) const { return call_.inputs[size_t(node.input)]; }

  // first: of the unit's blocks.
  void compute(bool first) {
    for (size_t i = 0; i < steps_.varies.size(); ++i) {
      if (steps_.varies[i] == Varies::elements || steps_.buffer[i] < 0) continue;
      where_[i] = buffer(int32_t(i));
      if (first || (steps_.varies[i] == Varies::channels && !partition_.channels_along))
        take(buffer(int32_t(i)), table_.of(int32_t(i)));
    }
    for (const Step& step : steps_.steps) {
      const ProgramNode& node = call_.program.nodes[size_t(step.node)];
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
        const ProgramOutput& output = call_.program.outputs[i];
        if (output.node == node && output.is_by_element() && is_computed_in(stored_type(output)))
          return static_cast<S*>(call_.outputs[i]) + offset();
      }
    return buffer(node);
  }
  Stored stored_type(const ProgramOutput& output) const {
    return output.type == Stored::result ? call_.type : output.type;
  }
  static bool is_computed_in(Stored type) { return type == (std::is_same_v<S, float> ? Stored::fp32 : Stored::fp64); }
  // A tensor's elements where they are, if nothing is written there and whole vectors can be read, or a copy.
  const S* in_place_or(const ProgramOperand& from, S* copy) const {
    const bool inside = offset() + padded() <= call_.shape.numel();
    if (inside && is_computed_in(from.type) &&
        std::find(call_.outputs.begin(), call_.outputs.end(), from.data) == call_.outputs.end())
      return static_cast<const S*>(from.data) + offset();
    read(copy, from, offset(), count());
    return copy;
  }

  // A value of the table, for the lines of a block. Those of NHWC are the same in all of a unit's.
  void take(S* to, const S* of_channel) const {
    for (int64_t line = 0; line < (partition_.channels_along ? partition_.block_lines : lines_); ++line) {
      S* const there = to + line * width_;
      if (partition_.channels_along)
        std::copy(of_channel + column_, of_channel + column_ + width_, there);
      else
        std::fill(there, there + width_, of_channel[line_ + line]);
    }
  }

  const S* leaf(const ProgramNode& node, S* to) const {
    switch (node.op) {
      case ProgramOp::acc: return in_place_or({call_.acc, call_.type}, to);
      case ProgramOp::full: return in_place_or(input(node), to);
      case ProgramOp::random: draw_all(to, *static_cast<const uint64_t*>(input(node).data)); return to;
      default: break;  // row
    }
    for (int64_t line = 0; line < lines_; ++line) {
      S* const there = to + line * width_;
      if (partition_.channels_along) {
        S one;
        read(&one, input(node), line_ + line, 1);
        std::fill(there, there + width_, one);
      } else {
        read(there, input(node), image_ * partition_.width + column_, width_);
      }
    }
    return to;
  }

  void draw_all(S* to, uint64_t key) const {
    const int64_t channels = call_.shape.channels;
    if (partition_.channels_along && width_ == channels) return draw(to, key, line_ * channels, count());
    for (int64_t line = 0; line < lines_; ++line) {
      S* const there = to + line * width_;
      if (partition_.channels_along)
        draw(there, key, (line_ + line) * channels + column_, width_);
      else
        draw(there, key, (image_ * partition_.width + column_) * channels + line_ + line, width_, channels);
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
                                : partials.of_line(partition_, image_, piece, line_ + line);
        to->add(partials.kind, along(partials.kind, from + line * width_));
      }
    }
    for (size_t i = 0; i < call_.program.outputs.size(); ++i) {
      const ProgramOutput& output = call_.program.outputs[i];
      if (!output.is_by_element()) continue;
      const void* const there = static_cast<const S*>(call_.outputs[i]) + offset();
      if (is_computed_in(stored_type(output)) && there == value(output.node)) continue;
      write(call_.outputs[i], stored_type(output), offset(), value(output.node), count());
    }
  }

  // The reduction of a line of the block.
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

  const ProgramCall& call_;
  const Partition& partition_;
  const Steps& steps_;
  const Table<S>& table_;
  std::vector<Partials>& partials_;
  S* const buffers_;
  Columns<S>* const columns_;    // of each reduction
  std::vector<const S*> where_;  // the block's value of each node
  int64_t image_ = 0, line_ = 0, lines_ = 0, column_ = 0, width_ = 0;
};

// The outputs, but for the reductions' last sums, and the factors of these.
template <class S>
std::vector<std::vector<S>> run_units(const ProgramCall& call, const Partition& partition, const Steps& steps,
                                      std::vector<Partials>& partials, int64_t grain) {
  const Table<S> table(call, steps);
  parallel_for(partition.units(), grain, [&](int64_t begin, int64_t end) {
    const int64_t buffers = steps.buffers * kRoom * int64_t(sizeof(S));
    char* const scratch = static_cast<char*>(thread_scratch(buffers + int64_t(partials.size() * sizeof(Columns<S>))));
    S* const values = reinterpret_cast<S*>(scratch);
    std::fill(values, values + steps.buffers * kRoom, S(0));
    Unit<S> unit(call, partition, steps, table, partials, values, reinterpret_cast<Columns<S>*>(scratch + buffers));
    for (int64_t i = begin; i < end; ++i) unit.run(i);
  });
  for (size_t i = 0; i < call.program.outputs.size(); ++i)
    if (const ProgramOutput& output = call.program.outputs[i]; output.is_by_channel())
      write(call.outputs[i], output.type == Stored::result ? call.type : output.type, 0, table.of(output.node),
            call.shape.channels);
  std::vector<std::vector<S>> factors;
  for (const ProgramOutput& output : call.program.outputs)
    factors.emplace_back(table.of(std::max(output.factor, 0)),
                         table.of(std::max(output.factor, 0)) + (output.factor < 0 ? 0 : call.shape.channels));
  return factors;
}

}  // namespace reformer::REFORMER_ISA
