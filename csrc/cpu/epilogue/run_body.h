// The body of run.cpp, compiled once for each instruction set: S is what is computed in.
// clang-format off: each needs those before it
#include "../simd/math.h"
#include "functions.h"
// clang-format on

namespace reformer::REFORMER_ISA {

using epilogue::Cut;
using epilogue::kBlock;
using epilogue::kRoom;
using epilogue::Partial;
using epilogue::Partials;
using epilogue::Places;

template <class S, class Function>
REFORMER_INLINE void each(S* to, int64_t count, Function function) {
  for (int64_t i = 0; i < count; i += kLanes<S>) store<S>(to + i, function(i));
}

template <class S, class T>
REFORMER_INLINE Vec<S> rounded(Vec<S> v) {
  T narrow[kLanes<S>];
  store<S>(narrow, v);
  return load<S>(static_cast<const T*>(narrow));
}

// d = op(a, b, c), whole vectors.
template <class S>
void operate(EpilogueOp op, S* d, const S* a, const S* b, const S* c, int64_t count) {
  const Vec<S> zero = {}, one = broadcast(S(1));
  const auto x = [&](int64_t i) { return load<S>(a + i); };
  const auto y = [&](int64_t i) { return load<S>(b + i); };
  const auto z = [&](int64_t i) { return load<S>(c + i); };
  switch (op) {
    case EpilogueOp::neg: return each(d, count, [&](int64_t i) { return -x(i); });
    case EpilogueOp::abs: return each(d, count, [&](int64_t i) { return magnitude(x(i)); });
    case EpilogueOp::exp: return each(d, count, [&](int64_t i) { return whole_exp(x(i)); });
    case EpilogueOp::log: return each(d, count, [&](int64_t i) { return natural_log(x(i)); });
    case EpilogueOp::sqrt: return each(d, count, [&](int64_t i) { return square_root<S>(x(i)); });
    case EpilogueOp::rsqrt: return each(d, count, [&](int64_t i) { return one / square_root<S>(x(i)); });
    case EpilogueOp::tanh: return each(d, count, [&](int64_t i) { return hyperbolic_tangent(x(i)); });
    case EpilogueOp::sigmoid: return each(d, count, [&](int64_t i) { return one / (one + whole_exp(-x(i))); });
    case EpilogueOp::erf: return each(d, count, [&](int64_t i) { return error_function(x(i)); });
    case EpilogueOp::relu: return each(d, count, [&](int64_t i) { return x(i) <= zero ? zero : x(i); });
    case EpilogueOp::round_bf16: return each(d, count, [&](int64_t i) { return rounded<S, BFloat16>(x(i)); });
    case EpilogueOp::round_fp16: return each(d, count, [&](int64_t i) { return rounded<S, Half>(x(i)); });
    case EpilogueOp::add: return each(d, count, [&](int64_t i) { return x(i) + y(i); });
    case EpilogueOp::sub: return each(d, count, [&](int64_t i) { return x(i) - y(i); });
    case EpilogueOp::mul: return each(d, count, [&](int64_t i) { return x(i) * y(i); });
    case EpilogueOp::div: return each(d, count, [&](int64_t i) { return x(i) / y(i); });
    case EpilogueOp::maximum:
      return each(d, count, [&](int64_t i) { return ((x(i) > y(i)) | (x(i) != x(i))) ? x(i) : y(i); });
    case EpilogueOp::minimum:
      return each(d, count, [&](int64_t i) { return ((x(i) < y(i)) | (x(i) != x(i))) ? x(i) : y(i); });
    case EpilogueOp::lt: return each(d, count, [&](int64_t i) { return x(i) < y(i) ? one : zero; });
    case EpilogueOp::le: return each(d, count, [&](int64_t i) { return x(i) <= y(i) ? one : zero; });
    case EpilogueOp::eq: return each(d, count, [&](int64_t i) { return x(i) == y(i) ? one : zero; });
    case EpilogueOp::ne: return each(d, count, [&](int64_t i) { return x(i) != y(i) ? one : zero; });
    case EpilogueOp::select: return each(d, count, [&](int64_t i) { return x(i) != zero ? y(i) : z(i); });
    case EpilogueOp::clip:
      return each(d, count, [&](int64_t i) { return x(i) <= y(i) ? y(i) : x(i) >= z(i) ? z(i) : x(i); });
    default: return;  // leaves
  }
}

template <class S, class T>
void widen(S* to, const T* from, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes<S> <= count; i += kLanes<S>) store<S>(to + i, load<S>(from + i));
  for (; i < count; ++i) to[i] = S(Element<T>::load(from[i]));
}
template <class S, class T>
void narrow(T* to, const S* from, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes<S> <= count; i += kLanes<S>) store<S>(to + i, load<S>(from + i));
  for (; i < count; ++i) to[i] = Element<T>::store(typename Element<T>::Sum(from[i]));
}

// From sums of differences from an origin, and of their squares.
inline Partial moments(double count, double origin, double sum, double squares) {
  // Not less than 0; NaN stays NaN.
  const double rest = squares - sum * sum / count;
  return {count, origin + sum / count, rest < 0 ? 0 : rest};
}

// What a reduction has of each element of a block, of all blocks of a unit.
struct Columns {
  // The sum or the largest value; of moments, of differences from the first block, which a large mean leaves exact.
  double values[kBlock], squares[kBlock], origins[kBlock];

  template <class S>
  void add(Reduction kind, const S* from, int64_t count, bool first) {
    if (kind == Reduction::max) {
      for (int64_t i = 0; i < count; ++i)
        if (first || from[i] != from[i] || double(from[i]) > values[i]) values[i] = double(from[i]);
    } else if (first) {
      for (int64_t i = 0; i < count; ++i) {
        const double value = double(from[i]);
        origins[i] = kind == Reduction::moments ? value : 0;
        values[i] = value - origins[i];
        squares[i] = 0;
      }
    } else if (kind == Reduction::sum) {
      for (int64_t i = 0; i < count; ++i) values[i] += double(from[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        const double difference = double(from[i]) - origins[i];
        values[i] += difference;
        squares[i] += difference * difference;
      }
    }
  }

  Partial partial(Reduction kind, int64_t i, int64_t blocks) const {
    return kind == Reduction::moments ? moments(double(blocks), origins[i], values[i], squares[i])
                                      : Partial{0, values[i], 0};
  }
};

template <class S>
class Unit {
 public:
  Unit(const EpilogueCall& call, const Cut& cut, const Places& places, std::vector<Partials>& partials, S* buffers,
       Columns* columns)
      : call_(call), cut_(cut), places_(places), partials_(partials), buffers_(buffers), columns_(columns) {}

  void run(int64_t unit) {
    const int64_t range = unit % cut_.ranges, piece = unit / cut_.ranges % cut_.pieces;
    picture_ = unit / cut_.ranges / cut_.pieces;
    column_ = piece * cut_.piece;
    width_ = std::min(cut_.piece, cut_.width - column_);
    const int64_t end = std::min(cut_.lines, (range + 1) * cut_.range);
    int64_t blocks = 0;
    for (line_ = range * cut_.range; line_ < end; line_ += cut_.block_lines, ++blocks) {
      lines_ = std::min(cut_.block_lines, end - line_);
      compute(blocks == 0);
      keep(unit, piece, blocks == 0);
    }
    for (size_t r = 0; r < partials_.size(); ++r)
      if (partials_[r].side == Partials::Side::across) {
        Partial* const to = partials_[r].of_column(cut_, picture_, range, column_);
        const int64_t in_last = count(), in_all = blocks > 1 ? cut_.block_lines * width_ : in_last;
        for (int64_t i = 0; i < in_all; ++i)
          to[i % width_].add(partials_[r].kind,
                             columns_[r].partial(partials_[r].kind, i, i < in_last ? blocks : blocks - 1));
      }
  }

 private:
  int64_t count() const { return lines_ * width_; }
  // Of whole vectors; buffers have room for them.
  int64_t padded() const { return (count() + kLanes<S> - 1) / kLanes<S> * kLanes<S>; }
  S* value(int32_t node) const { return buffers_ + places_.buffer[size_t(node)] * kRoom; }
  // Of the block's first element, in the result.
  int64_t offset() const { return (picture_ * cut_.lines + line_) * cut_.width + column_; }

  void compute(bool first) {
    for (size_t i = 0; i < call_.program.nodes.size(); ++i) {
      if (places_.constant[i] && !first) continue;
      const EpilogueNode& node = call_.program.nodes[i];
      S* const to = value(int32_t(i));
      if (operands(node.op)) {
        const S* from[3] = {};
        for (int j = 0; j < operands(node.op); ++j) from[j] = value(node.operands[j]);
        // What is constant is computed for the largest block of the unit.
        const int64_t size = places_.constant[i] ? kBlock : padded();
        operate(node.op, to, from[0], from[1], from[2], size);
      } else {
        leaf(node, to);
      }
    }
  }

  void leaf(const EpilogueNode& node, S* to) {
    const EpilogueShape& shape = call_.shape;
    switch (node.op) {
      case EpilogueOp::acc: return read(to, {call_.acc, call_.type}, offset(), count());
      case EpilogueOp::full: return read(to, input(node), offset(), count());
      case EpilogueOp::scalar: return fill(to, input(node), 0, kRoom);
      case EpilogueOp::constant: return fill(to, S(node.value), kRoom);
      case EpilogueOp::rows: return fill(to, S(shape.rows()), kRoom);
      case EpilogueOp::columns: return fill(to, S(shape.channels), kRoom);
      case EpilogueOp::random: return draw(to, *static_cast<const int64_t*>(input(node).data));
      case EpilogueOp::channel:
        if (cut_.channels_along)
          for (int64_t line = 0; line < cut_.block_lines; ++line)
            read(to + line * width_, input(node), column_, width_);
        else
          for (int64_t line = 0; line < lines_; ++line) fill(to + line * width_, input(node), line_ + line, width_);
        return;
      case EpilogueOp::row:
        for (int64_t line = 0; line < lines_; ++line)
          if (cut_.channels_along)
            fill(to + line * width_, input(node), line_ + line, width_);
          else
            read(to + line * width_, input(node), picture_ * cut_.width + column_, width_);
        return;
      default: return;
    }
  }

  const EpilogueOperand& input(const EpilogueNode& node) const { return call_.inputs[size_t(node.input)]; }

  static void fill(S* to, S with, int64_t count) { std::fill(to, to + count, with); }
  static void fill(S* to, const EpilogueOperand& from, int64_t at, int64_t count) {
    S one;
    read(&one, from, at, 1);
    fill(to, one, count);
  }
  static void read(S* to, const EpilogueOperand& from, int64_t at, int64_t count) {
    switch (from.type) {
      case Stored::fp32: return widen(to, static_cast<const float*>(from.data) + at, count);
      case Stored::fp64: return widen(to, static_cast<const double*>(from.data) + at, count);
      case Stored::fp16: return widen(to, static_cast<const Half*>(from.data) + at, count);
      case Stored::bf16: return widen(to, static_cast<const BFloat16*>(from.data) + at, count);
      default:
        for (int64_t i = 0; i < count; ++i) to[i] = S(static_cast<const uint8_t*>(from.data)[at + i] != 0);
    }
  }
  static void write(void* to, Stored type, int64_t at, const S* from, int64_t count) {
    switch (type) {
      case Stored::fp32: return narrow(static_cast<float*>(to) + at, from, count);
      case Stored::fp64: return narrow(static_cast<double*>(to) + at, from, count);
      case Stored::fp16: return narrow(static_cast<Half*>(to) + at, from, count);
      case Stored::bf16: return narrow(static_cast<BFloat16*>(to) + at, from, count);
      default:
        for (int64_t i = 0; i < count; ++i) static_cast<uint8_t*>(to)[at + i] = from[i] != 0;
    }
  }

  void draw(S* to, int64_t key) const {
    const int64_t channels = call_.shape.channels;
    uint32_t numbers[4];
    int64_t group = -1;
    for (int64_t i = 0; i < count(); ++i) {
      const int64_t line = line_ + i / width_, column = column_ + i % width_;
      const int64_t place =
          cut_.channels_along ? line * channels + column : (picture_ * cut_.width + column) * channels + line;
      if (place / 4 != group) philox(uint64_t(key), uint64_t(group = place / 4), numbers);
      to[i] = S(uniform(numbers[place % 4]));
    }
  }

  void keep(int64_t unit, int64_t piece, bool first) {
    size_t reduction = 0;
    for (size_t i = 0; i < call_.program.outputs.size(); ++i) {
      const EpilogueOutput& output = call_.program.outputs[i];
      const S* const from = value(output.node);
      if (output.kind == Reduction::none) {
        write(call_.outputs[i], output.type == Stored::result ? call_.type : output.type, offset(), from, count());
        continue;
      }
      Partials& partials = partials_[reduction];
      if (partials.side == Partials::Side::across) {
        columns_[reduction].add(output.kind, from, count(), first);
      } else {
        for (int64_t line = 0; line < lines_; ++line) {
          Partial* const to = partials.side == Partials::Side::all
                                  ? &partials.values[size_t(unit)]
                                  : partials.of_line(cut_, picture_, piece, line_ + line);
          to->add(output.kind, along(output.kind, from + line * width_));
        }
      }
      ++reduction;
    }
  }

  // Of a line of the block.
  Partial along(Reduction kind, const S* from) const {
    Partial result = Partial::none(kind);
    if (kind == Reduction::max) {
      for (int64_t i = 0; i < width_; ++i) result.add(kind, {1, double(from[i]), 0});
      return result;
    }
    // Moments of the differences from the first element, which a large mean leaves exact.
    const double origin = kind == Reduction::moments ? double(from[0]) : 0;
    constexpr int kSums = 8;
    double sums[kSums] = {}, squares[kSums] = {};
    int64_t i = 0;
    for (; i + kSums <= width_; i += kSums)
      for (int j = 0; j < kSums; ++j) {
        const double difference = double(from[i + j]) - origin;
        sums[j] += difference;
        squares[j] += difference * difference;
      }
    for (; i < width_; ++i) {
      const double difference = double(from[i]) - origin;
      sums[0] += difference;
      squares[0] += difference * difference;
    }
    double sum = 0, square = 0;
    for (int j = 0; j < kSums; ++j) sum += sums[j], square += squares[j];
    if (kind == Reduction::sum) return {0, sum, 0};
    return moments(double(width_), origin, sum, square);
  }

  const EpilogueCall& call_;
  const Cut& cut_;
  const Places& places_;
  std::vector<Partials>& partials_;
  S* const buffers_;
  Columns* const columns_;  // of each reduction
  int64_t picture_ = 0, line_ = 0, lines_ = 0, column_ = 0, width_ = 0;
};

template <class S>
void run_units(const EpilogueCall& call, const Cut& cut, const Places& places, std::vector<Partials>& partials,
               int64_t begin, int64_t end) {
  const int64_t buffers = places.buffers * kRoom * int64_t(sizeof(S));
  const int64_t columns = int64_t(partials.size() * sizeof(Columns));
  char* const scratch = static_cast<char*>(thread_scratch(buffers + columns));
  S* const values = reinterpret_cast<S*>(scratch);
  std::fill(values, values + places.buffers * kRoom, S(0));
  Unit<S> unit(call, cut, places, partials, values, reinterpret_cast<Columns*>(scratch + buffers));
  for (int64_t i = begin; i < end; ++i) unit.run(i);
}

}  // namespace reformer::REFORMER_ISA
