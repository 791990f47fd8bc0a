// The body of run.cpp, compiled once for each instruction set. S is the type of computation.
// clang-format off: each needs those before it
#include "cpu/simd/math.h"
#include "functions.h"
#include "wide.h"
#include "operations.h"
#include "rows.h"
#include "columns.h"
#include "mapped.h"
#include "philox.h"
// clang-format on

namespace reformer::REFORMER_ISA {

using programs::kBlock;
using programs::Partials;
using programs::Partition;
using programs::Step;
using programs::Steps;

// The values of a program that don't vary from row to row, for each channel, and for each image if they vary between
// images.
template <class S>
class Table {
 public:
  Table(const ProgramCall& call, const Steps& steps)
      : pitch_((call.shape.channels + kLanes<S> - 1) / kLanes<S> * kLanes<S>), places_(size_t(steps.nodes())) {
    int64_t count = 0;
    for (int32_t i = 0; i < steps.nodes(); ++i) {
      if (steps.is_of_steps(i)) continue;
      const bool is_plane = !only(steps.varies[size_t(i)], Varies::channels);
      const int64_t images = is_plane ? call.shape.images : 1;
      places_[size_t(i)] = {count, is_plane ? pitch_ : 0};
      count += images * pitch_;
    }
    values_.resize(size_t(count + kLanes<S>));  // a vector may begin at the last element
    for (int32_t i = 0; i < steps.nodes(); ++i)
      if (!steps.is_of_steps(i))
        for (int64_t image = 0; image < (places_[size_t(i)].step ? call.shape.images : 1); ++image)
          compute(call, i, image);
  }
  const S* of(int32_t node, int64_t image) const {
    return values_.data() + places_[size_t(node)].first + image * places_[size_t(node)].step;
  }

 private:
  struct Place {
    int64_t first = 0, step = 0;  // step: from one image to the next
  };

  void compute(const ProgramCall& call, int32_t i, int64_t image) {
    const ProgramNode& node = call.program.nodes[size_t(i)];
    S* const to = const_cast<S*>(of(i, image));
    const int64_t channels = call.shape.channels;
    const auto fill = [&](S with) { std::fill(to, to + pitch_, with); };
    switch (node.op) {
      case ProgramOp::channel: return read(to, call.operand(node), 0, channels);
      case ProgramOp::plane: return read(to, call.operand(node), image * channels, channels);
      case ProgramOp::constant: return fill(S(node.value));
      case ProgramOp::rows: return fill(S(call.shape.rows()));
      case ProgramOp::columns: return fill(S(channels));
      case ProgramOp::channel_index: return std::iota(to, to + pitch_, S(0));
      case ProgramOp::scalar: {
        S one;
        read(&one, call.operand(node), 0, 1);
        return fill(one);
      }
      default: {
        Operand<S> from[3] = {};
        for (int j = 0; j < operands(node.op); ++j) from[j] = {of(node.operands[j], image), kLanes<S>};
        operate(node.op, to, from[0], from[1], from[2], pitch_);
      }
    }
  }

  int64_t pitch_;
  std::vector<Place> places_;  // for each node
  std::vector<S> values_;
};

template <class S>
class Unit {
 public:
  Unit(const ProgramCall& call, const Partition& partition, const Steps& steps, const Table<S>& table,
       std::vector<Partials>& partials, S* buffers, std::vector<Columns<S>>& columns)
      : call_(call),
        partition_(partition),
        steps_(steps),
        table_(table),
        partials_(partials),
        buffers_(buffers),
        columns_(columns),
        where_(steps.buffer.size()) {}

  void run(int64_t unit) {
    const int64_t range = unit % partition_.ranges, piece = unit / partition_.ranges % partition_.pieces;
    image_ = unit / partition_.ranges / partition_.pieces;
    const int64_t begin = range * partition_.range, end = std::min(partition_.lines, begin + partition_.range);
    each_across(piece, [&](size_t r, Columns<S>& columns) {
      columns.begin(partials_[r].kind(), partition_.block_lines, width_);
    });
    for (line_ = begin; line_ < end; line_ += partition_.block_lines) {
      lines_ = std::min(partition_.block_lines, end - line_);
      each_block(piece, [&](int64_t block) {
        compute(line_ == begin && block == 0);
        keep(unit, piece, block);
      });
    }
    each_across(piece, [&](size_t r, Columns<S>& columns) {
      columns.finish(end - begin, partials_[r].states, Partials::of_column(partition_, image_, range, column_));
    });
  }

 private:
  // Calls visit(block) for each block of a line of the piece.
  template <class Visit>
  void each_block(int64_t piece, Visit visit) {
    const int64_t begin = piece * partition_.piece, end = std::min(partition_.width, begin + partition_.piece);
    for (column_ = begin; column_ < end; column_ += partition_.block_width) {
      width_ = std::min(partition_.block_width, end - column_);
      visit((column_ - begin) / partition_.block_width);
    }
  }
  // Calls visit(r, columns) for each reduction across lines and each block of the piece.
  template <class Visit>
  void each_across(int64_t piece, Visit visit) {
    for (size_t r = 0; r < partials_.size(); ++r)
      if (partials_[r].side == Partials::Side::across)
        each_block(piece, [&](int64_t block) { visit(r, columns_of(r, block)); });
  }
  Columns<S>& columns_of(size_t r, int64_t block) {
    return columns_[r * size_t(partition_.blocks_of_piece()) + size_t(block)];
  }
  int64_t count() const { return lines_ * width_; }
  // A count rounded up to whole vectors; buffers have room for them.
  static int64_t padded(int64_t count) { return (count + kLanes<S> - 1) / kLanes<S> * kLanes<S>; }
  S* buffer(int32_t value) const { return buffers_ + steps_.buffer[size_t(value)] * partition_.room(); }
  const S* value(int32_t value) const { return where_[size_t(value)]; }
  // Index of the block's first line among the lines of all images.
  int64_t first_line() const { return image_ * partition_.lines + line_; }
  // Index of the block's first element in the result.
  int64_t offset() const { return first_line() * partition_.width + column_; }
  ProgramOperand input(const ProgramNode& node) const { return call_.operand(node); }

  // first: it is the unit's first block.
  void compute(bool first) {
    for (int32_t i = 0; i < steps_.nodes(); ++i) {
      if (steps_.is_of_steps(i) || steps_.buffer[size_t(i)] < 0) continue;
      if (partition_.row_by_row) {
        where_[size_t(i)] = table_.of(i, image_) + column_;
        continue;
      }
      where_[size_t(i)] = buffer(i);
      if (first || (steps_.varies[size_t(i)] != Varies::nowhere && !partition_.channels_along))
        take(buffer(i), table_.of(i, image_));
    }
    for (const Step& step : steps_.steps) where_[size_t(step.value)] = computed(step);
  }

  const S* computed(const Step& step) const {
    Operand<S> from[3] = {};
    for (int j = 0; j < 3; ++j)
      if (const int32_t operand = step.operands[j]; operand >= 0)
        from[j] = {value(operand), steps_.is_one(operand) ? 0 : kLanes<S>};
    S* const to = result(step.value);
    if (step.several == Several::spread) {
      for (int64_t line = lines_; line-- > 0;)
        std::fill(to + line * width_, to + (line + 1) * width_, S(from[0].at[line]));
      return to;
    }
    const ProgramNode& node = call_.program.nodes[size_t(step.value)];
    const int64_t numbers = padded(steps_.is_by_line(step.value) ? lines_ : count());
    if (!operands(node.op)) return leaf(node, buffer(step.value));
    if (reduces_row(node.op)) {
      for (int64_t line = 0; line < lines_; ++line) {
        to[line] = S(reduced(step.several, node.op, from[0], from[1]));
        from[0].at += width_;
        if (from[1].at) from[1].at += width_;
      }
      if (partition_.row_by_row) repeat(to);
    } else if (scans_row(node.op)) {
      for (int64_t line = 0; line < lines_; ++line)
        scan(node.op, from[0].at + line * width_, to + line * width_, width_);
    } else if (step.several == Several::one) {
      operate(node.op, to, from[0], from[1], from[2], numbers);
    } else {
      operate(step.several, to, from[0], from[1], from[2], numbers);
    }
    return to;
  }
  // Fills a vector with its first number.
  static void repeat(S* number) { store<S>(number, broadcast(*number)); }

  // The sum of function(a, b) along a line. Operands without a step hold one number.
  template <class Function>
  double sum(Operand<S> a, Operand<S> b, Function function) const {
    return LineSum<S, false>(a, b, width_, function).sum();
  }

  // A row reduction of a line of the block. The lambdas capture by reference, though they capture nothing: others
  // convert to function pointers, and vectors can't cross calls.
  double reduced(Several several, ProgramOp op, Operand<S> a, Operand<S> b) const {
    switch (several) {
      case Several::row_sum_of_product: return sum(a, b, [&](Vec<S> x, Vec<S> y) { return x * y; });
      case Several::row_sum_of_squares: return sum(a, b, [&](Vec<S> x, Vec<S> y) { return (x - y) * (x - y); });
      case Several::row_sum_of_exp: return sum(a, b, [&](Vec<S> x, Vec<S> y) { return whole_exp(x - y); });
      case Several::of_channel: {
        const S channel = *a.at;
        const bool is_there = channel >= 0 && channel < S(width_) && channel == std::floor(channel);
        return is_there ? double(b.at[b.step > 0 ? int64_t(channel) : 0]) : 0;
      }
      default: break;
    }
    switch (op) {
      case ProgramOp::row_sum: return along(Reduction::sum, a.at, width_).value;
      case ProgramOp::row_max: return along(Reduction::max, a.at, width_).value;
      default: return along(Reduction::prod, a.at, width_).value;
    }
  }

  // Where a step writes: directly to the output tensor if whole vectors end where the block does.
  S* result(int32_t value) const {
    if (padded(count()) == count() && !steps_.is_by_line(value))
      for (size_t i = 0; i < call_.program.outputs.size(); ++i) {
        const ProgramOutput& output = call_.program.outputs[i];
        if (call_.place_of_output(i) >= 0) continue;
        if (output.is_by_element() && steps_.by_element(output.node) == value &&
            is_computed_in(call_.stored_type(output)))
          return static_cast<S*>(call_.outputs[i]) + offset();
      }
    return buffer(value);
  }
  static bool is_computed_in(Stored type) { return type == (std::is_same_v<S, float> ? Stored::fp32 : Stored::fp64); }
  // A tensor's elements in place, if no output overwrites them and whole vectors can be read; else a copy.
  const S* in_place_or(const ProgramOperand& from, S* copy) const {
    const bool inside = offset() + padded(count()) <= call_.shape.numel();
    if (inside && is_computed_in(from.type) &&
        std::find(call_.outputs.begin(), call_.outputs.end(), from.data) == call_.outputs.end())
      return static_cast<const S*>(from.data) + offset();
    read(copy, from, offset(), count());
    return copy;
  }

  // Copies a value of the table for the lines of a block. In NHWC it is the same for all blocks of a unit.
  void take(S* to, const S* of_channel) const {
    for (int64_t line = 0; line < (partition_.channels_along ? partition_.block_lines : lines_); ++line) {
      S* const there = to + line * width_;
      if (partition_.channels_along)
        std::copy(of_channel + column_, of_channel + column_ + width_, there);
      else
        std::fill(there, there + width_, of_channel[line_ + line]);
    }
  }

  // Visits the block's elements of a tensor with a placement, in runs of adjacent elements.
  template <class Visit>
  void each_placed(int32_t place, Visit visit) const {
    const Placement& placement = call_.placements[size_t(place)];
    const int64_t adjacent = placement.adjacent_columns(), end = column_ + width_;
    for (int64_t line = 0; line < lines_; ++line) {
      const int64_t of_line = placement.line(first_line() + line);
      for (int64_t column = column_, next; column < end; column = next) {
        next = std::min(end, column - column % adjacent + adjacent);
        visit(line * width_ + column - column_, of_line + placement.column(column), next - column);
      }
    }
  }

  // The table's rows selected by the index, whose numbers have been checked.
  const S* looked_up(const ProgramNode& node, S* to) const {
    const ProgramOperand& index = call_.inputs[size_t(node.input) + 1];
    const int64_t pitch = call_.tables[size_t(call_.program.inputs[size_t(node.input)].table)].pitch;
    for (int64_t line = 0; line < lines_; ++line)
      read(to + line * width_, input(node), call_.number(index, first_line() + line) * pitch + column_, width_);
    return to;
  }

  const S* leaf(const ProgramNode& node, S* to) const {
    if (node.op == ProgramOp::table) return looked_up(node, to);
    if (node.op == ProgramOp::mapped) return Mapped<S>(call_, node).read(first_line(), lines_, column_, width_, to);
    const bool is_input = node.op == ProgramOp::full || node.op == ProgramOp::row;
    if (const int32_t place = is_input ? input(node).place : -1; place >= 0) {
      if (node.op == ProgramOp::full) {
        each_placed(place, [&](int64_t i, int64_t at, int64_t count) { read(to + i, input(node), at, count); });
      } else {
        for (int64_t line = 0; line < lines_; ++line)
          read(to + line, input(node), call_.placements[size_t(place)].line(first_line() + line), 1);
        if (partition_.row_by_row) repeat(to);
      }
      return to;
    }
    switch (node.op) {
      case ProgramOp::acc: return in_place_or({call_.acc, call_.type}, to);
      case ProgramOp::full: return in_place_or(input(node), to);
      case ProgramOp::random: draw_all(to, *static_cast<const uint64_t*>(input(node).data)); return to;
      default: break;  // row
    }
    if (partition_.channels_along) {
      read(to, input(node), first_line(), lines_);
      if (partition_.row_by_row) repeat(to);
    } else {
      for (int64_t line = 0; line < lines_; ++line)
        read(to + line * width_, input(node), image_ * partition_.width + column_, width_);
    }
    return to;
  }

  void draw_all(S* to, uint64_t key) const {
    const int64_t channels = call_.shape.channels;
    if (partition_.channels_along && width_ == channels) return draw(to, key, first_line() * channels, count());
    for (int64_t line = 0; line < lines_; ++line) {
      S* const there = to + line * width_;
      if (partition_.channels_along)
        draw(there, key, (first_line() + line) * channels + column_, width_);
      else
        draw(there, key, (image_ * partition_.width + column_) * channels + line_ + line, width_, channels);
    }
  }

  // Reductions first: a stored output may overwrite acc.
  void keep(int64_t unit, int64_t piece, int64_t block) {
    for (size_t r = 0; r < partials_.size(); ++r) {
      Partials& partials = partials_[r];
      const S* const from = value(steps_.by_element(partials.node));
      if (partials.side == Partials::Side::across) {
        columns_of(r, block).add(partials.kind(), from, lines_);
        continue;
      }
      for (int64_t line = 0; line < lines_; ++line) {
        const bool is_of_all = partials.side == Partials::Side::all;
        partials.states.add(is_of_all ? unit : Partials::of_line(partition_, image_, piece, line_ + line),
                            along(partials.kind(), from + line * width_, width_));
      }
    }
    for (size_t i = 0; i < call_.program.outputs.size(); ++i) {
      const ProgramOutput& output = call_.program.outputs[i];
      if (output.is_by_row())
        write(call_.outputs[i], call_.stored_type(output), first_line(), value(output.node), lines_);
      if (!output.is_by_element()) continue;
      const S* const from = value(steps_.by_element(output.node));
      if (const int32_t place = call_.place_of_output(i); place >= 0) {
        each_placed(place, [&](int64_t j, int64_t at, int64_t count) {
          each_target(call_, output, first_line() + j / width_, [&](int64_t target, bool is_row) {
            const Stored type = call_.stored_type(output);
            if (is_row) return write(call_.outputs[i], type, at + target, from + j, count);
            constexpr S zeros[kBlock] = {};
            for (int64_t k = 0; k < count; k += kBlock)
              write(call_.outputs[i], type, at + target + k, zeros, std::min(kBlock, count - k));
          });
        });
        continue;
      }
      if (is_computed_in(call_.stored_type(output)) && from == static_cast<const S*>(call_.outputs[i]) + offset())
        continue;
      write(call_.outputs[i], call_.stored_type(output), offset(), from, count());
    }
  }

  const ProgramCall& call_;
  const Partition& partition_;
  const Steps& steps_;
  const Table<S>& table_;
  std::vector<Partials>& partials_;
  S* const buffers_;
  std::vector<Columns<S>>& columns_;  // for each reduction and each block of a piece
  std::vector<const S*> where_;       // of each of the block's values
  int64_t image_ = 0, line_ = 0, lines_ = 0, column_ = 0, width_ = 0;
};

// Computes the outputs, except for the reductions' final sums and the factors of these.
template <class S>
std::vector<std::vector<S>> run_units(const ProgramCall& call, const Partition& partition, const Steps& steps,
                                      std::vector<Partials>& partials, int64_t grain) {
  const Table<S> table(call, steps);
  parallel_for(partition.units(), grain, [&](int64_t begin, int64_t end) {
    const int64_t numbers = steps.buffers * partition.room(), each = Columns<S>::bytes(partition.room());
    const int64_t count = int64_t(partials.size()) * partition.blocks_of_piece();
    S* const values = static_cast<S*>(thread_scratch(numbers * int64_t(sizeof(S)) + count * each));
    std::fill(values, values + numbers, S(0));
    std::vector<Columns<S>> columns;
    for (int64_t i = 0; i < count; ++i)
      columns.emplace_back(reinterpret_cast<char*>(values + numbers) + i * each, partition.block());
    Unit<S> unit(call, partition, steps, table, partials, values, columns);
    for (int64_t i = begin; i < end; ++i) unit.run(i);
  });
  const int64_t channels = call.shape.channels;
  std::vector<std::vector<S>> factors;
  for (size_t i = 0; i < call.program.outputs.size(); ++i) {
    const ProgramOutput& output = call.program.outputs[i];
    for (int64_t image = 0; output.is_common() && image * channels < call.shape.count(output.per); ++image)
      write(call.outputs[i], call.stored_type(output), image * channels, table.of(output.node, image), channels);
    const S* const factor = table.of(std::max(output.factor, 0), 0);
    factors.emplace_back(factor, factor + (output.factor < 0 ? 0 : channels));
  }
  return factors;
}

}  // namespace reformer::REFORMER_ISA
